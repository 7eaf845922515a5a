"""Shell scripts as values: words, commands, redirects, and the parts that cannot be analyzed.

A word is static if its text is known before the shell runs: quotes and backslashes are removed, `g"it"` and `\\git` are
`git`. Globs and whatever the shell substitutes (variables, commands, braces) stay as they were written.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from tree_sitter import Node


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Unclear:
    """A script, or a part of one, that cannot be analyzed. `text` is that part."""

    reason: str
    text: str


class NotAnalyzable(Exception):
    """A script cannot be analyzed for certain. It becomes an `Unclear`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Kind(StrEnum):
    STATIC = "static"
    GLOB = "glob"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True)
class Word:
    """`text` is what the program gets, or as written if that is not known.

    `is_unquoted`: it does not begin with a quote, so a tilde there means a home folder.
    """

    text: str
    kind: Kind = Kind.STATIC
    is_unquoted: bool = False

    @property
    def is_static(self) -> bool:
        return self.kind is Kind.STATIC

    @property
    def one_line(self) -> str:
        """The word in one line with control characters escaped, for people who decide about it."""
        return "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode()
            for char in _SPACES.sub(" ", self.text)
        )


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
    """The word of a node. Raises `NotAnalyzable`."""
    return _to_word(list(_pieces(node, source)))


def _to_word(pieces: list[_Piece]) -> Word:
    text = "".join(piece.text for piece in pieces)
    bare = "".join("" if piece.is_quoted else piece.text for piece in pieces if not piece.is_dynamic)
    is_unquoted = bool(pieces) and not pieces[0].is_quoted and not pieces[0].is_dynamic
    kind = Kind.STATIC
    if _GLOB.search(bare):
        kind = Kind.GLOB
    if any(piece.is_dynamic for piece in pieces) or "\0" in text or _BRACES.search(bare):
        kind = Kind.DYNAMIC
    if (is_unquoted and text.startswith("~") and not (text == "~" or text.startswith("~/"))) or _HOMES.search(bare):
        kind = Kind.DYNAMIC
    return Word(text, kind, is_unquoted)


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
            raise NotAnalyzable("a translated string may become any other")
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
            raise NotAnalyzable("a string has substitutions that cannot be analyzed")
        yield _Piece(_IN_DOUBLE.sub(lambda found: found[1].strip("\n"), text), is_quoted=True)
        if child is not last:
            yield _Piece(source[child.start_byte : child.end_byte].decode(), is_dynamic=True)
        at = child.end_byte


def _ansi(text: str) -> _Piece:
    """`$'…'`. One with an incomplete escape counts as dynamic."""
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
        raise ValueError("not a character")
    if 0xD800 <= code < 0xE000:
        raise ValueError("a surrogate")
    return chr(code)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=value`, before a command or by itself."""

    name: str
    value: Word

    @property
    def one_line(self) -> str:
        return f"{self.name}={self.value.one_line}"


@dataclass(frozen=True, slots=True)
class Redirect:
    """A file that is read or written. Redirects between descriptors are left out."""

    at: int
    target: Word
    is_write: bool


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One simple command, and the scripts that it runs in turn."""

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...] = ()
    inner: "tuple[Script, ...]" = ()
    #: The byte at which it ends, behind its redirects, which are done first.
    at: int = 0
    #: Up to this byte everything runs only if this command succeeded.
    guards_until: int = 0
    is_repeated: bool = False
    #: It gets more words than are known, as behind `xargs`.
    has_unknown_words: bool = False
    #: The here-document that it reads.
    stdin: Word | None = None

    @property
    def name(self) -> Word:
        return self.words[0]

    @property
    def one_line(self) -> str:
        return " ".join(word.one_line for word in self.words)


@dataclass(frozen=True, slots=True)
class Script:
    """What a script runs, in order. `unclear` are the parts that cannot be analyzed.

    A flat script is only simple commands with `&&` between them.
    """

    commands: tuple[SimpleCommand, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    unclear: tuple[Unclear, ...] = ()
    functions: tuple[str, ...] = ()
    is_background: bool = False
    is_flat: bool = True

    def with_inner(self) -> Iterator["Script"]:
        """The script and those that its commands run."""
        yield self
        for command in self.commands:
            for inner in command.inner:
                yield from inner.with_inner()


@dataclass(slots=True)
class ScriptBuilder:
    """The parts of a script found so far."""

    commands: list[SimpleCommand] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    unclear: list[Unclear] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    is_background: bool = False
    is_flat: bool = True

    def build(self) -> Script:
        return Script(
            tuple(self.commands),
            tuple(self.redirects),
            tuple(self.assignments),
            tuple(self.unclear),
            tuple(self.functions),
            self.is_background,
            self.is_flat,
        )
