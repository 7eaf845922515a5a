"""Calls as Mistral's tokenizers write them: a list of objects, or a name and its arguments, again for each call.

[TOOL_CALLS][{"name": "x", "arguments": {}}]
[TOOL_CALLS]x[ARGS]{}[TOOL_CALLS]y[ARGS]{}
"""

import re

from app.core.runs import ModelCall
from app.providers.text_calls.formats.json_objects import broken_at, call, calls_in, named_in, value_at
from app.providers.text_calls.scanner import CallFormat, FoundCall, ScannedText

OPENING = "[TOOL_CALLS]"
_HEAD = re.compile(r"([A-Za-z0-9_.:/-]{1,256})(?:\[CALL_ID\][A-Za-z0-9_-]{0,64})?+(?:\[ARGS\])?+\s{0,64}(?=\{)")


def _read(page: ScannedText, start: int) -> FoundCall | None:
    place = page.skip(start + len(OPENING))
    if page.text[place : place + 1] in ("[", "{"):
        return _read_list(page, start, place)
    calls: list[ModelCall] = []
    end = None
    while head := page.match(_HEAD, place):
        offer = page.offer(head[1])
        if offer is None and end is not None:
            break
        piece = value_at(page, head.end())
        if offer is None:
            return FoundCall(piece.end)
        if piece.mended is None:
            broken = broken_at(page, head.end(), piece, head[1])
            calls += broken.calls
            end = broken.end
        else:
            calls.append(call(head[1], offer, piece.mended.value, is_repaired=piece.mended.is_repaired))
            end = piece.end
        place = page.skip(end)
    return None if end is None else FoundCall(end, tuple(calls), ((start, end),))


def _read_list(page: ScannedText, start: int, place: int) -> FoundCall:
    piece = value_at(page, place)
    if piece.mended is None:
        end = piece.end if piece.is_whole else len(page)
        name = named_in(page, page.cut(place, end))
        if name is None:
            return FoundCall(end)
        return FoundCall(end, broken_at(page, place, piece, name).calls, ((start, end),))
    calls = calls_in(page, piece.mended)
    return FoundCall(piece.end, tuple(calls), ((start, piece.end),) if calls else ())


call_format = CallFormat(name="mistral", opening=re.escape(OPENING), read=_read)
