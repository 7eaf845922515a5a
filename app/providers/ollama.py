"""Ollama's own `/api/chat`: arguments are objects, calls have no ids and are answered in their order."""

from collections.abc import Sequence
from typing import Any

from app.core.runs import Known, Reading, Reply, Unreadable
from app.providers import chat_calls, chat_choices, chat_results, chat_tools, contents
from app.providers.dialects import Dialect, Quirks, Supports, Wire

NOTE = (
    "Post the tools as JSON: the typed Python client drops what it does not know of a schema. "
    "Only models with vision see the pictures."
)


def read_calls(message: Any, known: Known) -> Reading:
    pieces = message if isinstance(message, list) else [message]
    if not any(isinstance(piece, dict) and "message" in piece for piece in pieces):
        return chat_calls.read(message)
    readings = [_piece(piece) for piece in pieces]
    calls = tuple(call for reading in readings for call in reading.calls)
    return Reading(calls=calls, text="".join(reading.text for reading in readings), is_response=True)


def _piece(piece: Any) -> Reading:
    """A response, or one line of a stream; a call is never spread over several."""
    inner = piece.get("message", {}) if isinstance(piece, dict) else None
    if not isinstance(inner, dict):
        raise Unreadable("A message of a response is no object.")
    try:
        return chat_calls.of_message(inner, is_cut=chat_calls.is_cut(piece.get("done_reason")))
    except RecursionError as error:
        raise Unreadable(chat_calls.TOO_DEEP) from error


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    return [_answer(reply) for reply in replies]


def _answer(reply: Reply) -> Wire:
    """Pictures go along as they are, without a type and without an address."""
    shown = [media for media in contents.images_of(reply) if media.mime in chat_results.PICTURES]
    kept = [contents.placeholder(media) for media in contents.media_of(reply) if media not in shown]
    text = "\n".join(line for line in (contents.text_of(reply), *kept) if line)
    if not shown:
        return {"role": "tool", "tool_name": reply.call.name, "content": text or contents.NOTHING}
    content = text or f"[images attached: {len(shown)}]"
    images = [media.data for media in shown]
    return {"role": "tool", "tool_name": reply.call.name, "content": content, "images": images}


dialect = Dialect(
    name="ollama",
    title="Ollama",
    export_tools=chat_tools.export,
    fill_request=chat_choices.fill,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(images=True, note=NOTE),
    quirks=Quirks(modes=frozenset(), says_parallel=False),
    numbers_calls=True,
)
