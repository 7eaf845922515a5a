"""Replies to a model: built from ended calls, and their content as text and media."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.runs import Failure, Json, Media, ModelCall, Part, Reply, SearchResult, Text, ToolOffer, ToolReference
from app.providers.builtin_calls import command_end

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


NO_COMPUTER = Failure(
    "ToolUnavailable", "No computer is attached to this service, so nothing was done on one; use other tools."
)


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """How a call ended: its result and its error as they are kept, and the files that go along, or what stands for
    them."""

    result: dict[str, Any] | None
    error: dict[str, Any] | None
    files: tuple[Media | Text, ...] = ()


def reply_to(asked: ModelCall, ends: Sequence[FinishedCall]) -> Reply:
    """What one model's call gets back. Only a shell call has been carried out by several."""
    match asked.type:
        case "shell" | "local_shell":
            return _of_commands(asked, ends)
        case "tool_search":
            return Reply(call=asked, tools=_found(ends[0].result), error=_failure(ends[0]))
        case "computer" if ends[0].error and ends[0].error["code"] == "UnknownTool":
            return Reply(call=asked, error=NO_COMPUTER)
        case _:
            return Reply(call=asked, parts=_parts(ends[0]), error=_failure(ends[0]))


def is_blocked(error: dict[str, Any]) -> bool:
    """Whether a person said no to it."""
    return error["code"] == "Declined" or bool((error.get("details") or {}).get("blocked"))


def _of_commands(asked: ModelCall, ends: Sequence[FinishedCall]) -> Reply:
    return Reply(call=asked, commands=tuple(command_end(end.result, end.error) for end in ends))


def _parts(end: FinishedCall) -> tuple[Part, ...]:
    said = end.result["output"] if end.result else ""
    return (*((Text(said),) if said else ()), *end.files)


def _failure(end: FinishedCall) -> Failure | None:
    return None if end.error is None else Failure(end.error["code"], end.error["message"])


def _found(result: dict[str, Any] | None) -> tuple[ToolOffer, ...]:
    tools = ((result or {}).get("structured") or {}).get("tools", [])
    return tuple(offer_of(tool) for tool in tools)


def offer_of(tool: dict[str, Any]) -> ToolOffer:
    """A tool as it is listed, to be offered."""
    return ToolOffer(
        name=tool["name"],
        description=tool["description"],
        schema=tool["parameters"],
        takes=tool["takes"],
        grammar=tool["grammar"],
        title=tool["title"],
        annotations=tool["annotations"],
        output_schema=tool["output_schema"],
    )
