"""UDIFF."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import chain, groupby, islice, pairwise

from app.core.errors import InvalidArgs
from app.text.edit import line_buffer
from app.text.edit.draft import NOWHERE
from app.text.edit.fences import opening, quote
from app.text.edit.line_buffer import (
    Endless,
    LineBuffer,
    Match,
    Splice,
    fits,
    indented,
    outdented,
    replacing,
    shifted_places,
)
from app.text.edit.nearest_lines import nearest

DIFFS = frozenset(("diff", "udiff", "patch"))
MARKS = " +-"
NO_NEWLINE = "\\"
# What git writes between the diffs of two files.
_ABOUT = re.compile(
    r"(diff --git |index [0-9a-f]+\.\.|(old|new|new file|deleted file) mode |(dis)?similarity index "
    r"|(rename|copy) (from|to) |Binary files )"
)

MOST_ALIGNED = 400
LEAST_LEFT = 10
LEAST_SHARE = 0.66

Lines = Sequence[str]
Marked = Sequence[tuple[str, str]]


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


@dataclass(frozen=True, slots=True)
class Unclear:
    """There are several places; their lines, the first is 1."""

    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Change:
    """Lines that go and lines that come, and what stands before and after them."""

    before: Lines
    old: Lines
    new: Lines
    after: Lines


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """A place for a change: how many lines around it fit, how many of them count before, and whether it is not shifted.

    What is only added may go after the lines above or before those below when others are between; above comes first.
    """

    context: int
    above: int
    is_exact: bool
    start: int
    add: str

    @property
    def rank(self) -> tuple[int, int, bool]:
        return self.context, self.above, self.is_exact


def find(script: LineBuffer, lines: Marked, every: bool = False) -> Match | Unclear | None:
    try:
        return _find(script, lines, every)
    except Endless:
        return Unclear(())


def _find(script: LineBuffer, lines: Marked, every: bool) -> Match | Unclear | None:
    old, new = _sides(lines)
    found = _whole(script, old, new, every)
    if found is not None:
        return found
    mended = _with_new_lines(script, old, new)
    if mended is None:
        return _by_changes(script, lines, every)
    found = _whole(script, _sides(mended)[0], new, every) or _by_changes(script, mended, every)
    return Match("new_lines", found.splices, found.places) if isinstance(found, Match) else found


def _sides(lines: Marked) -> tuple[list[str], list[str]]:
    return [text for mark, text in lines if mark != "+"], [text for mark, text in lines if mark != "-"]


def _whole(script: LineBuffer, old: Lines, new: Lines, every: bool) -> Match | Unclear | None:
    """All lines of the hunk in one place."""
    plain, bare = (old, new), _without_blank_ends(old, new)
    return (
        _exact(script, *plain, "exact", every)
        or _exact(script, *bare, "blank_lines", every)
        or _shifted(script, *plain, "indentation", every)
        or _shifted(script, *bare, "blank_lines+indentation", every)
    )


def _exact(script: LineBuffer, old: Lines, new: Lines, strategy: str, every: bool) -> Match | Unclear | None:
    if not _says_something(old):
        return None
    starts = list(islice(script.places(old, apart=every), None if every else 2))
    return _chosen([replacing(start, old, new) for start in starts], starts, strategy, every)


def _shifted(script: LineBuffer, old: Lines, new: Lines, strategy: str, every: bool) -> Match | Unclear | None:
    was, comes = outdented(old, new)
    found = list(islice(shifted_places(script, was, apart=every), None if every else 2))
    splices = [_indented(replacing(start, was, comes), add) for start, add in found]
    return _chosen(splices, [start for start, _ in found], strategy, every)


def _chosen(splices: Sequence[Splice], starts: Sequence[int], strategy: str, every: bool) -> Match | Unclear | None:
    if len(splices) > 1 and not every:
        return Unclear(tuple(start + 1 for start in starts))
    return Match(strategy, tuple(splices), len(splices)) if splices else None


def _indented(splice: Splice, add: str) -> Splice:
    return Splice(splice.start, splice.stop, indented(splice.lines, add))


def _says_something(lines: Lines) -> bool:
    return any(line.strip() for line in lines)


def _without_blank_ends(old: Lines, new: Lines) -> tuple[Lines, Lines]:
    """Without the blank lines that what is looked for begins and ends with; what comes loses no more than those."""
    head, tail = _blanks(old), _blanks(old[::-1])
    if head == len(old):
        return old, new
    lost, last = min(head, _blanks(new)), min(tail, _blanks(new[::-1]))
    return old[head : len(old) - tail], new[lost : max(lost, len(new) - last)]


def _blanks(lines: Lines) -> int:
    return next((number for number, line in enumerate(lines) if line.strip()), len(lines))


def _with_new_lines(script: LineBuffer, old: Lines, new: Lines) -> list[tuple[str, str]] | None:
    """The hunk without the old lines that have no counterpart in the file; None when nothing much would be left."""
    around = nearest(script.lines, old) if len(old) <= MOST_ALIGNED else None
    if around is None:
        return None
    there = script.lines[around.start : around.stop + len(old)]
    blocks = SequenceMatcher(None, old, there, autojunk=False).get_opcodes()
    left = [line for tag, start, end, _, _ in blocks if tag != "delete" for line in old[start:end]]
    if len(left) == len(old) or len(left) < len(old) * LEAST_SHARE or len("".join(left).strip()) < LEAST_LEFT:
        return None
    return list(_marked(left, new))


def _marked(old: Lines, new: Lines) -> Iterator[tuple[str, str]]:
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from ((" ", line) for line in old[i1:i2])
        else:
            yield from (("-", line) for line in old[i1:i2])
            yield from (("+", line) for line in new[j1:j2])


def _by_changes(script: LineBuffer, lines: Marked, every: bool) -> Match | Unclear | None:
    splices, places = list[Splice](), 1
    for change in _changes(lines):
        found = _best(script, change)
        if not found:
            return None
        if len(found) > 1 and not every:
            return Unclear(tuple(sorted(place.start + 1 for place in found)[:2]))
        places = max(places, len(found))
        size = len(change.old)
        splices += [Splice(at.start, at.start + size, indented(change.new, at.add)) for at in found]
    ordered = sorted(splices, key=lambda splice: splice.start) if every else splices
    is_apart = all(one.stop <= other.start for one, other in pairwise(ordered))
    return Match("context", tuple(splices), places) if splices and is_apart else None


def _changes(lines: Marked) -> Iterator[_Change]:
    """Each run of changed lines with the runs of context around it, all outdented alike."""
    [texts] = outdented([text for _, text in lines])
    marked = [(mark, text) for (mark, _), text in zip(lines, texts, strict=True)]
    runs = [list(run) for _, run in groupby(marked, key=lambda line: line[0] == " ")]
    for at, run in enumerate(runs):
        if run[0][0] == " ":
            continue
        before = runs[at - 1] if at else []
        after = runs[at + 1] if at + 1 < len(runs) else []
        old, new = _sides(run)
        yield _Change([text for _, text in before], old, new, [text for _, text in after])


def _best(script: LineBuffer, change: _Change) -> list[_Place]:
    """The places with the most lines around them that fit; among those, the ones without a shift."""
    places = {place.start: place for place in sorted(_places(script, change))}
    if not places:
        return []
    best = max(place.rank for place in places.values())
    return [place for place in places.values() if place.rank == best]


def _places(script: LineBuffer, change: _Change) -> Iterator[_Place]:
    """Where a change may be: where its old lines are, or if it has none, beside a line of its context."""
    left, has_old = line_buffer.MOST_COMPARED, _says_something(change.old)
    for start, add in _anchored(script, change):
        above, below = _fitting(script, change, start, add)
        left -= above + below + 1
        if left < 0:
            raise Endless
        yield _Place(above + below, 0 if has_old else above, not add, start, add)


def _anchored(script: LineBuffer, change: _Change) -> Iterator[tuple[int, str]]:
    if _says_something(change.old):
        yield from shifted_places(script, change.old)
        return
    up, down = _blanks(change.before[::-1]) + 1, _blanks(change.after) + 1
    above = [*change.before[-up:], *change.old] if up <= len(change.before) else []
    below = [*change.old, *change.after[:down]] if down <= len(change.after) else []
    starts = ((start + up, add) for start, add in shifted_places(script, above))
    yield from chain(starts, shifted_places(script, below))


def _fitting(script: LineBuffer, change: _Change, start: int, add: str) -> tuple[int, int]:
    """How many lines before and after a place are as the hunk says, without a gap."""
    there, stop = script.lines, start + len(change.old)
    above = ((there[start - 1 - n], line) for n, line in zip(range(start), reversed(change.before), strict=False))
    below = ((there[n], line) for n, line in zip(range(stop, len(there)), change.after, strict=False))
    return _run(above, add), _run(below, add)


def _run(pairs: Iterable[tuple[str, str]], add: str) -> int:
    fitting = 0
    for there, line in pairs:
        if not fits(there, line, add):
            break
        fitting += 1
    return fitting
