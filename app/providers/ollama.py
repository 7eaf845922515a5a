"""Ollama's own `/api/chat`: arguments are objects, calls have no ids and are answered in their order."""

from collections.abc import Sequence
from typing import Any

from app.core.runs import Known, ParsedMessage, Reply, Unreadable
from app.providers import reply_content
from app.providers.chat import results, tools
from app.providers.chat.calls import TOO_DEEP, is_cut, of_message, read
from app.providers.dialects import Dialect, Quirks, Supports, Wire

NOTE = (
    "Post the tools as JSON: the typed Python client drops what it does not know of a schema. "
    "Only models with vision see the pictures."
)


def read_calls(message: Any, known: Known) -> ParsedMessage:
    pieces = message if isinstance(message, list) else [message]
    if not any(isinstance(piece, dict) and "message" in piece for piece in pieces):
        return read(message)
    readings = [_piece(piece) for piece in pieces]
    calls = tuple(call for reading in readings for call in reading.calls)
    return ParsedMessage(calls=calls, text="".join(reading.text for reading in readings), is_response=True)


def _piece(piece: Any) -> ParsedMessage:
    """A response, or one line of a stream; a call is never spread over several."""
    inner = piece.get("message", {}) if isinstance(piece, dict) else None
    if not isinstance(inner, dict):
        raise Unreadable("A message of a response is no object.")
    try:
        return of_message(inner, is_cut=is_cut(piece.get("done_reason")))
    except RecursionError as error:
        raise Unreadable(TOO_DEEP) from error


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    return [_answer(reply) for reply in replies]


def _answer(reply: Reply) -> Wire:
    """Pictures go along as they are, without a type and without an address."""
    shown = [media for media in reply_content.images_of(reply) if media.mime in results.PICTURES]
    kept = [reply_content.placeholder(media) for media in reply_content.media_of(reply) if media not in shown]
    text = "\n".join(line for line in (reply_content.text_of(reply), *kept) if line)
    if not shown:
        return {"role": "tool", "tool_name": reply.call.name, "content": text or reply_content.NOTHING}
    content = text or f"[images attached: {len(shown)}]"
    images = [media.data for media in shown]
    return {"role": "tool", "tool_name": reply.call.name, "content": content, "images": images}


dialect = Dialect(
    name="ollama",
    title="Ollama",
    export_tools=tools.export,
    fill_request=tools.fill,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(images=True, note=NOTE),
    quirks=Quirks(modes=frozenset(), says_parallel=False),
    numbers_calls=True,
)
