"""Hunks: where each stands in a file, and what the file is after them.

Hunks come in the order of the file. What a hunk leaves alone keeps its own text and line end; what comes new ends as
the first line of the file does. A hunk that only fits with another indentation brings its new lines at the file's.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.text.edit.diff import Span, lines_of
from app.text.edit.reindent import reindent
from app.text.lazy_lines import Lines
from app.text.patch.mismatch import ExpectedLines, header_missing, lines_missing
from app.text.patch.parse import Hunk
from app.text.patch.seek import Match, SeekableText


@dataclass(frozen=True, slots=True)
class Fitted:
    """The text after all hunks. `spans` and `lines` (before them) are what a diff needs, where they are known."""

    text: str
    spans: list[Span] | None
    lines: Lines | None = None


@dataclass(slots=True)
class _Edit:
    """The lines from `start` to before `end` become these; none of them has its end."""

    start: int
    end: int
    new: list[str]


@dataclass(frozen=True, slots=True)
class _Sides:
    """What a hunk looks for and what it makes of it; `kept` are the lines on both sides, by their places there."""

    old: list[str]
    new: list[str]
    kept: list[tuple[int, int]]


def fit(text: str, hunks: Sequence[Hunk], path: str) -> Fitted:
    """Make these changes to the text of a file. Raises `PatchMismatch` when one of them has no place in it."""
    has_cr = "\r" in text
    sheet = SeekableText(text.replace("\r\n", "\n") if has_cr else text)
    # Each CRLF made it shorter by one: fewer than there are ends now, and some were another kind.
    if has_cr and ("\r" in sheet.text or len(text) - len(sheet.text) < sheet.ends):
        return _fit_mixed(text, hunks, path)
    edits = _edits(sheet, hunks, path)
    after = _rewritten(sheet.count, edits, sheet.piece, "\n")
    if not has_cr:
        spans = _spans(edits, lambda start, end: lines_of(sheet.piece(start, end)), "\n")
        return Fitted(after, spans, Lines(text, sheet.count, sheet.exact.offset))
    spans = _spans(edits, lambda start, end: lines_of(sheet.piece(start, end).replace("\n", "\r\n")), "\r\n")
    return Fitted(after.replace("\n", "\r\n"), spans)


def _fit_mixed(text: str, hunks: Sequence[Hunk], path: str) -> Fitted:
    """The same where lines end in several ways: each keeps its own."""
    lines = list(io.StringIO(text, newline=""))
    bare = [line.rstrip("\r\n") for line in lines]
    sheet = SeekableText("\n".join(bare) + ("\n" if lines[-1] != bare[-1] else ""))
    edits, line_end = _edits(sheet, hunks, path), lines[0][len(bare[0]) :]
    after = _rewritten(sheet.count, edits, lambda start, end: "".join(lines[start:end]), line_end)
    # In a diff a CR alone ends no line, so these edits would count other lines than it does.
    is_told = text.count("\r") == text.count("\r\n")
    return Fitted(after, _spans(edits, lambda start, end: lines[start:end], line_end) if is_told else None)


def _edits(sheet: SeekableText, hunks: Sequence[Hunk], path: str) -> list[_Edit]:
    edits, here = list[_Edit](), 0
    for number, hunk in enumerate(hunks, 1):
        wanted = ExpectedLines(path, number, len(hunks))
        for header in hunk.headers:
            passed = sheet.seek([header], here)
            if passed is None:
                raise header_missing(sheet, wanted, header, here)
            here = passed.line + 1
        sides = _sides(hunk.lines)
        if not sides.old:
            at = here if hunk.headers and not hunk.is_at_end else sheet.count
            edits.append(_Edit(at, at, sides.new))
            continue
        found, sides = _found(sheet, sides, here, is_at_end=hunk.is_at_end)
        if found is None:
            raise lines_missing(sheet, wanted, sides.old, sides.new, here, is_at_end=hunk.is_at_end)
        edits += _changes(sheet, sides, found)
        here = found.line + len(sides.old)
    return _joined(sheet, sorted(edits, key=lambda edit: edit.start))


def _sides(lines: Sequence[str]) -> _Sides:
    old = [line[1:] for line in lines if line[0] != "+"]
    new = [line[1:] for line in lines if line[0] != "-"]
    kept, here, there = list[tuple[int, int]](), 0, 0
    for line in lines:
        mark = line[0]
        if mark == " ":
            kept.append((here, there))
        here += mark != "+"
        there += mark != "-"
    return _Sides(old, new, kept)


def _found(sheet: SeekableText, sides: _Sides, here: int, *, is_at_end: bool) -> tuple[Match | None, _Sides]:
    """Where a hunk stands. An empty line at its end may mean the end of the file's last line, which is no line."""
    found = sheet.seek(sides.old, here, is_at_end=is_at_end)
    if found is not None or sides.old[-1]:
        return found, sides
    old, new = sides.old[:-1], sides.new[:-1] if sides.new[-1:] == [""] else sides.new
    kept = [(there, here) for there, here in sides.kept if there < len(old) and here < len(new)]
    found = sheet.seek(old, here, is_at_end=is_at_end)
    return (None, sides) if found is None else (found, _Sides(old, new, kept))


def _changes(sheet: SeekableText, sides: _Sides, found: Match) -> Iterator[_Edit]:
    """What changes between the lines a hunk keeps, which stay as they are in the file."""
    new = sides.new
    if new and found.is_trimmed:
        there = sheet.cut(found.line, found.line + len(sides.old))
        new = reindent("\n".join(new), "\n".join(sides.old), "\n".join(there)).split("\n")
    old_at = new_at = 0
    for old_end, new_end in [*sides.kept, (len(sides.old), len(new))]:
        if (old_at, new_at) != (old_end, new_end):
            yield _Edit(found.line + old_at, found.line + old_end, new[new_at:new_end])
        old_at, new_at = old_end + 1, new_end + 1


def _joined(sheet: SeekableText, edits: list[_Edit]) -> list[_Edit]:
    """Edits that touch are one. What comes after a last line without an end gives it one, so it is part of that."""
    joined = list[_Edit]()
    for edit in edits:
        if joined and joined[-1].end == edit.start:
            joined[-1].end = edit.end
            joined[-1].new += edit.new
        else:
            joined.append(edit)
    if joined and sheet.text and not sheet.text.endswith("\n"):
        last = joined[-1]
        if last.start == sheet.count:
            last.start -= 1
            last.new = sheet.cut(last.start, last.end) + last.new
    return joined


def _spans(edits: list[_Edit], cut: Callable[[int, int], list[str]], line_end: str) -> list[Span]:
    return [Span(edit.start, cut(edit.start, edit.end), [line + line_end for line in edit.new]) for edit in edits]


def _rewritten(count: int, edits: list[_Edit], between: Callable[[int, int], str], line_end: str) -> str:
    """The text with its changes; `between` gives what stands from one line to another."""
    pieces, here = list[str](), 0
    for edit in edits:
        pieces.append(between(here, edit.start))
        pieces += [line + line_end for line in edit.new]
        here = edit.end
    return "".join([*pieces, between(here, count)])
