"""Mistral: Chat Completions, with arguments that may be an object and images in the tool message."""

from dataclasses import replace
from functools import partial
from typing import Any

from app.core.runs import Known, Media, ParsedMessage, Reply
from app.providers import reply_content
from app.providers.chat import results
from app.providers.chat.calls import parse
from app.providers.chat.tools import export, fill
from app.providers.dialects import Dialect, Mode, Quirks, Supports, Wire
from app.providers.schema.document import inline_references

MODE_NAMES: dict[Mode, str] = {"auto": "auto", "none": "none", "required": "any"}
NO_ID = "null"
"""Written by Mistral's client where there is no id."""


def read_calls(message: Any, known: Known) -> ParsedMessage:
    parsed = parse(message)
    calls = (replace(call, id=None) if call.id == NO_ID else call for call in parsed.calls)
    return replace(parsed, calls=tuple(calls))


def _answer(reply: Reply) -> Wire:
    chunks: list[Wire] = []
    lines = [reply_content.text_of(reply)]
    for media in reply_content.media_of(reply):
        chunk = _chunk(media)
        if chunk is None:
            lines.append(reply_content.placeholder(media))
        else:
            chunks.append(chunk)
    text = "\n".join(line for line in lines if line)
    content = (
        [*([{"type": "text", "text": text}] if text else []), *chunks] if chunks else text or reply_content.NO_OUTPUT
    )
    call_id = {} if reply.call.id is None else {"tool_call_id": reply.call.id}
    return {"role": "tool", **call_id, "name": reply.call.name, "content": content}


def _chunk(media: Media) -> Wire | None:
    """The provider fetches a document from its URL."""
    if media.mime in results.IMAGE_TYPES and (url := results.image_url_of(media)):
        return {"type": "image_url", "image_url": {"url": url}}
    if media.mime == results.PDF and media.data is None and results.has_web_url(media):
        name = {"document_name": media.name} if media.name else {}
        return {"type": "document_url", "document_url": media.url, **name}
    return None


dialect = Dialect(
    name="mistral",
    title="Mistral",
    export_tools=partial(export, convert=inline_references),
    fill_request=partial(fill, mode_names=MODE_NAMES),
    read_calls=read_calls,
    write_results=lambda replies: [_answer(reply) for reply in replies],
    supports=Supports(strict=True, images=True, note="Only vision models see images."),
    quirks=Quirks(strict="on_request", modes=frozenset({"auto", "none", "required"})),
    strips_nulls=True,
)
