"""What Gemini said: `functionCall` parts out of a response, its content or the chunks of a stream.

Calls come whole, except where Vertex streams their arguments: then each piece says at which path it belongs.
"""

import json
from typing import Any

from app.core.runs import Known, ModelCall, Reading, Unreadable
from app.providers import arguments
from app.providers.arguments import Arguments
from app.providers.gemini_pieces import assemble, either

NOT_RUN = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE")
"""Ends after which the provider itself takes back what was called."""
RESPONSE = ("candidates", "promptFeedback", "prompt_feedback", "usageMetadata", "usage_metadata")
PART = ("functionCall", "function_call", "text", "thought", "inlineData", "inline_data", "executableCode")
_NO_MESSAGE = (
    "This is no message of Gemini's: a response, a content with `parts`, a list of parts or of chunks is expected."
)


def read_calls(message: Any, known: Known) -> Reading:
    match message:
        case {"parts": list(parts)} if message.get("role") in ("model", None):
            return _reading(parts)
        case {"role": "model"}:
            return Reading()
        case dict() if _is_response(message):
            return _responded([message])
        case dict() if _is_part(message):
            return _reading([message])
        case [*chunks] if chunks and all(_is_response(chunk) for chunk in chunks):
            return _responded(chunks)
        case [*parts] if all(isinstance(part, dict) and "parts" not in part for part in parts):
            return _reading([part if _is_part(part) else _bare(part) for part in parts])
    raise Unreadable(_NO_MESSAGE)


def _responded(chunks: list[Any]) -> Reading:
    """Of several candidates only the first is the answer; a stream gives it piece by piece."""
    parts: list[Any] = []
    reason = message_id = None
    for chunk in chunks:
        message_id = message_id or either(chunk, "responseId", "response_id")
        for candidate in _first(chunk.get("candidates")):
            content = candidate.get("content")
            found = content.get("parts") if isinstance(content, dict) else None
            parts += found if isinstance(found, list) else []
            reason = either(candidate, "finishReason", "finish_reason") or reason
    reading = _reading(parts)
    return Reading(
        calls=() if reason in NOT_RUN else reading.calls,
        text=reading.text,
        message_id=message_id if isinstance(message_id, str) else None,
        is_response=True,
    )


def _first(candidates: Any) -> list[dict[str, Any]]:
    listed = candidates if isinstance(candidates, list) else []
    return [one for one in listed if isinstance(one, dict) and one.get("index") in (0, None)][:1]


def _reading(parts: list[Any]) -> Reading:
    calls: list[_Call] = []
    texts: list[str] = []
    for part in parts:
        if not isinstance(part, dict):
            raise Unreadable(_NO_MESSAGE)
        call = either(part, "functionCall", "function_call")
        if isinstance(call, dict):
            _take(calls, call)
        elif isinstance(part.get("text"), str) and not part.get("thought"):
            texts.append(part["text"])
    return Reading(calls=tuple(call.finished() for call in calls), text="".join(texts))


def _take(calls: list["_Call"], given: dict[str, Any]) -> None:
    """A piece without a name belongs to the call before it, as long as that is not over."""
    name = given.get("name")
    last = calls[-1] if calls and calls[-1].is_open else None
    if last is not None and name in (None, "", last.name):
        last.go_on(given)
    elif isinstance(name, str) and name:
        calls.append(_Call(name, given))
    elif any(given.values()):
        raise Unreadable("A functionCall needs a name.")


class _Call:
    """A call that may come in pieces."""

    def __init__(self, name: str, given: dict[str, Any]) -> None:
        self.name = name
        self.is_open = False
        self._id: str | None = None
        self._args: Any = None
        self._pieces: list[Any] = []
        self.go_on(given)

    def go_on(self, given: dict[str, Any]) -> None:
        call_id, pieces = given.get("id"), either(given, "partialArgs", "partial_args")
        self._id = self._id or (call_id if isinstance(call_id, str) else None) or None
        self._args = self._args if given.get("args") is None else given["args"]
        self._pieces += pieces if isinstance(pieces, list) else []
        self.is_open = either(given, "willContinue", "will_continue") is True

    def finished(self) -> ModelCall:
        return ModelCall(id=self._id, name=self.name, **self._arguments())

    def _arguments(self) -> Arguments:
        if self.is_open:
            return arguments.cut_short(json.dumps(self._pieces or self._args, ensure_ascii=False))
        if not self._pieces:
            return arguments.read(self._args)
        try:
            return {"arguments": assemble(self._args if isinstance(self._args, dict) else {}, self._pieces)}
        except ValueError as error:
            wrong = f"The pieces of the arguments do not fit together: {error}."
            return {"arguments_error": wrong, "raw_arguments": json.dumps(self._pieces, ensure_ascii=False)}


def _is_response(value: Any) -> bool:
    return isinstance(value, dict) and any(name in value for name in RESPONSE)


def _is_part(value: dict[str, Any]) -> bool:
    return any(name in value for name in PART)


def _bare(call: dict[str, Any]) -> dict[str, Any]:
    """A call without the part around it; other parts are left as they are."""
    return {"functionCall": call} if isinstance(call.get("name"), str) else call
