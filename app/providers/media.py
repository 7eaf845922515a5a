"""Media: files of a reply, and what of them a provider can be sent."""

import base64
import binascii
from collections.abc import Callable
from dataclasses import replace

from app.core.runs import Media, Reply, Text
from app.providers import contents

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
        Text(contents.placeholder(part)) if isinstance(part, Media) and not is_sent(part) else part
        for part in reply.parts
    )
    return contents.text_of(replace(reply, parts=parts))
