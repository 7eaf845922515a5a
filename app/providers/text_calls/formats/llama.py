"""Calls as Llama 3 writes them: JSON objects behind a tag of their own, or by themselves.

<|python_tag|>{"name": "x", "parameters": {}}; {"name": "y", "parameters": {}}
"""

import re

from app.core.runs import ModelCall
from app.providers.text_calls.formats.json_objects import ARGUMENTS, Piece, broken_at, calls_in, named_at, value_at
from app.providers.text_calls.json_repair import Repaired
from app.providers.text_calls.scanner import CallFormat, FoundCall, ScannedText

TAG = "<|python_tag|>"
KEYS = {"name", "type", "id", *ARGUMENTS}

_HEAD = re.compile(
    r"""[\[\s]{0,64}\{\s{0,64}["']name["']\s{0,16}:\s{0,16}["']([^"'\\]{1,256})["']\s{0,16},\s{0,64}"""
    r"""["'](?:arguments|parameters)["']\s{0,16}:"""
)
_TAGGED_HEAD = re.compile(r"""\{\s{0,64}["']name["']\s{0,16}:\s{0,16}["']([^"'\\]{1,256})["']""")
_END = re.compile(r"\s{0,64}<\|e(?:om|ot)_id\|>")
_NEXT = re.compile(r"\s{0,64};\s{0,64}(?=\{)")


def _read(page: ScannedText, start: int) -> FoundCall | None:
    is_tagged = page.has(TAG, start)
    place = page.skip(start + len(TAG)) if is_tagged else start
    if page.text[place : place + 1] not in ("{", "["):
        return None
    calls: list[ModelCall] = []
    end = place
    while True:
        piece = value_at(page, place)
        if piece.mended is None:
            return _read_broken(page, start, (place, piece), FoundCall(end, tuple(calls)))
        more = calls_in(page, piece.mended) if is_tagged or _is_call(piece.mended) else []
        if not more:
            return FoundCall(end if calls else piece.end, tuple(calls), ((start, end),) if calls else ())
        calls += more
        end = piece.end
        behind = page.match(_NEXT, end)
        if behind is None:
            break
        place = behind.end()
    if closing := page.match(_END, end):
        end = closing.end()
    return FoundCall(end, tuple(calls), ((start, end),))


def _read_broken(page: ScannedText, start: int, at: tuple[int, Piece], before: FoundCall) -> FoundCall:
    """The calls so far, and the one that cannot be read, when it is known to be one."""
    place, piece = at
    name = named_at(page, place, _HEAD) if place == start else _named_behind(page, place)
    if name is not None:
        broken = broken_at(page, place, piece, name)
        return FoundCall(broken.end, before.calls + broken.calls, ((start, broken.end),))
    if before.calls:
        return FoundCall(before.end, before.calls, ((start, before.end),))
    return FoundCall(max(piece.end, place + 1))


def _named_behind(page: ScannedText, place: int) -> str | None:
    """Behind the tag, or behind another call, less is enough."""
    head = page.match(_TAGGED_HEAD, place)
    return head[1] if head and page.offer(head[1]) else None


def _is_call(mended: Repaired) -> bool:
    """Objects that only have a name are data, and with a description they are definitions of tools."""
    items = mended.value if isinstance(mended.value, list) else [mended.value]
    return all(isinstance(item, dict) and set(item) <= KEYS and not set(item).isdisjoint(ARGUMENTS) for item in items)


call_format = CallFormat(name="llama", opening=rf"{re.escape(TAG)}|\{{|\[\s{{0,64}}\{{", read=_read)
