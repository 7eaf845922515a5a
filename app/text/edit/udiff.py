"""Unified diffs: read from a model's text, fenced as `diff` or bare, and found in a file.

Line numbers are ignored; `@@` only separates hunks. A file is named by `---` and `+++`, without `a/` and `b/`;
`/dev/null` on one side creates or deletes the file. In a fence a line without a mark is context, in a bare diff it ends
the hunk. Hunks that change nothing, or repeat another, are left out.

The first strategy that finds a place is used:

    exact        the old lines as they are
    blank_lines  the same, without their leading and trailing blank lines
    indentation  all of them shifted by the same indentation; blank_lines+indentation: both
    new_lines    lines that are not in the file were meant to be added and lost their `+`
    context      each change by itself, with as much of its context as matches

There must be only one place, unless `replace_all` is set.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import chain, groupby, islice, pairwise

from app.text.edit import line_buffer
from app.text.edit.draft import NOWHERE
from app.text.edit.fences import open_fence, parse_error
from app.text.edit.line_buffer import (
    LineBuffer,
    Match,
    Splice,
    TooManyPlaces,
    dedent,
    find_shifted,
    indent_lines,
    is_shifted,
    minimal_splice,
)
from app.text.edit.nearest_lines import nearest

FORMAT = "a unified diff"
DIFFS = frozenset(("diff", "udiff", "patch"))
MARKS = " +-"
NO_NEWLINE = "\\"
# What git writes between the diffs of two files.
_GIT_HEADER = re.compile(
    r"(diff --git |index [0-9a-f]+\.\.|(old|new|new file|deleted file) mode |(dis)?similarity index "
    r"|(rename|copy) (from|to) |Binary files )"
)

MAX_ALIGNED_LINES = 400
MIN_LEFT_LENGTH = 10
MIN_LEFT_SHARE = 0.66

Lines = Sequence[str]
Marked = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Hunk:
    """One edit: lines with their marks. `line` is where it begins in the text, from 1."""

    path: str
    lines: tuple[tuple[str, str], ...]
    line: int
    creates: bool = False
    deletes: bool = False

    @property
    def old(self) -> list[str]:
        return [text for mark, text in self.lines if mark != "+"]

    @property
    def new(self) -> list[str]:
        return [text for mark, text in self.lines if mark != "-"]

    def __str__(self) -> str:
        return "\n".join(mark + text for mark, text in self.lines)


@dataclass(slots=True)
class _Parser:
    """The state of parsing: the current file, and the lines of the current hunk."""

    path: str | None
    creates: bool = False
    deletes: bool = False
    lines: list[tuple[str, str]] = field(default_factory=list)
    first_line: int = 0
    hunks: list[Hunk] = field(default_factory=list)
    is_in_hunk: bool = True


def parse(content: str, path: str | None = None) -> list[Hunk]:
    """The hunks of a text; `path` is the file of hunks without one."""
    lines = content.replace("\r\n", "\n").split("\n")
    parser = _Parser(path)
    for start, end, is_fenced in list(_fenced_diffs(lines)) or [(0, len(lines), False)]:
        _parse_lines(lines, start, end, is_fenced, parser)
    hunks = list(_distinct(parser.hunks))
    if not hunks:
        expected = "Expected a diff with lines that begin with `-` or `+`, under `---` and `+++`; there is none"
        raise parse_error(FORMAT, lines, len(lines) - 1, expected)
    return hunks


def _fenced_diffs(lines: Sequence[str]) -> Iterator[tuple[int, int, bool]]:
    """The line ranges of fenced diffs."""
    at = 0
    while at < len(lines):
        fence = open_fence(lines[at])
        if fence and (fence.info.split() or [""])[0].lower() in DIFFS:
            start = at + 1
            at = next((n for n in range(start, len(lines)) if lines[n].startswith(fence.closing)), len(lines))
            yield start, at, True
        at += 1


def _parse_lines(lines: Sequence[str], start: int, end: int, is_fenced: bool, parser: _Parser) -> None:
    parser.is_in_hunk, at = is_fenced, start
    while at < end:
        if at + 1 < end and lines[at].startswith("--- ") and lines[at + 1].startswith("+++ "):
            _end_hunk(parser, lines)
            _begin_file(parser, lines[at], lines[at + 1], at)
            at += 1
        elif lines[at].startswith("@@"):
            _end_hunk(parser, lines)
            parser.is_in_hunk = True
        elif parser.is_in_hunk:
            _add_line(parser, lines[at], at, is_fenced)
        at += 1
    _end_hunk(parser, lines)


def _begin_file(parser: _Parser, old: str, new: str, at: int) -> None:
    """Begin another file."""
    before, after = (line[4:].split("\t")[0].strip() for line in (old, new))
    parser.creates, parser.deletes = before == NOWHERE, after == NOWHERE
    if parser.deletes:
        parser.path = before.removeprefix("a/")
        parser.hunks.append(Hunk(parser.path, (), at + 1, deletes=True))
    else:
        is_git = before.startswith("a/") or parser.creates
        parser.path = after.removeprefix("b/") if is_git else after
    parser.is_in_hunk = True


def _add_line(parser: _Parser, line: str, at: int, is_fenced: bool) -> None:
    if line[:1] == NO_NEWLINE or _GIT_HEADER.match(line):
        return
    if not parser.lines:
        parser.first_line = at + 1
    if not line.strip():
        parser.lines.append((" ", ""))
    elif line[0] in MARKS:
        parser.lines.append((line[0], line[1:] if line[1:].strip() else ""))
    elif is_fenced:
        parser.lines.append((" ", line))
    else:
        parser.is_in_hunk = False


def _end_hunk(parser: _Parser, lines: Sequence[str]) -> None:
    """End the hunk. All hunks of a deleted file are one."""
    lines_of_hunk, parser.lines = _without_last_blanks(parser.lines), []
    if not any(mark != " " for mark, _ in lines_of_hunk):
        return
    if parser.path is None:
        raise parse_error(
            FORMAT, lines, parser.first_line - 1, "Expected `--- path` and `+++ path` before this, or `file_path`"
        )
    if parser.deletes:
        last = parser.hunks[-1]
        parser.hunks[-1] = replace(last, lines=(*last.lines, *lines_of_hunk))
    else:
        parser.hunks.append(Hunk(parser.path, tuple(lines_of_hunk), parser.first_line, creates=parser.creates))


def _without_last_blanks(lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Unmarked blank lines at the end of a hunk do not belong to it."""
    end = len(lines)
    while end and lines[end - 1] == (" ", ""):
        end -= 1
    return lines[:end]


