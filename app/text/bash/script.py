"""Shell scripts as values: words, commands, redirects, and the parts that cannot be analyzed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from tree_sitter import Node


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Unclear:
    """A script, or a part of one, of which nobody can say what it would run. `text` is that part."""

    reason: str
    text: str


class Doubtful(Exception):
    """The tree of a script, or what stands in it, is not to be believed. It becomes an `Unclear`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


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


def read_word(node: Node, source: bytes) -> Word:
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


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=value`, before a command or by itself."""

    name: str
    value: Word

    @property
    def plain(self) -> str:
        return f"{self.name}={self.value.plain}"


@dataclass(frozen=True, slots=True)
class Redirect:
    """A file that something is read from or written to. Those between descriptors are left out."""

    at: int
    target: Word
    is_write: bool


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command, and what it runs in turn.

    `at` is where it ends in the script, behind its redirects: they are done before it runs. Up to the byte
    `sure_until` everything runs only if this command succeeded. One that is open gets more words than are known;
    `stdin` is the here-document it reads.
    """

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...] = ()
    inner: "tuple[Script, ...]" = ()
    at: int = 0
    sure_until: int = 0
    is_repeated: bool = False
    is_open: bool = False
    stdin: Word | None = None

    @property
    def name(self) -> Word:
        return self.words[0]

    @property
    def plain(self) -> str:
        return " ".join(word.plain for word in self.words)


@dataclass(frozen=True, slots=True)
class Script:
    """What a script runs, in its order. `unclear` are the parts of which nobody can say it.

    A flat script is simple commands with `&&` between them and nothing else.
    """

    commands: tuple[Simple, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    unclear: tuple[Unclear, ...] = ()
    functions: tuple[str, ...] = ()
    is_background: bool = False
    is_flat: bool = True

    def every(self) -> Iterator["Script"]:
        """The script and those inside its commands."""
        yield self
        for command in self.commands:
            for inner in command.inner:
                yield from inner.every()


@dataclass(slots=True)
class Found:
    """What was found of a script so far."""

    commands: list[Simple] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    unclear: list[Unclear] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    is_background: bool = False
    is_flat: bool = True

    def script(self) -> Script:
        return Script(
            tuple(self.commands),
            tuple(self.redirects),
            tuple(self.assignments),
            tuple(self.unclear),
            tuple(self.functions),
            self.is_background,
            self.is_flat,
        )
