"""The chunks of a Chat Completions stream, joined to a response.

Not all providers follow the specification: an index may be missing (the chunk continues the last call, or that of the
same id), ids and names may be repeated in every chunk, a new id may use an old index, and a call may come whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.core.runs import Unreadable


class Fragments:
    """Fragments of a JSON object. Whether it is closed is known without rescanning it for every fragment."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._scanned = 0
        self._depth = 0
        self._is_closed = False
        self._is_text = False
        self._is_escaped = False

    def add(self, piece: str) -> None:
        self._pieces.append(piece)

    def joined(self) -> str:
        return "".join(self._pieces)

    def is_whole(self) -> bool:
        for piece in self._pieces[self._scanned :]:
            for character in piece:
                if self._is_escaped:
                    self._is_escaped = False
                elif self._is_text:
                    self._is_escaped = character == "\\"
                    self._is_text = character != '"'
                elif character == '"':
                    self._is_text = True
                elif character in "{[":
                    self._depth += 1
                elif character in "}]":
                    self._depth -= 1
                    self._is_closed = self._depth == 0
        self._scanned = len(self._pieces)
        return self._is_closed


NO_ID = (None, "", "null")
"""Ids of chunks that continue a call."""


@dataclass(slots=True)
class _Call:
    id: str | None = None
    kind: str = "function"
    name: str | None = None
    text: Fragments = field(default_factory=Fragments)
    whole: dict[str, Any] | None = None

    def view(self) -> dict[str, Any]:
        if self.kind == "custom":
            return {"id": self.id, "type": "custom", "custom": {"name": self.name, "input": self.text.joined()}}
        arguments = self.text.joined() if self.whole is None else self.whole
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    by_index: dict[int, _Call] = field(default_factory=dict)
    by_id: dict[str, _Call] = field(default_factory=dict)
    legacy_call: _Call | None = None
    finish: str | None = None

    def view(self, finish: str | None) -> dict[str, Any]:
        message: dict[str, Any] = {
            "content": "".join(self.texts),
            "refusal": "".join(self.refusals),
            "tool_calls": [call.view() for call in self.calls],
        }
        if self.legacy_call is not None:
            message["function_call"] = self.legacy_call.view()["function"]
        return {"message": message, "finish_reason": finish}


def is_stream(chunks: Sequence[Any]) -> bool:
    """Whether these are chunks: by their `object`, or by deltas, which no response has."""
    return any(
        chunk.get("object") == "chat.completion.chunk"
        or any(isinstance(choice, dict) and "delta" in choice for choice in _choices(chunk))
        for chunk in map(_chunk, chunks)
    )


def to_response(chunks: Sequence[Any]) -> dict[str, Any]:
    """The response of all chunks. Without a `finish_reason` it was cut off."""
    choices: dict[int, _Choice] = {}
    ids: list[str] = []
    for chunk in map(_chunk, chunks):
        if isinstance(chunk.get("id"), str):
            ids.append(chunk["id"])
        for choice in _choices(chunk):
            if not isinstance(choice, dict):
                raise Unreadable("A choice is not an object.")
            index = choice.get("index")
            _add_choice(choices.setdefault(index if isinstance(index, int) else 0, _Choice()), choice)
    is_finished = any(choice.finish is not None for choice in choices.values())
    finished = [choice.view(choice.finish if is_finished else "length") for choice in choices.values()]
    return {"id": next(filter(None, ids), None), "choices": finished}


def _chunk(event: Any) -> dict[str, Any]:
    """A chunk, or the chunk in the `data` of an SSE event; empty for anything else."""
    inner = event.get("data", event) if isinstance(event, dict) else None
    return inner if isinstance(inner, dict) else {}


def _choices(chunk: dict[str, Any]) -> list[Any]:
    return chunk["choices"] if isinstance(chunk.get("choices"), list) else []


def _add_choice(into: _Choice, choice: dict[str, Any]) -> None:
    reason = choice.get("finish_reason")
    if isinstance(reason, str):
        into.finish = reason or into.finish or ""
    delta = choice.get("delta", choice.get("message"))
    if not isinstance(delta, dict):
        return
    into.texts.append(_text(delta.get("content")))
    into.refusals.append(_text(delta.get("refusal")))
    if isinstance(delta.get("function_call"), dict):
        into.legacy_call = into.legacy_call or _Call()
        _add_fragment(into.legacy_call, {"function": delta["function_call"]})
    fragments = delta.get("tool_calls")
    for fragment in fragments if isinstance(fragments, list) else []:
        if not isinstance(fragment, dict):
            raise Unreadable("A fragment of a call is not an object.")
        _add_fragment(_call_for(into, fragment), fragment)


def _call_for(choice: _Choice, fragment: dict[str, Any]) -> _Call:
    """The call that a fragment continues, or a new one."""
    index, call_id = fragment.get("index"), _id(fragment)
    if isinstance(index, int):
        call = choice.by_index.get(index)
    elif call_id is not None:
        call = choice.by_id.get(call_id)
    else:
        call = choice.calls[-1] if choice.calls else None
    if call is None or _is_new(call, fragment):
        call = _Call()
        choice.calls.append(call)
    if isinstance(index, int):
        choice.by_index[index] = call
    if call_id is not None:
        choice.by_id[call_id] = call
    return call


def _is_new(call: _Call, fragment: dict[str, Any]) -> bool:
    """By another id; without one, by a name after the call was complete."""
    call_id = _id(fragment)
    if call_id is not None:
        return call.id not in (*NO_ID, call_id)
    inner = _inner(fragment)
    name, arguments = inner.get("name"), inner.get("arguments")
    if not name or not call.name:
        return False
    is_other = name != call.name
    if is_other and not isinstance(fragment.get("index"), int):
        return True
    is_start = isinstance(arguments, dict) or (isinstance(arguments, str) and arguments.lstrip().startswith("{"))
    return (is_other or is_start) and (call.whole is not None or call.text.is_whole())


def _add_fragment(call: _Call, fragment: dict[str, Any]) -> None:
    """Repeated ids and names are the same call's."""
    inner = _inner(fragment)
    if isinstance(fragment.get("id"), str):
        call.id = _id(fragment) or call.id or fragment["id"]
    if isinstance(inner.get("name"), str):
        call.name = inner["name"] or call.name
    if isinstance(fragment.get("custom"), dict):
        call.kind = "custom"
    piece = inner.get("input" if call.kind == "custom" else "arguments")
    if isinstance(piece, dict):
        call.whole = piece
    elif isinstance(piece, str):
        call.text.add(piece)


def _id(fragment: dict[str, Any]) -> str | None:
    call_id = fragment.get("id")
    return call_id if isinstance(call_id, str) and call_id not in NO_ID else None


def _inner(fragment: dict[str, Any]) -> dict[str, Any]:
    inner = fragment.get("custom") or fragment.get("function")
    return inner if isinstance(inner, dict) else {}


def _text(content: Any) -> str:
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))
