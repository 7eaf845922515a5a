"""The events of a Responses stream, joined to a response."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.core.runs import Unreadable
from app.providers.dialects import Wire

ENDS = ("response.completed", "response.incomplete", "response.failed")
PIECES = {
    "response.function_call_arguments.delta": ("arguments", "delta"),
    "response.custom_tool_call_input.delta": ("input", "delta"),
    "response.output_text.delta": ("text", "delta"),
}
WHOLES = {
    "response.function_call_arguments.done": ("arguments", "arguments"),
    "response.custom_tool_call_input.done": ("input", "input"),
    "response.output_text.done": ("text", "text"),
}
"""By event type, the field of the item and the field of the event."""


@dataclass(slots=True)
class _Slot:
    """A streamed item: `is_done` after its `done` event, `is_whole` when its text or arguments are complete."""

    item: Wire
    is_done: bool = False
    is_whole: bool = False
    pieces: dict[str, list[str]] = field(default_factory=dict)


def is_stream(values: Sequence[Any]) -> bool:
    """Whether these are stream events, not items."""
    types = (value.get("type") for value in values if isinstance(value, dict))
    return any(isinstance(kind, str) and kind.startswith("response.") for kind in types)


def response_of(events: Sequence[Any]) -> tuple[Wire, bool]:
    """The response of a stream, and whether the stream was complete.

    The last event's response counts. If it has no items, they come from the item events; an item without its end is
    marked incomplete.
    """
    slots, end, response = _Slots(), None, dict[str, Any]()
    for event in events:
        if not isinstance(event, dict):
            raise Unreadable("An event of the stream is not an object.")
        if isinstance(event.get("response"), dict):
            response = event["response"]
        if event.get("type") in ENDS:
            end = event["type"]
        slots.add_event(event)
    status = {"status": None if end is None else end.removeprefix("response.")}
    output = response.get("output")
    if not isinstance(output, list) or not output:
        output = slots.items(is_complete=end == ENDS[0])
    return response | status | {"output": output}, end is not None


class _Slots:
    """The items of a stream, by output index or id."""

    def __init__(self) -> None:
        self._slots: list[tuple[int | None, _Slot]] = []
        self._by_key: dict[int | str, _Slot] = {}

    def add_event(self, event: Wire) -> None:
        match event.get("type"):
            case "response.output_item.added" | "response.output_item.done" as kind:
                if isinstance(event.get("item"), dict):
                    self._put(event, event["item"], kind.endswith("done"))
            case str() as kind if kind in PIECES:
                part, where = PIECES[kind]
                self._add(event, part, event.get(where), is_whole=False)
            case str() as kind if kind in WHOLES:
                part, where = WHOLES[kind]
                self._add(event, part, event.get(where), is_whole=True)

    def items(self, *, is_complete: bool) -> list[Wire]:
        """By output index; items without one come last."""
        ordered = sorted(self._slots, key=lambda placed: (placed[0] is None, placed[0] or 0))
        return [_to_item(slot, is_complete) for _, slot in ordered]

    def _put(self, event: Wire, item: Wire, is_done: bool) -> None:
        keys = _keys(event, item.get("id"))
        slot = self._find(keys)
        if slot is None or _is_other(slot.item, item):
            slot = _Slot(item)
            self._slots.append((next((key for key in keys if isinstance(key, int)), None), slot))
        if is_done or not slot.is_done:
            slot.item, slot.is_done = item, is_done
        self._by_key |= dict.fromkeys(keys, slot)

    def _add(self, event: Wire, part: str, text: Any, *, is_whole: bool) -> None:
        slot = self._find(_keys(event, event.get("item_id")))
        if slot is None or not isinstance(text, str):
            return
        if is_whole:
            slot.pieces[part] = [text]
            slot.is_whole = True
        else:
            slot.pieces.setdefault(part, []).append(text)

    def _find(self, keys: list[int | str]) -> _Slot | None:
        return next((self._by_key[key] for key in keys if key in self._by_key), None)


def _keys(event: Wire, id: Any) -> list[int | str]:
    index = event.get("output_index")
    keys: list[int | str] = [index] if isinstance(index, int) and not isinstance(index, bool) else []
    return [*keys, id] if isinstance(id, str) else keys


def _is_other(known: Wire, item: Wire) -> bool:
    """By `call_id`: some servers use one index for all items, others change item ids."""
    ids = (known.get("call_id"), item.get("call_id"))
    return all(isinstance(id, str) for id in ids) and ids[0] != ids[1]


def _to_item(slot: _Slot, is_complete: bool) -> Wire:
    if slot.is_done:
        return slot.item
    item = dict(slot.item)
    for part, pieces in slot.pieces.items():
        text = "".join(pieces)
        item |= {"content": [{"type": "output_text", "text": text}]} if part == "text" else {part: text}
    return item | {"status": "completed" if slot.is_whole or is_complete else "incomplete"}
