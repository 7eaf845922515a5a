"""Unified diffs, read from a model's text: fenced as `diff`, or bare.

Line numbers are not looked at; `@@` only parts hunks. A file is named by `---` and `+++`, without `a/` and `b/`;
`/dev/null` on one side makes the file or takes it away. In a fence a line without a mark is taken as context, in a
bare diff it ends the hunk. Hunks that change nothing or come again are left out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from app.core.errors import InvalidArgs
from app.text.edit.draft import NOWHERE
from app.text.edit.fences import opening, quote

DIFFS = frozenset(("diff", "udiff", "patch"))
MARKS = " +-"
NO_NEWLINE = "\\"
# What git writes between the diffs of two files.
_ABOUT = re.compile(
    r"(diff --git |index [0-9a-f]+\.\.|(old|new|new file|deleted file) mode |(dis)?similarity index "
    r"|(rename|copy) (from|to) |Binary files )"
)


@dataclass(frozen=True, slots=True)
class Hunk:
    """One edit: lines with their marks. `line` is where it begins in the text, the first is 1."""

    path: str
    lines: tuple[tuple[str, str], ...]
    line: int
    makes: bool = False
    removes: bool = False

    @property
    def old(self) -> list[str]:
        return [text for mark, text in self.lines if mark != "+"]

    @property
    def new(self) -> list[str]:
        return [text for mark, text in self.lines if mark != "-"]

    def __str__(self) -> str:
        return "\n".join(mark + text for mark, text in self.lines)


@dataclass(slots=True)
class _Reader:
    """Where the reading is: of which file, and what the hunk has so far."""

    path: str | None
    makes: bool = False
    removes: bool = False
    lines: list[tuple[str, str]] = field(default_factory=list)
    begin: int = 0
    hunks: list[Hunk] = field(default_factory=list)
    is_within: bool = True


def parse(content: str, path: str | None = None) -> list[Hunk]:
    """The hunks of a text; `path` is the file of those before which none is named."""
    lines = content.replace("\r\n", "\n").split("\n")
    reader = _Reader(path)
    for start, end, is_fenced in list(_diffs(lines)) or [(0, len(lines), False)]:
        _read(lines, start, end, is_fenced, reader)
    hunks = list(_distinct(reader.hunks))
    if not hunks:
        expected = "Expected a diff with lines that begin with `-` or `+`, under `---` and `+++`; there is none"
        raise _unreadable(lines, len(lines) - 1, expected)
    return hunks


def _diffs(lines: Sequence[str]) -> Iterator[tuple[int, int, bool]]:
    """The fenced diffs, by the numbers of their lines."""
    at = 0
    while at < len(lines):
        fence = opening(lines[at])
        if fence and (fence.said.split() or [""])[0].lower() in DIFFS:
            start = at + 1
            at = next((n for n in range(start, len(lines)) if lines[n].startswith(fence.closing)), len(lines))
            yield start, at, True
        at += 1


def _read(lines: Sequence[str], start: int, end: int, is_fenced: bool, reader: _Reader) -> None:
    reader.is_within, at = is_fenced, start
    while at < end:
        if at + 1 < end and lines[at].startswith("--- ") and lines[at + 1].startswith("+++ "):
            _close(reader, lines)
            _name(reader, lines[at], lines[at + 1], at)
            at += 1
        elif lines[at].startswith("@@"):
            _close(reader, lines)
            reader.is_within = True
        elif reader.is_within:
            _take(reader, lines[at], at, is_fenced)
        at += 1
    _close(reader, lines)


def _name(reader: _Reader, old: str, new: str, at: int) -> None:
    """From here on it is about another file."""
    before, after = (line[4:].split("\t")[0].strip() for line in (old, new))
    reader.makes, reader.removes = before == NOWHERE, after == NOWHERE
    if reader.removes:
        reader.path = before.removeprefix("a/")
        reader.hunks.append(Hunk(reader.path, (), at + 1, removes=True))
    else:
        is_git = before.startswith("a/") or reader.makes
        reader.path = after.removeprefix("b/") if is_git else after
    reader.is_within = True


def _take(reader: _Reader, line: str, at: int, is_fenced: bool) -> None:
    if line[:1] == NO_NEWLINE or _ABOUT.match(line):
        return
    if not reader.lines:
        reader.begin = at + 1
    if not line.strip():
        reader.lines.append((" ", ""))
    elif line[0] in MARKS:
        reader.lines.append((line[0], line[1:] if line[1:].strip() else ""))
    elif is_fenced:
        reader.lines.append((" ", line))
    else:
        reader.is_within = False


def _close(reader: _Reader, lines: Sequence[str]) -> None:
    """The hunk is at its end. Of a file that is taken away, all hunks are one."""
    taken, reader.lines = _without_last_blanks(reader.lines), []
    if not any(mark != " " for mark, _ in taken):
        return
    if reader.path is None:
        raise _unreadable(lines, reader.begin - 1, "Expected `--- path` and `+++ path` before this, or `file_path`")
    if reader.removes:
        last = reader.hunks[-1]
        reader.hunks[-1] = replace(last, lines=(*last.lines, *taken))
    else:
        reader.hunks.append(Hunk(reader.path, tuple(taken), reader.begin, makes=reader.makes))


def _without_last_blanks(lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Blank lines without a mark between a hunk and what follows it are no part of it."""
    end = len(lines)
    while end and lines[end - 1] == (" ", ""):
        end -= 1
    return lines[:end]


def _distinct(hunks: Sequence[Hunk]) -> Iterator[Hunk]:
    seen = set[tuple[str, tuple[str, ...], tuple[str, ...]]]()
    for hunk in hunks:
        key = hunk.path, tuple(hunk.old), tuple(hunk.new)
        if hunk.removes or (key[1] != key[2] and key not in seen):
            yield hunk
        seen.add(key)


def _unreadable(lines: Sequence[str], at: int, expected: str) -> InvalidArgs:
    told = f"The content cannot be read as a unified diff, see its line {at + 1}:\n"
    return InvalidArgs(told + quote(lines, at, expected), details={"line": at + 1})
