"""Mistral: Chat Completions, with arguments that may be an object and pictures in a tool's own message."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.core.runs import Known, Media, ParsedMessage, Reply, ToolOffer
from app.providers import reply_content
from app.providers.chat import results
from app.providers.chat.calls import read
from app.providers.chat.tools import export, fill
from app.providers.dialects import Choice, Dialect, Exported, ExportOptions, Mode, Quirks, Supports, Wire
from app.providers.schema.document import inline_references

WORDS: dict[Mode, str] = {"auto": "auto", "none": "none", "required": "any"}
NO_ID = "null"
"""What the provider's package writes where there is no id."""


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    return export(offers, options, inline_references)


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    return fill(tools, choice, quirks, warnings, words=WORDS)


def read_calls(message: Any, known: Known) -> ParsedMessage:
    reading = read(message)
    calls = (replace(call, id=None) if call.id == NO_ID else call for call in reading.calls)
    return replace(reading, calls=tuple(calls))


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    return [_answer(reply) for reply in replies]


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
        [*([{"type": "text", "text": text}] if text else []), *chunks] if chunks else text or reply_content.NOTHING
    )
    called = {} if reply.call.id is None else {"tool_call_id": reply.call.id}
    return {"role": "tool", **called, "name": reply.call.name, "content": content}


def _chunk(media: Media) -> Wire | None:
    """A document has to be where the provider can fetch it."""
    if media.mime in results.PICTURES and (url := results.picture_url(media)):
        return {"type": "image_url", "image_url": {"url": url}}
    if media.mime == results.PDF and media.data is None and results.is_on_the_web(media):
        name = {"document_name": media.name} if media.name else {}
        return {"type": "document_url", "document_url": media.url, **name}
    return None


dialect = Dialect(
    name="mistral",
    title="Mistral",
    export_tools=export_tools,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(strict=True, images=True, note="Only models with vision see the pictures."),
    quirks=Quirks(strict="on_request", modes=frozenset({"auto", "none", "required"})),
    strips_nulls=True,
)
