"""Calls as JSON objects: a name, and arguments that are an object, or JSON in a string, or left out."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from app.core.runs import ModelCall, ToolOffer
from app.providers import call_arguments
from app.providers.text_calls.json_repair import Broken, Repaired, loads
from app.providers.text_calls.scanner import FoundCall, ScannedText

ARGUMENTS = ("arguments", "parameters")
_NAME = re.compile(r"""["']name["']\s{0,16}:\s{0,16}["']([^"'\\]{1,256})["']""")


class Piece(NamedTuple):
    """A value in the text: where it ends, or where it breaks off."""

    end: int
    mended: Repaired | None = None
    is_whole: bool = False


def calls_in(page: ScannedText, mended: Repaired) -> list[ModelCall]:
    """The calls that an object, or a list of objects, are. What is none of ours is left out."""
    value = mended.value
    found = [call_of(page, item, mended.is_repaired) for item in (value if isinstance(value, list) else [value])]
    return [call for call in found if call is not None]


def call_of(page: ScannedText, item: Any, is_repaired: bool, keys: Sequence[str] = ARGUMENTS) -> ModelCall | None:
    if not isinstance(item, dict):
        return None
    name = item.get("name")
    offer = page.offer(name)
    if offer is None:
        return None
    given = next((item[key] for key in keys if key in item), None)
    return call(str(name), offer, given, is_repaired=is_repaired)


def call(name: str, offer: ToolOffer, given: Any, *, is_repaired: bool) -> ModelCall:
    """A call with arguments as they were given."""
    if isinstance(given, str):
        return call_from_text(name, offer, given, is_repaired=is_repaired)
    return ModelCall(id=None, name=name, is_repaired=is_repaired, **call_arguments.parse(given))


def call_from_text(name: str, offer: ToolOffer, given: str, *, is_repaired: bool) -> ModelCall:
    """A call whose arguments are JSON in a string; for a tool that takes free text, the string may be that."""
    if offer.takes == "input" and not _names_input(given):
        return ModelCall(id=None, name=name, arguments={"input": given}, is_repaired=is_repaired)
    if not given.strip():
        return ModelCall(id=None, name=name, arguments={}, is_repaired=is_repaired)
    try:
        mended = loads(given)
    except Broken as error:
        return broken_call(name, error, given)
    if isinstance(mended.value, str | list):
        return broken_call(name, Broken("it is no object", 0), given)
    return call(name, offer, mended.value, is_repaired=is_repaired or mended.is_repaired)


def broken_call(name: str, error: Broken, raw: str) -> ModelCall:
    return ModelCall(
        id=None, name=name, arguments_error=f"The arguments are not JSON: {error}.", raw_arguments=raw.strip()
    )


def value_at(page: ScannedText, start: int) -> Piece:
    """The object or list that opens here, as far as it can be read."""
    extent = page.extent(start)
    if not extent.is_whole:
        return Piece(extent.end)
    try:
        return Piece(extent.end, loads(page.cut(start, extent.end)), is_whole=True)
    except Broken:
        return Piece(extent.end, is_whole=True)


def broken_at(page: ScannedText, start: int, piece: Piece, name: str) -> FoundCall:
    """A call whose JSON cannot be read. What is not whole has no end but that of the text."""
    end = piece.end if piece.is_whole else len(page)
    raw = page.cut(start, end)
    try:
        loads(raw)
    except Broken as error:
        return FoundCall(end, (broken_call(name, error, raw),), ((start, end),))
    return FoundCall(end, (broken_call(name, Broken("it is nested too deep", 0), raw),), ((start, end),))


def named_at(page: ScannedText, start: int, head: re.Pattern[str]) -> str | None:
    """The tool that an object is a call of, which cannot be read but begins as one, on a line of its own."""
    found = page.match(head, start) if page.begins_line(start) else None
    name = found[1].removeprefix("@") if found else ""
    return name if page.offer(name) else None


def named_in(page: ScannedText, broken: str) -> str | None:
    """The first of our tools that is named in JSON that cannot be read."""
    return next((found[1] for found in _NAME.finditer(broken) if page.offer(found[1])), None)


def _names_input(given: str) -> bool:
    try:
        value = loads(given).value
    except Broken:
        return False
    return isinstance(value, dict) and set(value) == {"input"}