def _distinct(hunks: Sequence[Hunk]) -> Iterator[Hunk]:
    seen = set[tuple[str, tuple[str, ...], tuple[str, ...]]]()
    for hunk in hunks:
        key = hunk.path, tuple(hunk.old), tuple(hunk.new)
        if hunk.deletes or (key[1] != key[2] and key not in seen):
            yield hunk
        seen.add(key)


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """Several places match; their lines, from 1."""

    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Change:
    """Old and new lines, and their context."""

    before: Lines
    old: Lines
    new: Lines
    after: Lines


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """A place for a change: how much context matches, how much of it above, and whether the indentation is the same.

    Added lines may go below the context above, or above the context below, if the file has lines between; the first is
    preferred.
    """

    context: int
    above: int
    is_exact: bool
    start: int
    indent: str

    @property
    def rank(self) -> tuple[int, int, bool]:
        return self.context, self.above, self.is_exact


def find(buffer: LineBuffer, lines: Marked, replace_all: bool = False) -> Match | Ambiguous | None:
    try:
        return _find(buffer, lines, replace_all)
    except TooManyPlaces:
        return Ambiguous(())


def _find(buffer: LineBuffer, lines: Marked, replace_all: bool) -> Match | Ambiguous | None:
    old, new = _sides(lines)
    found = _find_whole(buffer, old, new, replace_all)
    if found is not None:
        return found
    restored = _restore_new_lines(buffer, old, new)
    if restored is None:
        return _find_by_changes(buffer, lines, replace_all)
    found = _find_whole(buffer, _sides(restored)[0], new, replace_all) or _find_by_changes(
        buffer, restored, replace_all
    )
    return Match("new_lines", found.splices, found.places) if isinstance(found, Match) else found


