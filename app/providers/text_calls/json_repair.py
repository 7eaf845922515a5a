"""JSON by a model that is not quite JSON: what can be read in one way only is read, and that is said.

The ladder: as it is, out of its fence, with raw line breaks in strings, with Python's quotes, words and last commas.
There it ends. An open string or bracket is never closed: half a command is another command.
"""

import json
import math
from json import JSONDecodeError, JSONDecoder
from typing import Any, NamedTuple

from app.providers.text_calls.json_like import to_json

FENCE = "```"
LONGEST_NUMBER = 4000
LONGEST_SHOWN = 40


class Broken(ValueError):
    """Why a text is no JSON, and where it stops being so."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


class Repaired(NamedTuple):
    value: Any
    is_repaired: bool


class _NoNumber(str):
    """What stands where a number should, until it is known where that is."""


def loads(text: str) -> Repaired:
    """The value of a text, and whether it had to be repaired. Raises `Broken` with the first thing that was wrong."""
    try:
        return Repaired(_decoded(text, _STRICT), is_repaired=False)
    except Broken as error:
        first = error
    bare = unfenced(text)
    rungs = [(bare, _STRICT)] if bare != text else []
    rungs.append((bare, _LAX))
    rewritten = to_json(bare)
    if rewritten is not None:
        rungs.append((rewritten, _LAX))
    for rung, decoder in rungs:
        try:
            return Repaired(_decoded(rung, decoder), is_repaired=True)
        except Broken:
            continue
    raise first


def unfenced(text: str) -> str:
    """What stands in a fence, when the text is one; else the text."""
    bare = text.strip()
    if not bare.startswith(FENCE) or not bare.endswith(FENCE) or "\n" not in bare:
        return text
    return bare[bare.index("\n") + 1 : -len(FENCE)]


def _decoded(text: str, decoder: JSONDecoder) -> Any:
    try:
        value = decoder.decode(text)
    except JSONDecodeError as error:
        raise Broken(str(error), error.pos) from None
    except RecursionError:
        raise Broken("it is nested too deep", 0) from None
    wrong = _wrong_number(value)
    if wrong is not None:
        position = text.find(wrong)
        raise Broken(f"{wrong[:LONGEST_SHOWN]} (char {position}) is no number that JSON knows", position)
    return value


def _wrong_number(value: Any) -> _NoNumber | None:
    left = [value]
    while left:
        match left.pop():
            case _NoNumber() as wrong:
                return wrong
            case dict() as members:
                left.extend(members.values())
            case list() as items:
                left.extend(items)
    return None


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= LONGEST_NUMBER else _NoNumber(digits)


def _float(digits: str) -> float | str:
    number = float(digits)
    return number if math.isfinite(number) else _NoNumber(digits)


_STRICT = json.JSONDecoder(parse_constant=_NoNumber, parse_int=_integer, parse_float=_float)
_LAX = json.JSONDecoder(parse_constant=_NoNumber, parse_int=_integer, parse_float=_float, strict=False)
