"""`functionCall` parts of a Gemini response, a content or the chunks of a stream.

Calls come whole, except where Vertex streams their arguments in pieces, each with its JSON path.
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
    """The whole arguments; raises `ValueError` with a clause when the pieces do not fit."""
    root = copy.deepcopy(start)
    unfinished: dict[str, list[str]] = {}
    for piece in pieces:
        path = get_either(piece, "jsonPath", "json_path") if isinstance(piece, dict) else None
        if not isinstance(path, str):
            raise ValueError("one has no path")
        steps, value = _steps(path), _value(piece)
        texts = unfinished.pop(path, [])
        if texts and value is None and get_either(piece, "nullValue", "null_value") is None:
            value = ""  # the text continues, or has ended
        if isinstance(value, str):
            texts.append(value)
        goes_on = get_either(piece, "willContinue", "will_continue") is True
        if goes_on:
            unfinished[path] = texts if isinstance(value, str) else []
        if not goes_on or len(texts) < 2:  # joined once, at the end
            _put(root, steps, "".join(texts) if isinstance(value, str) else value)
    if unfinished:
        raise ValueError(f"{min(unfinished)} is not whole")
    return root


def get_either(fields: dict[str, Any], camel: str, snake: str) -> Any:
    """A field by its camelCase or snake_case name."""
    value = fields.get(camel)
    return fields.get(snake) if value is None else value


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
    """The value at this step, set when `is_new` or missing."""
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
    value = next((found for names in VALUES if (found := get_either(piece, *names)) is not None), None)
    return int(value) if isinstance(value, float) and value.is_integer() else value


NOT_RUN = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE")
"""Values of `finishReason` after which the calls do not count."""
RESPONSE = ("candidates", "promptFeedback", "prompt_feedback", "usageMetadata", "usage_metadata")
PART = ("functionCall", "function_call", "text", "thought", "inlineData", "inline_data", "executableCode")
_NO_MESSAGE = (
    "This is not a Gemini message: a response, a content with `parts`, a list of parts or of chunks is expected."
)


def read_calls(message: Any, known: Known) -> ParsedMessage:
    match message:
        case {"parts": list(parts)} if message.get("role") in ("model", None):
            return _parse_parts(parts)
        case {"role": "model"}:
            return ParsedMessage()
        case dict() if _is_response(message):
            return _parse_chunks([message])
        case dict() if _is_part(message):
            return _parse_parts([message])
        case [*chunks] if chunks and all(_is_response(chunk) for chunk in chunks):
            return _parse_chunks(chunks)
        case [*parts] if all(isinstance(part, dict) and "parts" not in part for part in parts):
            return _parse_parts([part if _is_part(part) else _as_part(part) for part in parts])
    raise Unreadable(_NO_MESSAGE)


def _parse_chunks(chunks: list[Any]) -> ParsedMessage:
    """Only the first candidate counts."""
    parts: list[Any] = []
    reason = message_id = None
    for chunk in chunks:
        message_id = message_id or get_either(chunk, "responseId", "response_id")
        candidates = chunk["candidates"] if isinstance(chunk.get("candidates"), list) else []
        first = [one for one in candidates if isinstance(one, dict) and one.get("index") in (0, None)][:1]
        for candidate in first:
            content = candidate.get("content")
            found = content.get("parts") if isinstance(content, dict) else None
            parts += found if isinstance(found, list) else []
            reason = get_either(candidate, "finishReason", "finish_reason") or reason
    parsed = _parse_parts(parts)
    return ParsedMessage(
        calls=() if reason in NOT_RUN else parsed.calls,
        text=parsed.text,
        message_id=message_id if isinstance(message_id, str) else None,
        is_response=True,
    )


def _parse_parts(parts: list[Any]) -> ParsedMessage:
    calls: list[_Call] = []
    texts: list[str] = []
    for part in parts:
        if not isinstance(part, dict):
            raise Unreadable(_NO_MESSAGE)
        call = get_either(part, "functionCall", "function_call")
        if isinstance(call, dict):
            _add_call(calls, call)
        elif isinstance(part.get("text"), str) and not part.get("thought"):
            texts.append(part["text"])
    return ParsedMessage(calls=tuple(call.finished() for call in calls), text="".join(texts))


def _add_call(calls: list["_Call"], fields: dict[str, Any]) -> None:
    """A piece without a name continues the call before it."""
    name = fields.get("name")
    last = calls[-1] if calls and calls[-1].is_open else None
    if last is not None and name in (None, "", last.name):
        last.add(fields)
    elif isinstance(name, str) and name:
        calls.append(_Call(name, fields))
    elif any(fields.values()):
        raise Unreadable("A functionCall needs a name.")


class _Call:
    """A call that may be streamed."""

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self.name = name
        self.is_open = False
        self._id: str | None = None
        self._args: Any = None
        self._pieces: list[Any] = []
        self.add(fields)

    def add(self, fields: dict[str, Any]) -> None:
        call_id, pieces = fields.get("id"), get_either(fields, "partialArgs", "partial_args")
        self._id = self._id or (call_id if isinstance(call_id, str) else None) or None
        self._args = self._args if fields.get("args") is None else fields["args"]
        self._pieces += pieces if isinstance(pieces, list) else []
        self.is_open = get_either(fields, "willContinue", "will_continue") is True

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


def _as_part(call: dict[str, Any]) -> dict[str, Any]:
    """A bare call as a part; other parts are unchanged."""
    return {"functionCall": call} if isinstance(call.get("name"), str) else call
