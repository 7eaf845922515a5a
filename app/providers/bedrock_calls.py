"""What a model on Bedrock said: `toolUse` blocks out of a response, a message or the events of a stream."""

import json
from typing import Any

from app.core.runs import Known, ModelCall, Reading, Unreadable
from app.providers import arguments

CUT = ("max_tokens", "model_context_window_exceeded", "malformed_tool_use", "malformed_model_output")
"""Ends that can come in the middle of a call, which is then the last block."""
EVENTS = ("messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata")
_NO_MESSAGE = "This is no message of Bedrock's: a response, a message, a list of blocks or of events is expected."


def read_calls(message: Any, known: Known) -> Reading:
    match message:
        case {"output": {"message": {"content": list(blocks)}}}:
            return _reading(blocks, message.get("stopReason"), message)
        case {"content": list(blocks)} if message.get("role", "assistant") == "assistant":
            return _reading(blocks, message.get("stopReason"))
        case {"toolUse": dict()}:
            return _reading([message], None)
        case [*events] if any(isinstance(event, dict) and event.keys() & set(EVENTS) for event in events):
            return _streamed(events)
        case [*blocks]:
            return _reading([_wrapped(block) for block in blocks], None)
    raise Unreadable(_NO_MESSAGE)


def _reading(
    blocks: list[Any],
    stopped: Any,
    response: dict[str, Any] | None = None,
    unfinished: frozenset[int] = frozenset(),
) -> Reading:
    """`unfinished` are the numbers of blocks that were cut off."""
    if not all(isinstance(block, dict) for block in blocks):
        raise Unreadable(_NO_MESSAGE)
    if stopped in CUT:
        unfinished |= {len(blocks) - 1}
    uses = [(number, block["toolUse"]) for number, block in enumerate(blocks) if _is_ours(block.get("toolUse"))]
    return Reading(
        calls=tuple(_call(use, is_cut=number in unfinished) for number, use in uses),
        text="".join(block["text"] for block in blocks if isinstance(block.get("text"), str)),
        message_id=_request_id(response),
        is_response=response is not None,
    )


def _call(use: dict[str, Any], *, is_cut: bool) -> ModelCall:
    call_id, name, given = use.get("toolUseId"), use.get("name"), use.get("input")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise Unreadable("A toolUse needs a toolUseId and a name.")
    if not is_cut:
        return ModelCall(id=call_id, name=name, **arguments.read(given))
    raw = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return ModelCall(id=call_id, name=name, **arguments.cut_short(raw))


def _streamed(events: list[Any]) -> Reading:
    """The message that the events of a stream build up. A block that never ends was cut off."""
    blocks: dict[int, _Block] = {}
    ended: set[int] = set()
    stopped = None
    for event in events:
        match event:
            case {"contentBlockStart": {"contentBlockIndex": int(index), "start": {"toolUse": dict(use)}}}:
                blocks[index] = _Block(use)
            case {"contentBlockDelta": {"contentBlockIndex": int(index), "delta": dict(delta)}}:
                blocks.setdefault(index, _Block()).add(delta)
            case {"contentBlockStop": {"contentBlockIndex": int(index)}}:
                ended.add(index)
            case {"messageStop": {"stopReason": str(reason)}}:
                stopped = reason
    places = sorted(blocks)
    unfinished = frozenset(number for number, index in enumerate(places) if index not in ended)
    reading = _reading([blocks[index].built() for index in places], stopped, None, unfinished)
    return Reading(calls=reading.calls, text=reading.text, is_response=True)


class _Block:
    """A block that comes in pieces: of a call, or of text."""

    def __init__(self, use: dict[str, Any] | None = None) -> None:
        self._use = use
        self._pieces: list[str] = []

    def add(self, delta: dict[str, Any]) -> None:
        match delta:
            case {"toolUse": {"input": str(piece)}} if self._use is not None:
                self._pieces.append(piece)
            case {"text": str(piece)} if self._use is None:
                self._pieces.append(piece)

    def built(self) -> dict[str, Any]:
        said = "".join(self._pieces)
        return {"text": said} if self._use is None else {"toolUse": self._use | {"input": said}}


def _is_ours(use: Any) -> bool:
    """One that the provider runs itself says so."""
    return isinstance(use, dict) and use.get("type") != "server_tool_use"


def _wrapped(block: Any) -> Any:
    """A call without the block around it becomes one; blocks stay as they are."""
    return {"toolUse": block} if isinstance(block, dict) and "toolUseId" in block else block


def _request_id(response: dict[str, Any] | None) -> str | None:
    match response:
        case {"ResponseMetadata": {"RequestId": str(request_id)}}:
            return request_id
    return None
