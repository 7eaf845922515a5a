"""Whole files, read from a model's text: each in a fence, with its path in the line before.

A fence without a path is for the file last mentioned in backticks since the fence before, or for the one given as
`file_path`. A fence with shell commands and no path is not a file. Fences inside a fence belong to the file if they
open with a language and close without one; a fence of four backticks or of tags may contain anything.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.text.edit.fences import Fence, name_on, open_fence, parse_error

FORMAT = "whole files"
RANKS = ("block", "mentioned", "given")
"""How a file was named, the most certain first, which decides between several texts for one file."""

_MENTIONED = re.compile(r"(?:^|\s)`([^`\s]+)`[.:,;!]*(?=\s|$)")
_NAME = re.compile(r"\.\w+$|/\S*\w$")


@dataclass(frozen=True, slots=True)
class Whole:
    """One edit: all lines of a file. `line` is where it begins in the text, from 1."""

    path: str
    lines: tuple[str, ...]
    line: int

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class _Fenced:
    fence: Fence
    start: int
    lines: Sequence[str]


def parse(content: str, path: str | None = None) -> tuple[list[Whole], list[str]]:
    """The files of a text, and its shell commands; `path` is the file of a fence without a name."""
    lines = content.replace("\r\n", "\n").split("\n")
    found, commands, after = list[tuple[str, Whole]](), list[str](), 0
    for fenced in _fenced_texts(lines):
        rank, name = _name_of(lines, after, fenced.start, path)
        if rank != "block" and fenced.fence.is_shell:
            commands.append("\n".join(fenced.lines))
        elif name is None:
            raise parse_error(
                FORMAT, lines, fenced.start, "No file is named before this fence, and none in `file_path`"
            )
        else:
            found.append((rank, Whole(name, tuple(fenced.lines), fenced.start + 1)))
        after = fenced.start + len(fenced.lines) + 2
    if not found:
        raise parse_error(
            FORMAT, lines, len(lines) - 1, "Expected a path and a fence with the file's text; there is none"
        )
    return _most_certain(found), commands


def _fenced_texts(lines: Sequence[str]) -> Iterator[_Fenced]:
    at = 0
    while at < len(lines):
        if fence := open_fence(lines[at]):
            end = _closing_line(lines, at, fence)
            yield _Fenced(fence, at, lines[at + 1 : end])
            at = end
        at += 1


def _closing_line(lines: Sequence[str], start: int, fence: Fence) -> int:
    """The line that closes a fence."""
    depth = 1
    for at in range(start + 1, len(lines)):
        inner = open_fence(lines[at])
        if lines[at].rstrip() == fence.closing:
            depth -= 1
        elif inner and inner.closing == fence.closing:
            depth += 1
        if not depth:
            return at
    expected = f"Expected {fence.closing} to close this fence. If the file has such lines itself, use four backticks"
    raise parse_error(FORMAT, lines, start, expected)


def _name_of(lines: Sequence[str], after: int, fence: int, path: str | None) -> tuple[str, str | None]:
    """How the file at this fence is named, and its path, by the lines since the fence before."""
    before = lines[after:fence]
    name = (name_on(before[-1]) if before else None) or name_on(lines[fence])
    if name:
        return "block", name
    mentioned = [word for line in before for word in _MENTIONED.findall(line) if _NAME.search(word)]
    return ("mentioned", mentioned[-1]) if mentioned else ("given", path)


def _most_certain(found: Sequence[tuple[str, Whole]]) -> list[Whole]:
    chosen: dict[str, Whole] = {}
    for rank in RANKS:
        for how, whole in found:
            if how == rank:
                chosen.setdefault(whole.path, whole)
    return sorted(chosen.values(), key=lambda whole: whole.line)
