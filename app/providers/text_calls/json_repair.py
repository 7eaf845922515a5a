"""Nearly valid JSON of models, repaired where it has one meaning only.

The steps: as it is, without a code fence, with raw line breaks in strings, with Python's quotes, constants and trailing
commas. An open string or bracket is never closed: half a command is another command. All of it takes linear time.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from typing import Any, NamedTuple

FENCE = "```"
MAX_NUMBER_DIGITS = 4000
MAX_SHOWN_LENGTH = 40


class Broken(ValueError):
    """Why a text is not JSON, and at which character."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


class Repaired(NamedTuple):
    value: Any
    is_repaired: bool


class _NoNumber(str):
    """An invalid number, until its position is known."""


def loads(text: str) -> Repaired:
    """The value of a text, and whether it was repaired. Raises `Broken` with the first error."""
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
    """The content of a code fence, or the text."""
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
        raise Broken(f"{wrong[:MAX_SHOWN_LENGTH]} (char {position}) is no number that JSON knows", position)
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
    return int(digits) if len(digits) <= MAX_NUMBER_DIGITS else _NoNumber(digits)


def _float(digits: str) -> float | str:
    number = float(digits)
    return number if math.isfinite(number) else _NoNumber(digits)


_STRICT = json.JSONDecoder(parse_constant=_NoNumber, parse_int=_integer, parse_float=_float)
_LAX = json.JSONDecoder(parse_constant=_NoNumber, parse_int=_integer, parse_float=_float, strict=False)


MAX_DEPTH = 200
CLOSES = {"}": "{", "]": "["}
CONSTANTS = {"True": "true", "False": "false", "None": "null"}
"""Python's constants as JSON."""

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
    """Where a value ends or breaks off. `seen` is how far the text was scanned."""

    end: int
    is_whole: bool
    seen: int


def extent(text: str, start: int) -> Extent:
    """The extent of the object or list that opens at `start`."""
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
        if len(opened) > MAX_DEPTH:
            return Extent(place, is_whole=False, seen=place)
    is_in_string = text[place : place + 1] in ("'", '"')
    return Extent(place, is_whole=False, seen=len(text) if is_in_string else place)


def to_json(text: str) -> str | None:
    """JSON with single quotes, Python's constants and trailing commas as valid JSON; None for anything else."""
    tokens: list[Token] = []
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            return None
        tokens.append(Token(found.lastgroup or "", found[0]))
        place = found.end()
    return write_tokens(tokens)


def write_tokens(tokens: Iterable[Token]) -> str:
    pieces: list[str] = []
    for kind, text in tokens:
        if kind == "space":
            continue
        # A comma after an item; one after nothing is an error and stays.
        if kind == "close" and len(pieces) > 1 and pieces[-1] == "," and pieces[-2] not in ("{", "[", ",", ":"):
            pieces.pop()
        pieces.append(to_json_string(text) if kind == "string" else CONSTANTS.get(text, text))
    return "".join(pieces)


def to_json_string(quoted: str, quotes: int = 1) -> str:
    """A quoted string as JSON. Escapes that JSON does not know are left for the decoder to reject."""
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