def _sides(lines: Marked) -> tuple[list[str], list[str]]:
    return [text for mark, text in lines if mark != "+"], [text for mark, text in lines if mark != "-"]


def _find_whole(buffer: LineBuffer, old: Lines, new: Lines, replace_all: bool) -> Match | Ambiguous | None:
    """All lines of the hunk at one place."""
    plain, bare = (old, new), _without_blank_ends(old, new)
    return (
        _find_exact(buffer, *plain, "exact", replace_all)
        or _find_exact(buffer, *bare, "blank_lines", replace_all)
        or _find_shifted_whole(buffer, *plain, "indentation", replace_all)
        or _find_shifted_whole(buffer, *bare, "blank_lines+indentation", replace_all)
    )


def _find_exact(
    buffer: LineBuffer, old: Lines, new: Lines, strategy: str, replace_all: bool
) -> Match | Ambiguous | None:
    if not _has_text(old):
        return None
    starts = list(islice(buffer.find(old, disjoint=replace_all), None if replace_all else 2))
    return _to_match([minimal_splice(start, old, new) for start in starts], starts, strategy, replace_all)


def _find_shifted_whole(
    buffer: LineBuffer, old: Lines, new: Lines, strategy: str, replace_all: bool
) -> Match | Ambiguous | None:
    old_lines, new_lines = dedent(old, new)
    found = list(islice(find_shifted(buffer, old_lines, disjoint=replace_all), None if replace_all else 2))
    splices = [_indented(minimal_splice(start, old_lines, new_lines), indent) for start, indent in found]
    return _to_match(splices, [start for start, _ in found], strategy, replace_all)


def _to_match(
    splices: Sequence[Splice], starts: Sequence[int], strategy: str, replace_all: bool
) -> Match | Ambiguous | None:
    if len(splices) > 1 and not replace_all:
        return Ambiguous(tuple(start + 1 for start in starts))
    return Match(strategy, tuple(splices), len(splices)) if splices else None


def _indented(splice: Splice, indent: str) -> Splice:
    return Splice(splice.start, splice.stop, indent_lines(splice.lines, indent))


def _has_text(lines: Lines) -> bool:
    return any(line.strip() for line in lines)


def _without_blank_ends(old: Lines, new: Lines) -> tuple[Lines, Lines]:
    """Without leading and trailing blank lines of the old side; the new side loses no more than those."""
    head, tail = _blanks(old), _blanks(old[::-1])
    if head == len(old):
        return old, new
    lost, last = min(head, _blanks(new)), min(tail, _blanks(new[::-1]))
    return old[head : len(old) - tail], new[lost : max(lost, len(new) - last)]


def _blanks(lines: Lines) -> int:
    return next((number for number, line in enumerate(lines) if line.strip()), len(lines))


def _restore_new_lines(buffer: LineBuffer, old: Lines, new: Lines) -> list[tuple[str, str]] | None:
    """The hunk without old lines that are not in the file; None if too little would be left."""
    around = nearest(buffer.lines, old) if len(old) <= MAX_ALIGNED_LINES else None
    if around is None:
        return None
    there = buffer.lines[around.start : around.stop + len(old)]
    blocks = SequenceMatcher(None, old, there, autojunk=False).get_opcodes()
    left = [line for tag, start, end, _, _ in blocks if tag != "delete" for line in old[start:end]]
    if len(left) == len(old) or len(left) < len(old) * MIN_LEFT_SHARE or len("".join(left).strip()) < MIN_LEFT_LENGTH:
        return None
    return list(_marked(left, new))


