"""Whole files, read from a model's text: each in a fence, with its path on the line before.

A fence without a path is for the file last mentioned in backticks since the fence before, or for the one that the
caller names. A listing of a shell that names no file is no file. Fences inside a fence belong to the file as long as
they open with a language and close without one; a fence of four backticks or of tags may hold anything.

Whole files put in place or taken away: what the result tells of it, as far as both sides are text.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.core.errors import InvalidArgs
from app.text.edit.fences import Fence, name_on, opening, quote

RANKS = ("block", "mentioned", "given")
"""How a file came by its name, the surest first. Of several texts for one file, the surest counts, then the first."""

_MENTIONED = re.compile(r"(?:^|\s)`([^`\s]+)`[.:,;!]*(?=\s|$)")
_NAME = re.compile(r"\.\w+$|/\S*\w$")


@dataclass(frozen=True, slots=True)
class Whole:
    """One edit: all lines of a file. `line` is where it begins in the text, the first is 1."""

    path: str
    lines: tuple[str, ...]
    line: int

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class _Listing:
    fence: Fence
    start: int
    lines: Sequence[str]


def parse(content: str, path: str | None = None) -> tuple[list[Whole], list[str]]:
    """The files of a text, and the shell commands it proposes; `path` is the file of a listing that names none."""
    lines = content.replace("\r\n", "\n").split("\n")
    found, commands, after = list[tuple[str, Whole]](), list[str](), 0
    for listing in _listings(lines):
        rank, name = _named(lines, after, listing.start, path)
        if rank != "block" and listing.fence.is_shell:
            commands.append("\n".join(listing.lines))
        elif name is None:
            raise _unreadable(lines, listing.start, "No file is named before this fence, and none in `file_path`")
        else:
            found.append((rank, Whole(name, tuple(listing.lines), listing.start + 1)))
        after = listing.start + len(listing.lines) + 2
    if not found:
        raise _unreadable(lines, len(lines) - 1, "Expected a path and a fence with the file's text; there is none")
    return _surest(found), commands


def _listings(lines: Sequence[str]) -> Iterator[_Listing]:
    at = 0
    while at < len(lines):
        if fence := opening(lines[at]):
            end = _end(lines, at, fence)
            yield _Listing(fence, at, lines[at + 1 : end])
            at = end
        at += 1


def _end(lines: Sequence[str], start: int, fence: Fence) -> int:
    """The line that closes a fence."""
    depth = 1
    for at in range(start + 1, len(lines)):
        inner = opening(lines[at])
        if lines[at].rstrip() == fence.closing:
            depth -= 1
        elif inner and inner.closing == fence.closing:
            depth += 1
        if not depth:
            return at
    expected = f"Expected {fence.closing} to close this fence. If the file has such lines itself, use four backticks"
    raise _unreadable(lines, start, expected)


def _named(lines: Sequence[str], after: int, fence: int, path: str | None) -> tuple[str, str | None]:
    """How the listing at this fence is named, and its file. What is said about it stands after the one before."""
    said = lines[after:fence]
    name = (name_on(said[-1]) if said else None) or name_on(lines[fence])
    if name:
        return "block", name
    mentioned = [word for line in said for word in _MENTIONED.findall(line) if _NAME.search(word)]
    return ("mentioned", mentioned[-1]) if mentioned else ("given", path)


def _surest(found: Sequence[tuple[str, Whole]]) -> list[Whole]:
    chosen: dict[str, Whole] = {}
    for rank in RANKS:
        for how, whole in found:
            if how == rank:
                chosen.setdefault(whole.path, whole)
    return sorted(chosen.values(), key=lambda whole: whole.line)


def _unreadable(lines: Sequence[str], at: int, expected: str) -> InvalidArgs:
    told = f"The content cannot be read as whole files, see its line {at + 1}:\n"
    return InvalidArgs(told + quote(lines, at, expected), details={"line": at + 1})
