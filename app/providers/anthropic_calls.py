"""What Claude said: `tool_use` blocks out of a message, its content or the events of a stream."""

import json
from typing import Any

from app.core.runs import Known, ModelCall, Reading, Unreadable
from app.providers import arguments
from app.providers.arguments import Arguments

CUT = ("max_tokens", "model_context_window_exceeded", "refusal")
"""Ends that can come in the middle of a call, which is then the last block."""
PAUSED = "pause_turn"
"""The provider goes on itself when it is sent the message back; until then there is nothing to run."""
INVALID = "INVALID_JSON"
"""Where a client keeps arguments that were no JSON, because the message must have an object."""
EVENTS = ("message_", "content_block_", "ping", "error")
"""How the types of a stream's events begin."""
_NO_MESSAGE = "This is no message of Anthropic's: an object with `content`, a list of blocks or of events is expected."


def read_calls(message: Any, known: Known) -> Reading:
    match message:
        case {"content": list() | str() as content} if message.get("role", "assistant") == "assistant":
            return _reading([_text_block(content)] if isinstance(content, str) else content, message)
        case {"type": "tool_use"}:
            return _reading([message], {})
        case [*events] if any((_type_of(event) or "").startswith(EVENTS) for event in events):
            return _streamed(events)
        case [*blocks]:
            return _reading(blocks, {})
    raise Unreadable(_NO_MESSAGE)


def _reading(blocks: list[Any], message: dict[str, Any], unfinished: frozenset[int] = frozenset()) -> Reading:
    """`unfinished` are the numbers of blocks that were cut off."""
    if any(_type_of(block) is None for block in blocks):
        raise Unreadable(_NO_MESSAGE)
    stopped, message_id = message.get("stop_reason"), message.get("id")
    if stopped in CUT:
        unfinished |= {len(blocks) - 1}
    return Reading(
        calls=tuple(
            _call(block, is_cut=number in unfinished)
            for number, block in enumerate(blocks)
            if block["type"] == "tool_use" and stopped != PAUSED
        ),
        text="".join(_text(block) for block in blocks),
        message_id=message_id if isinstance(message_id, str) else None,
        is_response=message.get("type") == "message" and isinstance(message_id, str),
    )


def _call(block: dict[str, Any], *, is_cut: bool) -> ModelCall:
    call_id, name = block.get("id"), block.get("name")
    caller, toolset = block.get("caller"), block.get("toolset_name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise Unreadable("A tool_use block needs an id and a name.")
    return ModelCall(
        id=call_id,
        name=name,
        caller=caller if isinstance(caller, dict) else None,
        toolset=toolset if isinstance(toolset, str) else None,
        **_arguments(block.get("input"), is_cut=is_cut),
    )


def _arguments(given: Any, *, is_cut: bool) -> Arguments:
    if isinstance(given, dict) and given.keys() == {INVALID}:
        given = given[INVALID]
    if not is_cut:
        return arguments.read(given)
    return arguments.cut_short(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))


def _streamed(events: list[Any]) -> Reading:
    """The message that the events of a stream build up. A block that never ends was cut off."""
    message: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    said: dict[int, list[str]] = {}
    ended: set[int] = set()
    for event in events:
        match event:
            case {"type": "message_start", "message": dict(start)}:
                message |= start
            case {"type": "message_delta", "delta": {"stop_reason": str(reason)}}:
                message["stop_reason"] = reason
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                blocks[index], said[index] = block, []
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)} if index in blocks:
                said[index].append(_piece(delta))
            case {"type": "content_block_stop", "index": int(index)}:
                ended.add(index)
    places = sorted(blocks)
    unfinished = frozenset(number for number, index in enumerate(places) if index not in ended)
    built = [_built(blocks[index], "".join(said[index])) for index in places]
    return _reading(built, message, unfinished)


def _piece(delta: dict[str, Any]) -> str:
    match delta:
        case {"type": "input_json_delta", "partial_json": str(piece)} | {"type": "text_delta", "text": str(piece)}:
            return piece
    return ""


def _built(block: dict[str, Any], said: str) -> dict[str, Any]:
    """A block with what its deltas said; without any, it is as it began."""
    match _type_of(block):
        case "tool_use" if said:
            return block | {"input": said}
        case "text":
            return block | {"text": _text(block) + said}
    return block


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _text(block: dict[str, Any]) -> str:
    text = block.get("text")
    return text if block["type"] == "text" and isinstance(text, str) else ""


def _type_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None
