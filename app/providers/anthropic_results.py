"""What Claude gets back: one user message, a `tool_result` block for each call before anything else."""

from collections.abc import Sequence
from typing import Any

from app.core.runs import Media, Part, Reply, SearchResult, ToolReference
from app.providers import contents
from app.providers.dialects import COMMON, Wire
from app.providers.media import PDF, address_of, kind_of, text_in, told
from app.providers.names import wire_name

IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    if not replies:
        return []
    return [{"role": "user", "content": [*(_result(reply) for reply in replies), *_afterwards(replies)]}]


def _result(reply: Reply) -> Wire:
    made: Wire = {"type": "tool_result", "tool_use_id": reply.call.id, "content": _content(reply)}
    if reply.error is not None:
        made["is_error"] = True
    if reply.call.toolset is not None:
        made["toolset_name"] = reply.call.toolset
    return made


def _content(reply: Reply) -> str | list[Wire]:
    """Text alone is a string, and an error may be nothing else."""
    if reply.error is not None:
        return told(reply, lambda media: False)
    blocks = [block for part in reply.parts if (block := _block(part)) is not None]
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks) or contents.NOTHING
    return blocks


def _block(part: Part) -> Wire | None:
    match part:
        case Media():
            return _file(part) or _said(contents.placeholder(part))
        case SearchResult() if part.text:
            return {"type": "search_result", "source": part.source, "title": part.title, "content": [_said(part.text)]}
        case ToolReference(name):
            return {"type": "tool_reference", "tool_name": wire_name(name, COMMON)}
    text = contents.plain(part)
    return _said(text) if text else None


def _file(media: Media) -> Wire | None:
    """A file as the model can see it; None when it cannot."""
    kind = kind_of(media)
    if kind in IMAGES and (source := _source(media)) is not None:
        return {"type": "image", "source": source}
    text = text_in(media)
    source = _source(media) if kind == PDF else None
    if text:
        source = {"type": "text", "media_type": "text/plain", "data": text}
    if source is None:
        return None
    return {"type": "document", "source": source} | ({"title": media.name} if media.name else {})


def _source(media: Media) -> dict[str, Any] | None:
    if media.data is not None:
        return {"type": "base64", "media_type": kind_of(media), "data": media.data}
    address = address_of(media)
    return None if address is None else {"type": "url", "url": address}


def _afterwards(replies: Sequence[Reply]) -> list[Wire]:
    """The files of failed calls, which their results may not hold. A program that calls takes nothing but results."""
    if any((reply.call.caller or {}).get("type", "direct") != "direct" for reply in replies):
        return []
    failed = [reply for reply in replies if reply.error is not None]
    return [block for reply in failed for media in contents.media_of(reply) if (block := _file(media)) is not None]


def _said(text: str) -> Wire:
    return {"type": "text", "text": text}
