"""What Gemini said: `functionCall` parts out of a response, its content or the chunks of a stream.

Calls come whole, except where Vertex streams their arguments: then each piece says at which path it belongs.

Arguments that Vertex streams in pieces, each with the path at which it belongs.
"""

import copy
import json
import re
from itertools import pairwise
from typing import Any

from app.core.runs import Known, ModelCall, ParsedMessage, Unreadable
from app.providers import call_arguments
from app.providers.call_arguments import Arguments

VALUES = (("stringValue", "string_value"), ("numberValue", "number_value"), ("boolValue", "bool_value"))
_STEP = re.compile(r"""\.([A-Za-z_][\w-]*)|\[(\d{1,6})\]|\['([^']*)'\]|\["([^"]*)"\]""")


def assemble(start: dict[str, Any], pieces: list[Any]) -> dict[str, Any]:
    """The arguments as a whole. Raises `ValueError`, with a clause that says what does not fit."""
    root = copy.deepcopy(start)
    unfinished: dict[str, list[str]] = {}
    for piece in pieces:
        path = either(piece, "jsonPath", "json_path") if isinstance(piece, dict) else None
        if not isinstance(path, str):
            raise ValueError("one has no path")
        steps, value = _steps(path), _value(piece)
        texts = unfinished.pop(path, [])
        if texts and value is None and either(piece, "nullValue", "null_value") is None:
            value = ""  # it only says that the text goes on, or has ended
        if isinstance(value, str):
            texts.append(value)
        goes_on = either(piece, "willContinue", "will_continue") is True
        if goes_on:
            unfinished[path] = texts if isinstance(value, str) else []
        if not goes_on or len(texts) < 2:  # what goes on is put together at its end, not again and again
            _put(root, steps, "".join(texts) if isinstance(value, str) else value)
    if unfinished:
        raise ValueError(f"{min(unfinished)} is not whole")
    return root


def either(given: dict[str, Any], camel: str, snake: str) -> Any:
    """A field by either of the names it goes by in JSON."""
    found = given.get(camel)
    return given.get(snake) if found is None else found


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    place = 1
    while path.startswith("$") and (found := _STEP.match(path, place)):
        name, index, *quoted = found.groups()
        steps.append(int(index) if index else name or quoted[0] or quoted[1] or "")
        place = found.end()
    if place != len(path) or not steps:
        raise ValueError(f"{path[:80]} is no path that is known here")
    return steps


def _put(root: dict[str, Any], steps: list[str | int], value: Any) -> None:
    place: Any = root
    for step, following in pairwise(steps):
        place = _set(place, step, [] if isinstance(following, int) else {}, is_new=False)
    _set(place, steps[-1], value, is_new=True)


def _set(place: Any, step: str | int, value: Any, *, is_new: bool) -> Any:
    """What stands there now: the value, or what was there before when nothing new is meant."""
    if isinstance(place, dict) and isinstance(step, str):
        if is_new or step not in place:
            place[step] = value
        return place[step]
    if isinstance(place, list) and isinstance(step, int) and step <= len(place):
        if step == len(place):
            place.append(value)
        elif is_new:
            place[step] = value
        return place[step]
    raise ValueError(f"there is no place {step!r}")


def _value(piece: dict[str, Any]) -> Any:
    value = next((found for names in VALUES if (found := either(piece, *names)) is not None), None)
    return int(value) if isinstance(value, float) and value.is_integer() else value


NOT_RUN = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE")
"""Ends after which the provider itself takes back what was called."""
RESPONSE = ("candidates", "promptFeedback", "prompt_feedback", "usageMetadata", "usage_metadata")
PART = ("functionCall", "function_call", "text", "thought", "inlineData", "inline_data", "executableCode")
_NO_MESSAGE = (
    "This is no message of Gemini's: a response, a content with `parts`, a list of parts or of chunks is expected."
)


def read_calls(message: Any, known: Known) -> ParsedMessage:
    match message:
        case {"parts": list(parts)} if message.get("role") in ("model", None):
            return _reading(parts)
        case {"role": "model"}:
            return ParsedMessage()
        case dict() if _is_response(message):
            return _responded([message])
        case dict() if _is_part(message):
            return _reading([message])
        case [*chunks] if chunks and all(_is_response(chunk) for chunk in chunks):
            return _responded(chunks)
        case [*parts] if all(isinstance(part, dict) and "parts" not in part for part in parts):
            return _reading([part if _is_part(part) else _bare(part) for part in parts])
    raise Unreadable(_NO_MESSAGE)


def _responded(chunks: list[Any]) -> ParsedMessage:
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
    return ParsedMessage(
        calls=() if reason in NOT_RUN else reading.calls,
        text=reading.text,
        message_id=message_id if isinstance(message_id, str) else None,
        is_response=True,
    )


def _first(candidates: Any) -> list[dict[str, Any]]:
    listed = candidates if isinstance(candidates, list) else []
    return [one for one in listed if isinstance(one, dict) and one.get("index") in (0, None)][:1]


def _reading(parts: list[Any]) -> ParsedMessage:
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
    return ParsedMessage(calls=tuple(call.finished() for call in calls), text="".join(texts))


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
            return call_arguments.incomplete(json.dumps(self._pieces or self._args, ensure_ascii=False))
        if not self._pieces:
            return call_arguments.parse(self._args)
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
