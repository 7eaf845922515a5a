"""JSON by a model that is not quite JSON: what can be read in one way only is read, and that is said.

The ladder: as it is, out of its fence, with raw line breaks in strings, with Python's quotes, words and last commas.
There it ends. An open string or bracket is never closed: half a command is another command.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from typing import Any, NamedTuple

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


DEEPEST = 200
CLOSES = {"}": "{", "]": "["}
PLAIN = {"True": "true", "False": "false", "None": "null"}
"""Python's words for what JSON has, too."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]++)
    | (?P<string>"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+')
    | (?P<word>(?:true|false|null|True|False|None|NaN|-?Infinity)(?!\w))
    | (?P<number>-?[0-9]++(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+)
    | (?P<open>[\[{]) | (?P<close>[\]}]) | (?P<mark>[,:])""",
    re.VERBOSE | re.DOTALL,
)
_IN_STRING = re.compile(r'\\x([0-9a-fA-F]{2})|\\U([0-9a-fA-F]{8})|\\(.)|"', re.DOTALL)
LAST_CHARACTER = 0x10FFFF


class Token(NamedTuple):
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a value ends; when it is not whole, where it breaks off. `seen` is how far was looked to know."""

    end: int
    is_whole: bool
    seen: int


def extent(text: str, start: int) -> Extent:
    """How far the object or list reaches that opens at `start`. Brackets in strings are no brackets."""
    opened: list[str] = []
    place = start
    while found := _TOKEN.match(text, place):
        if found.lastgroup == "open":
            opened.append(found[0])
        elif found.lastgroup == "close" and (not opened or opened.pop() != CLOSES[found[0]]):
            return Extent(place, is_whole=False, seen=place)
        place = found.end()
        if not opened:
            return Extent(place, is_whole=True, seen=place)
        if len(opened) > DEEPEST:
            return Extent(place, is_whole=False, seen=place)
    is_in_string = text[place : place + 1] in ("'", '"')
    return Extent(place, is_whole=False, seen=len(text) if is_in_string else place)


def to_json(text: str) -> str | None:
    """What was written nearly as JSON, as JSON: single quotes, Python's words, commas behind the last item.

    None when there is something in it that is none of these.
    """
    tokens: list[Token] = []
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            return None
        tokens.append(Token(found.lastgroup or "", found[0]))
        place = found.end()
    return written(tokens)


def written(tokens: Iterable[Token]) -> str:
    """Tokens as JSON."""
    pieces: list[str] = []
    for kind, text in tokens:
        if kind == "space":
            continue
        if kind == "close" and _has_spare_comma(pieces):
            pieces.pop()
        pieces.append(to_json_string(text) if kind == "string" else PLAIN.get(text, text))
    return "".join(pieces)


def to_json_string(quoted: str, quotes: int = 1) -> str:
    """A string in quotes of either kind as JSON. What JSON cannot escape is left for its reader to refuse."""
    return '"' + _IN_STRING.sub(_escape, quoted[quotes:-quotes]) + '"'


def _escape(found: re.Match[str]) -> str:
    byte, character, other = found.groups()
    if byte:
        return f"\\u00{byte}"
    if character and int(character, 16) <= LAST_CHARACTER:
        return json.dumps(chr(int(character, 16)))[1:-1]
    if found[0] == '"':
        return '\\"'
    return "'" if other == "'" else found[0]


def _has_spare_comma(pieces: list[str]) -> bool:
    """A comma behind an item, that is; one behind nothing is a mistake and stays one."""
    return len(pieces) > 1 and pieces[-1] == "," and pieces[-2] not in ("{", "[", ",", ":")