def _marked(old: Lines, new: Lines) -> Iterator[tuple[str, str]]:
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from ((" ", line) for line in old[i1:i2])
        else:
            yield from (("-", line) for line in old[i1:i2])
            yield from (("+", line) for line in new[j1:j2])


def _find_by_changes(buffer: LineBuffer, lines: Marked, replace_all: bool) -> Match | Ambiguous | None:
    splices, places = list[Splice](), 1
    for change in _changes(lines):
        found = _best_places(buffer, change)
        if not found:
            return None
        if len(found) > 1 and not replace_all:
            return Ambiguous(tuple(sorted(place.start + 1 for place in found)[:2]))
        places = max(places, len(found))
        size = len(change.old)
        splices += [Splice(at.start, at.start + size, indent_lines(change.new, at.indent)) for at in found]
    ordered = sorted(splices, key=lambda splice: splice.start) if replace_all else splices
    is_disjoint = all(one.stop <= other.start for one, other in pairwise(ordered))
    return Match("context", tuple(splices), places) if splices and is_disjoint else None


def _changes(lines: Marked) -> Iterator[_Change]:
    """Each run of changed lines with its context, all dedented alike."""
    [texts] = dedent([text for _, text in lines])
    marked = [(mark, text) for (mark, _), text in zip(lines, texts, strict=True)]
    runs = [list(run) for _, run in groupby(marked, key=lambda line: line[0] == " ")]
    for at, run in enumerate(runs):
        if run[0][0] == " ":
            continue
        before = runs[at - 1] if at else []
        after = runs[at + 1] if at + 1 < len(runs) else []
        old, new = _sides(run)
        yield _Change([text for _, text in before], old, new, [text for _, text in after])


def _best_places(buffer: LineBuffer, change: _Change) -> list[_Place]:
    """The places with the most matching context; among those, the ones at the same indentation."""
    places = {place.start: place for place in sorted(_places(buffer, change))}
    if not places:
        return []
    best = max(place.rank for place in places.values())
    return [place for place in places.values() if place.rank == best]


def _places(buffer: LineBuffer, change: _Change) -> Iterator[_Place]:
    """Where a change may be: at its old lines, or without any, beside a line of its context."""
    left, has_old = line_buffer.MAX_COMPARED_LINES, _has_text(change.old)
    for start, indent in _possible_places(buffer, change):
        above, below = _matching_context(buffer, change, start, indent)
        left -= above + below + 1
        if left < 0:
            raise TooManyPlaces
        yield _Place(above + below, 0 if has_old else above, not indent, start, indent)


def _possible_places(buffer: LineBuffer, change: _Change) -> Iterator[tuple[int, str]]:
    if _has_text(change.old):
        yield from find_shifted(buffer, change.old)
        return
    up, down = _blanks(change.before[::-1]) + 1, _blanks(change.after) + 1
    above = [*change.before[-up:], *change.old] if up <= len(change.before) else []
    below = [*change.old, *change.after[:down]] if down <= len(change.after) else []
    starts = ((start + up, indent) for start, indent in find_shifted(buffer, above))
    yield from chain(starts, find_shifted(buffer, below))


def _matching_context(buffer: LineBuffer, change: _Change, start: int, indent: str) -> tuple[int, int]:
    """How many context lines above and below a place match, without a gap."""
    there, stop = buffer.lines, start + len(change.old)
    above = ((there[start - 1 - n], line) for n, line in zip(range(start), reversed(change.before), strict=False))
    below = ((there[n], line) for n, line in zip(range(stop, len(there)), change.after, strict=False))
    return _count_matching(above, indent), _count_matching(below, indent)


def _count_matching(pairs: Iterable[tuple[str, str]], indent: str) -> int:
    matching = 0
    for there, line in pairs:
        if not is_shifted(there, line, indent):
            break
        matching += 1
    return matching
