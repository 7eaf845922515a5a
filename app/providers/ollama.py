"""Ollama's own `/api/chat`: arguments are objects, calls have no ids and are answered in their order."""

from typing import Any

from app.core.runs import Known, ParsedMessage, Reply, Unreadable
from app.providers import reply_content
from app.providers.chat import results, tools
from app.providers.chat.calls import TOO_DEEP, is_cut, parse, parse_message
from app.providers.dialects import Dialect, Quirks, Supports, Wire

NOTE = "Post the tools as JSON: the typed Python client drops unknown schema keywords. Only vision models see images."


def read_calls(message: Any, known: Known) -> ParsedMessage:
    pieces = message if isinstance(message, list) else [message]
    if not any(isinstance(piece, dict) and "message" in piece for piece in pieces):
        return parse(message)
    messages = [_parse_piece(piece) for piece in pieces]
    calls = tuple(call for message in messages for call in message.calls)
    return ParsedMessage(calls=calls, text="".join(message.text for message in messages), is_response=True)


def _parse_piece(piece: Any) -> ParsedMessage:
    """A response, or one line of a stream, which has whole calls."""
    inner = piece.get("message", {}) if isinstance(piece, dict) else None
    if not isinstance(inner, dict):
        raise Unreadable("The message of a response is not an object.")
    try:
        return parse_message(inner, is_cut=is_cut(piece.get("done_reason")))
    except RecursionError as error:
        raise Unreadable(TOO_DEEP) from error


def _answer(reply: Reply) -> Wire:
    """Images are base64 only, without a type or URL."""
    images = [media for media in reply_content.images_of(reply) if media.mime in results.IMAGE_TYPES]
    placeholders = [reply_content.placeholder(media) for media in reply_content.media_of(reply) if media not in images]
    text = "\n".join(line for line in (reply_content.text_of(reply), *placeholders) if line)
    if not images:
        return {"role": "tool", "tool_name": reply.call.name, "content": text or reply_content.NO_OUTPUT}
    content = text or f"[images attached: {len(images)}]"
    data = [media.data for media in images]
    return {"role": "tool", "tool_name": reply.call.name, "content": content, "images": data}


dialect = Dialect(
    name="ollama",
    title="Ollama",
    export_tools=tools.export,
    fill_request=tools.fill,
    read_calls=read_calls,
    write_results=lambda replies: [_answer(reply) for reply in replies],
    supports=Supports(images=True, note=NOTE),
    quirks=Quirks(modes=frozenset(), has_parallel_choice=False),
    numbers_calls=True,
)
