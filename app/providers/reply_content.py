"""What a reply says, as text, for dialects that have no better way; and which of its parts are files.

Media: files of a reply, and what of them a provider can be sent.
"""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from app.core.runs import Json, Media, Part, Reply, SearchResult, Text, ToolReference

NOTHING = "(no output)"


def text_of(reply: Reply) -> str:
    """All of a reply as text: the error with its code first, then what the tool gave. Files are left to the caller."""
    said = said_by(reply.parts)
    if reply.error is None:
        return said
    failed = f"[ERROR:{reply.error.code}] {reply.error.message}"
    return f"{failed}\n{said}" if said else failed


def said_by(parts: Sequence[Part]) -> str:
    return "\n".join(text for part in parts if (text := plain(part)))


def plain(part: Part) -> str:
    """A part as text; empty for files."""
    match part:
        case Text(text):
            return text
        case Json(value):
            return json.dumps(value, ensure_ascii=False)
        case SearchResult():
            return f"{part.title} ({part.source})\n{part.text}"
        case ToolReference(name):
            return name
        case Media():
            return ""


def media_of(reply: Reply) -> list[Media]:
    return [part for part in reply.parts if isinstance(part, Media)]


def images_of(reply: Reply) -> list[Media]:
    """The images that can be sent along."""
    return [part for part in media_of(reply) if part.is_image and part.data is not None]


def placeholder(media: Media) -> str:
    """What stands where a file cannot: what it is, and where to get it."""
    kind = "image" if media.is_image else "file"
    name = f" {media.name}" if media.name else ""
    where = f", to be had at {media.url}" if media.url and not media.url.startswith("data:") else ""
    return f"[{kind}{name} ({media.mime}){where}]"


def data_url(media: Media) -> str:
    return f"data:{media.mime};base64,{media.data}"


ALIASES = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}
PDF = "application/pdf"


def kind_of(media: Media) -> str:
    """Its media type, without parameters and in the spelling that providers know."""
    bare = media.mime.partition(";")[0].strip().lower()
    return ALIASES.get(bare, bare)


def text_in(media: Media) -> str | None:
    """What a file of text says; None when it is none, or cannot be read."""
    if media.data is None or not kind_of(media).startswith("text/"):
        return None
    try:
        return base64.b64decode(media.data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def address_of(media: Media) -> str | None:
    """Where on the web the file is, when that is all there is of it."""
    is_there = media.data is None and media.url is not None and media.url.startswith(("https://", "http://"))
    return media.url if is_there else None


def told(reply: Reply, is_sent: Callable[[Media], bool]) -> str:
    """All of a reply as text, with a placeholder for each file that is not sent besides."""
    parts = tuple(
        Text(placeholder(part)) if isinstance(part, Media) and not is_sent(part) else part for part in reply.parts
    )
    return text_of(replace(reply, parts=parts))
