"""The assistant's text of a message in any form: a string, a message, a response, or the chunks of a stream.

Messages of users and tools are never searched for calls.
"""

from typing import Any, NamedTuple

from app.core.runs import Unreadable

ASSISTANT_ROLES = (None, "assistant", "model", "ai")
TEXT_TYPES = ("text", "output_text")
EXPECTED = (
    "Send the model's text as a string, as {text}, as the assistant's message or the whole response, or as the list of "
    "chunks of a stream."
)


class MessageText(NamedTuple):
    text: str
    message_id: str | None = None
    is_response: bool = False


def message_text(message: Any) -> MessageText:
    """The text of a message. Raises `Unreadable` for anything else."""
    if isinstance(message, str):
        return MessageText(message)
    if isinstance(message, list):
        ids = filter(None, map(_id_of, message))
        return MessageText("".join(map(_of_chunk, message)), next(ids, None))
    if not isinstance(message, dict):
        raise Unreadable(EXPECTED)
    text, is_response = _of_dict(message)
    message_id = message.get("id")
    return MessageText(text, message_id if isinstance(message_id, str) else None, is_response)


def _of_dict(message: dict[str, Any]) -> tuple[str, bool]:
    """The text, and whether it is a whole response: OpenAI's, Ollama's of a chat or of a prompt, Anthropic's."""
    _require_assistant(message)
    if isinstance(message.get("choices"), list):
        return _of_choices(message["choices"]), True
    if isinstance(message.get("message"), dict):
        return _of_message(message["message"]), True
    if isinstance(message.get("response"), str):
        return message["response"], True
    if "content" in message:
        return _of_message(message), message.get("type") == "message"
    if isinstance(message.get("text"), str):
        return message["text"], False
    if "role" in message or "tool_calls" in message:
        return "", False
    raise Unreadable(EXPECTED)


def _of_choices(choices: list[Any]) -> str:
    """The first choice with a text."""
    for choice in choices:
        if not isinstance(choice, dict):
            raise Unreadable(EXPECTED)
        message = choice.get("message")
        if text := _of_message(message) if isinstance(message, dict) else _of_content(choice.get("text")):
            return text
    return ""


def _of_message(message: dict[str, Any]) -> str:
    _require_assistant(message)
    return _of_content(message.get("content"))


def _require_assistant(message: dict[str, Any]) -> None:
    if message.get("role") not in ASSISTANT_ROLES:
        raise Unreadable("Only assistant messages are searched for calls, and this message is not one.")


def _of_content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Unreadable("The content of the message is neither a text nor a list of parts.")
    return "".join(_of_part(part) for part in content)


def _of_part(part: Any) -> str:
    """A part's text; empty for other kinds, such as thinking and images."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise Unreadable("The content of the message has a part that is neither a text nor an object.")
    text = part.get("text")
    return text if part.get("type") in TEXT_TYPES and isinstance(text, str) else ""


def _id_of(chunk: Any) -> str | None:
    match chunk:
        case {"choices": list(), "id": str(message_id)} | {"type": "message_start", "message": {"id": str(message_id)}}:
            return message_id
    return None


def _of_chunk(item: Any) -> str:
    match item:
        case str():
            return item
        case {"choices": list(choices)}:
            # What a chunk adds to the first choice.
            deltas = [choice.get("delta") for choice in choices if isinstance(choice, dict) and not choice.get("index")]
            return "".join(_of_message(delta) for delta in deltas if isinstance(delta, dict))
        case {"message": dict(message), "done": bool()}:
            return _of_message(message)
        case {"response": str(text), "done": bool()}:
            return text
        case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}}:
            return text
        case {"type": "content_block_start", "content_block": {"type": "text", "text": str(text)}}:
            return text
        case {"type": str()} if "role" not in item:
            return _of_part(item)
        case _:
            raise Unreadable(EXPECTED)
