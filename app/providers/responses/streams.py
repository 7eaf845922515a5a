"""Streams of the Responses dialect: the events of a finished one, put together to the response they tell."""

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
"""By the type of an event, the part of an item that it tells, and where it stands in the event."""


@dataclass(slots=True)
class _Slot:
    """One item as far as it was told. It `is_done` when all of it was told at once, and `is_whole` when its one long
    part was."""

    item: Wire
    is_done: bool = False
    is_whole: bool = False
    pieces: dict[str, list[str]] = field(default_factory=dict)


def is_stream(values: Sequence[Any]) -> bool:
    """Whether these are events, and not items."""
    types = (value.get("type") for value in values if isinstance(value, dict))
    return any(isinstance(kind, str) and kind.startswith("response.") for kind in types)


def response_of(events: Sequence[Any]) -> tuple[Wire, bool]:
    """The response that a stream told, and whether it came to its end.

    What the last event says of it counts. Where that says nothing of its items, they are those that were told one by
    one; an item that was begun and never finished is marked so.
    """
    slots, end, response = _Slots(), None, dict[str, Any]()
    for event in events:
        if not isinstance(event, dict):
            raise Unreadable("An event of the stream is no object.")
        if isinstance(event.get("response"), dict):
            response = event["response"]
        if event.get("type") in ENDS:
            end = event["type"]
        slots.take(event)
    status = {"status": None if end is None else end.removeprefix("response.")}
    told = response.get("output")
    output = told if isinstance(told, list) and told else slots.items(is_complete=end == ENDS[0])
    return response | status | {"output": output}, end is not None


class _Slots:
    """The items of a stream, found by their place in it or by their id."""

    def __init__(self) -> None:
        self._slots: list[tuple[int | None, _Slot]] = []
        self._by_key: dict[int | str, _Slot] = {}

    def take(self, event: Wire) -> None:
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
        """In the order of their places; those without come last."""
        ordered = sorted(self._slots, key=lambda placed: (placed[0] is None, placed[0] or 0))
        return [_told(slot, is_complete) for _, slot in ordered]

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
    """Some servers give all items one place, others change their ids on the way; what is answered stays the same."""
    ids = (known.get("call_id"), item.get("call_id"))
    return all(isinstance(id, str) for id in ids) and ids[0] != ids[1]


def _told(slot: _Slot, is_complete: bool) -> Wire:
    if slot.is_done:
        return slot.item
    item = dict(slot.item)
    for part, pieces in slot.pieces.items():
        text = "".join(pieces)
        item |= {"content": [{"type": "output_text", "text": text}]} if part == "text" else {part: text}
    return item | {"status": "completed" if slot.is_whole or is_complete else "incomplete"}
