"""Values as models write them in running text: JSON, and what is nearly JSON because it was written as in Python.

Only whole tokens are known here. A string or a bracket that is open stays open: where the text breaks off, nothing is
made up. All of it takes time in proportion to what is read, also when it fails.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

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
