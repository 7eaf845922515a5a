"""Words of shell commands, as far as they are known before the shell runs.

A word is static when its text is: quotes and backslashes are gone, `g"it"` and `\\git` are `git`. A pattern of file
names is kept as it was written, and so is whatever the shell puts in: variables, substitutions, braces.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tree_sitter import Node

from app.text.bash.unclear import Doubtful


class Kind(StrEnum):
    STATIC = "static"
    GLOB = "glob"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True)
class Word:
    """`text` is what the program gets, or what was written where that is not known.

    `is_bare` says that it had no quotes at its beginning, so that a tilde there means a home folder.
    """

    text: str
    kind: Kind = Kind.STATIC
    is_bare: bool = False

    @property
    def is_static(self) -> bool:
        return self.kind is Kind.STATIC

    @property
    def plain(self) -> str:
        """The word in one line, so that nothing of it is hidden from who reads it."""
        return "".join(char if char.isprintable() else _visible(char) for char in _SPACES.sub(" ", self.text))


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    is_quoted: bool = False
    is_dynamic: bool = False


_SPACES = re.compile(r"[ \t\n]+")
_GLOB = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{.*(?:,|\.\.).*\}", re.DOTALL)
_HOMES = re.compile(r"[=:]~")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_IN_DOUBLE = re.compile(r"\\(\n|[$`\"\\])")
_LIVE = re.compile(r"(?:^|[^\\])(?:\\\\)*(?:`|\"|\$[\w({@*#?$!-])")
_ANSI = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(?:u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})))"
)
_NAMED = dict(zip("abeEfnrtv", "\a\b\x1b\x1b\f\n\r\t\v", strict=True))


def read(node: Node, source: bytes) -> Word:
    """The word that a node is. Raises `Doubtful` when it is none."""
    return _joined(list(_pieces(node, source)))


def static(text: str) -> Word:
    """A word that nothing is done to, as one of an argv."""
    return Word(text)


def _visible(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _joined(pieces: list[_Piece]) -> Word:
    text = "".join(piece.text for piece in pieces)
    bare = "".join("" if piece.is_quoted else piece.text for piece in pieces if not piece.is_dynamic)
    is_bare = bool(pieces) and not pieces[0].is_quoted and not pieces[0].is_dynamic
    kind = Kind.STATIC
    if _GLOB.search(bare):
        kind = Kind.GLOB
    if any(piece.is_dynamic for piece in pieces) or "\0" in text or _BRACES.search(bare):
        kind = Kind.DYNAMIC
    if (is_bare and text.startswith("~") and not (text == "~" or text.startswith("~/"))) or _HOMES.search(bare):
        kind = Kind.DYNAMIC
    return Word(text, kind, is_bare)


def _pieces(node: Node, source: bytes) -> Iterator[_Piece]:
    text = source[node.start_byte : node.end_byte].decode()
    match node.type:
        case "command_name" | "concatenation":
            for child in node.children:
                yield from _pieces(child, source)
        case "word" | "number" | "variable_name":
            yield from _bare(text)
        case "raw_string":
            yield _Piece(text[1:-1], is_quoted=True)
        case "ansi_c_string":
            yield _ansi(text[2:-1])
        case "string":
            yield from _double(node, source)
        case "$" | "==" | "=~":
            yield _Piece(text, is_quoted=True)
        case "translated_string":
            raise Doubtful("a text that is translated may become any other")
        case _:
            yield _Piece(text, is_dynamic=True)


def _bare(text: str) -> Iterator[_Piece]:
    at = 0
    for found in _ESCAPED.finditer(text):
        if found.start() > at:
            yield _Piece(text[at : found.start()])
        yield _Piece(found[1], is_quoted=True)
        at = found.end()
    if at < len(text):
        yield _Piece(text[at:])


def _double(node: Node, source: bytes) -> Iterator[_Piece]:
    yield _Piece("", is_quoted=True)
    first, *inner, last = node.children
    at = first.end_byte
    for child in [*inner, last]:
        if child.type == "string_content":
            continue
        text = source[at : child.end_byte - 1 if child is last else child.start_byte].decode()
        if _LIVE.search(text):
            raise Doubtful("a text holds substitutions that cannot be looked into")
        yield _Piece(_IN_DOUBLE.sub(lambda found: found[1].strip("\n"), text), is_quoted=True)
        if child is not last:
            yield _Piece(source[child.start_byte : child.end_byte].decode(), is_dynamic=True)
        at = child.end_byte


def _ansi(text: str) -> _Piece:
    """`$'…'`. What bash makes of half an escape is left as it was written, and then it counts as not known."""
    rest = _ANSI.sub("", text)
    if "\\" in rest:
        return _Piece(f"$'{text}'", is_dynamic=True)
    try:
        return _Piece(_ANSI.sub(_ansi_char, text), is_quoted=True)
    except (ValueError, OverflowError):
        return _Piece(f"$'{text}'", is_dynamic=True)


def _ansi_char(found: re.Match[str]) -> str:
    if found[1]:
        return _NAMED.get(found[1], found[1])
    octal, *hexadecimal = found.groups()[1:]
    code = int(octal, 8) % 256 if octal else int(next(filter(None, hexadecimal)), 16)
    if code == 0 or (code > 127 and not (found[4] or found[5])):
        raise ValueError("a byte, not a character")
    if 0xD800 <= code < 0xE000:
        raise ValueError("half a character")
    return chr(code)
