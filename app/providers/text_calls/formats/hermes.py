"""Calls as Hermes and Qwen write them: JSON between tags.

<tool_call>{"name": "x", "arguments": {}}</tool_call>
"""

import re

from app.core.runs import ModelCall
from app.providers.text_calls.formats.json_objects import broken_call, calls_in, named_in
from app.providers.text_calls.json_repair import FENCE, Broken, loads
from app.providers.text_calls.scanner import CallFormat, FoundCall, ScannedText, Span

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
_TAG = re.compile(f"{OPENING}|({CLOSING})")


def _read(page: ScannedText, start: int) -> FoundCall | None:
    inside = page.skip(start + len(OPENING))
    if page.text[inside : inside + 1] not in ("{", "[") and not page.has(FENCE, inside):
        return None
    whole = _whole(page, inside)
    if whole:
        end = whole[-1][1]
        after = page.skip(end)
        if page.has(CLOSING, after):
            return _found(page, start, whole, after + len(CLOSING))
        tag = page.search(_TAG, after)
        if tag is None or not tag[1]:
            return _found(page, start, whole, end)
    stop, end = _closed(page, inside)
    return _found(page, start, [(inside, stop)], end)


def _whole(page: ScannedText, place: int) -> list[Span]:
    """The objects or lists that stand here one after the other."""
    spans: list[Span] = []
    while page.text[place : place + 1] in ("{", "["):
        extent = page.extent(place)
        if not extent.is_whole:
            return []
        spans.append((place, extent.end))
        place = page.skip(extent.end)
    return spans


def _closed(page: ScannedText, inside: int) -> Span:
    """The end of a call with broken JSON: where all tags inside are closed. A string that is cut off extends to the end
    of the text, as tags inside it may be quoted."""
    is_cut = not page.has(FENCE, inside) and page.extent(inside).seen == len(page)
    depth, place = 1, inside
    while not is_cut and (tag := page.search(_TAG, place)):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return tag.span()
        place = tag.end()
    return len(page), len(page)


def _found(page: ScannedText, start: int, pieces: list[Span], end: int) -> FoundCall:
    calls: list[ModelCall] = []
    for piece in pieces:
        text = page.cut(*piece)
        try:
            calls += calls_in(page, loads(text))
        except Broken as error:
            name = named_in(page, text)
            calls += [broken_call(name, error, text)] if name else []
    return FoundCall(end, tuple(calls), ((start, end),) if calls else ())


call_format = CallFormat(name="hermes", opening=OPENING, read=_read)
