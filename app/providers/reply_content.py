"""Replies to a model: built from ended calls, and their content as text and media."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.runs import Failure, Json, Media, ModelCall, Part, Reply, SearchResult, Text, ToolOffer, ToolReference
from app.providers.builtin_calls import command_end

NO_OUTPUT = "(no output)"


def text_of(reply: Reply) -> str:
    """The error with its code, then the text parts. Files are left to the caller."""
    error = f"[ERROR:{reply.error.code}] {reply.error.message}" if reply.error is not None else ""
    texts = [part_text(part) for part in reply.parts]
    return "\n".join(text for text in (error, *texts) if text)


def part_text(part: Part) -> str:
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
    """The images with data."""
    return [part for part in media_of(reply) if part.is_image and part.data is not None]


def placeholder(media: Media) -> str:
    """Text instead of a file: what it is, and its URL."""
    kind = "image" if media.is_image else "file"
    name = f" {media.name}" if media.name else ""
    where = f", available at {media.url}" if media.url and not media.url.startswith("data:") else ""
    return f"[{kind}{name} ({media.mime}){where}]"


def data_url(media: Media) -> str:
    return f"data:{media.mime};base64,{media.data}"


MIME_ALIASES = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}
PDF = "application/pdf"


def media_type(media: Media) -> str:
    """The MIME type without parameters, in the spelling that providers know."""
    bare = media.mime.partition(";")[0].strip().lower()
    return MIME_ALIASES.get(bare, bare)


def decode_text(media: Media) -> str | None:
    """The content of a text file; None for other files."""
    if media.data is None or not media_type(media).startswith("text/"):
        return None
    try:
        return base64.b64decode(media.data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def web_url(media: Media) -> str | None:
    """The web URL of a file without data."""
    is_remote = media.data is None and media.url is not None and media.url.startswith(("https://", "http://"))
    return media.url if is_remote else None


def text_with_placeholders(reply: Reply, is_sent: Callable[[Media], bool]) -> str:
    """The text of a reply, with a placeholder for each file that is not sent separately."""
    parts = tuple(
        Text(placeholder(part)) if isinstance(part, Media) and not is_sent(part) else part for part in reply.parts
    )
    return text_of(replace(reply, parts=parts))


NO_COMPUTER = Failure("ToolUnavailable", "This service has no computer tool; use other tools.")


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """The stored result and error of a call, and its files or their placeholders."""

    result: dict[str, Any] | None
    error: dict[str, Any] | None
    files: tuple[Media | Text, ...] = ()


def reply_to(call: ModelCall, ends: Sequence[FinishedCall]) -> Reply:
    """The reply to a model's call. Only a shell call was run as several calls."""
    match call.type:
        case "shell" | "local_shell":
            return Reply(call=call, commands=tuple(command_end(end.result, end.error) for end in ends))
        case "tool_search":
            tools = ((ends[0].result or {}).get("structured") or {}).get("tools", [])
            return Reply(call=call, tools=tuple(offer_of(tool) for tool in tools), error=_failure(ends[0]))
        case "computer" if ends[0].error and ends[0].error["code"] == "UnknownTool":
            return Reply(call=call, error=NO_COMPUTER)
        case _:
            output = ends[0].result["output"] if ends[0].result else ""
            parts = (*((Text(output),) if output else ()), *ends[0].files)
            return Reply(call=call, parts=parts, error=_failure(ends[0]))


def is_blocked(error: dict[str, Any]) -> bool:
    """Whether a person denied the call."""
    return error["code"] == "Declined" or bool((error.get("details") or {}).get("blocked"))


def _failure(end: FinishedCall) -> Failure | None:
    return None if end.error is None else Failure(end.error["code"], end.error["message"])


def offer_of(tool: dict[str, Any]) -> ToolOffer:
    """The offer of a listed tool."""
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
