"""Folds: a text with one kind of line end, to search in, and the way back to the text as it is.

A model does not see how lines end, so it cannot say it right. Line ends are no part of what is looked for, and what
is written gets those of the place it is written to.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from app.text.edit.diff import Span, compare, lines_of

MOST_COMPARED = 100
"""Edits of a text up to which lines that stay the same inside one are told from those that change."""

Hit = tuple[int, int]
"""Where a piece of a text begins and ends."""


class Edit(NamedTuple):
    """A piece of the text as it is, and what it becomes."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Spliced:
    """What an edit made, how many pieces it replaced, and in which lines (the first is 1) they were."""

    text: str
    spans: list[Span]
    count: int
    first_line: int
    last_line: int


class NormalizedText:
    """A text as it is, `raw`, and folded, `text`. A literal one is left as it is, and so is what is given for it."""

    def __init__(self, raw: str, is_literal: bool) -> None:
        self.raw = raw
        self._is_literal = is_literal

    @cached_property
    def end(self) -> str | None:
        """What every line ends in; None when they differ.

        Where no line feed is, lone returns end the lines; where one is, they are like any other character.
        """
        if self._is_literal or "\r" not in self.raw:
            return "\n"
        if "\n" not in self.raw:
            return "\r"
        returned = self.raw.count("\r\n")
        if not returned:
            return "\n"
        return "\r\n" if returned == self.raw.count("\n") else None

    @cached_property
    def text(self) -> str:
        return self.raw if self.end == "\n" else self.raw.replace(self.end or "\r\n", "\n")

    def take(self, given: str) -> str:
        """A text somebody gave, folded as this one is."""
        if self._is_literal or "\r" not in given:
            return given
        plain = given.replace("\r\n", "\n")
        return plain.replace("\r", "\n") if "\r" in plain and self.end == "\r" else plain

    def raw_form(self, taken: str) -> str | None:
        """How a text that was taken stands in the raw one; None when that is not the same everywhere."""
        if "\n" not in taken:
            return taken
        return None if self.end is None else taken.replace("\n", self.end)

    def splice(self, hits: Iterable[Hit], new: str) -> Spliced:
        """The raw text with each hit in the folded one (they come in order) replaced."""
        return self.splice_raw(self._raw_hits(hits), new)

    def splice_raw(self, hits: Iterable[Hit], new: str) -> Spliced:
        """The raw text with each of its hits (they come in order) replaced; lines end as they do around it."""
        edits = [Edit(start, end, self._dressed(new, start, end)) for start, end in hits]
        pieces, seen = list[str](), 0
        for edit in edits:
            pieces += (self.raw[seen : edit.start], edit.text)
            seen = edit.end
        first, last = edits[0].start, max(edits[-1].start, edits[-1].end - 1)
        return Spliced(
            text="".join([*pieces, self.raw[seen:]]),
            spans=list(_spans(self.raw, edits)),
            count=len(edits),
            first_line=self.raw.count("\n", 0, first) + 1,
            last_line=self.raw.count("\n", 0, last) + 1,
        )

    def _raw_hits(self, hits: Iterable[Hit]) -> Iterator[Hit]:
        line, seen = 0, 0
        for start, end in hits:
            line += self.text.count("\n", seen, start)
            last = line + self.text.count("\n", start, end)
            yield self._raw_offset(start, line), self._raw_offset(end, last)
            line, seen = last, end

    def _raw_offset(self, offset: int, line: int) -> int:
        """Where an offset of the folded text, in this line, is in the raw one."""
        if self.end == "\r\n":
            return offset + line
        if self.end is not None:
            return offset
        return self._raw_starts[line] + offset - (self.text.rfind("\n", 0, offset) + 1)

    @cached_property
    def _raw_starts(self) -> list[int]:
        return [0, *accumulate(len(line) + 1 for line in self.raw.split("\n"))]

    def _dressed(self, new: str, start: int, end: int) -> str:
        """A folded text with the line ends it has to have between these two places of the raw one."""
        if "\n" not in new or self.end == "\n":
            return new
        if self.end is not None:
            return new.replace("\n", self.end)
        # Up to and with the end of the last line: a piece without line ends takes that of the line it stands in.
        stop = self.raw.find("\n", max(start, end - 1)) + 1 or len(self.raw)
        ends, returned = self.raw.count("\n", start, stop), self.raw.count("\r\n", start, stop)
        if returned in (0, ends):
            return new.replace("\n", "\r\n") if returned else new
        return _with_ends(new, lines_of(self.raw[start:stop]))


def fold(raw: str) -> NormalizedText:
    """A text without any line end has none to keep, and is left as it is."""
    return NormalizedText(raw, is_literal="\n" not in raw and "\r" not in raw)


def literal(raw: str) -> NormalizedText:
    """The text as it is, returns and all."""
    return NormalizedText(raw, is_literal=True)


def _with_ends(new: str, old: Sequence[str]) -> str:
    """New lines with line ends: one that stays as it was keeps its own, the others get that of the first old one."""
    lines, usual = lines_of(new), _end_of(old[0])
    mine = [usual] * len(lines)
    for place, before in _same([_folded(line) for line in old], lines):
        mine[place] = _end_of(old[before])
    return "".join(line[:-1] + end if line.endswith("\n") else line for line, end in zip(lines, mine, strict=True))


def _same(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The places of lines that stay, in the new text and in the old one."""
    place = before = 0
    for span in [*compare(old, new), Span(len(old), (), ())]:
        for _ in range(span.start - before):
            yield place, before
            place, before = place + 1, before + 1
        place, before = place + len(span.new), before + len(span.old)


def _end_of(line: str) -> str:
    return "\r\n" if line.endswith("\r\n") else "\n"


def _folded(line: str) -> str:
    return f"{line[:-2]}\n" if line.endswith("\r\n") else line


def _spans(raw: str, edits: Sequence[Edit]) -> Iterator[Span]:
    """What the edits change, by lines."""
    number, seen = 0, 0
    for start, end, group in _groups(raw, edits):
        number, seen = number + raw.count("\n", seen, start), start
        pieces, here = list[str](), start
        for edit in group:
            pieces += (raw[here : edit.start], edit.text)
            here = edit.end
        yield from _changed(number, raw[start:end], "".join([*pieces, raw[here:end]]), len(edits) <= MOST_COMPARED)


def _changed(number: int, old: str, new: str, is_compared: bool) -> list[Span]:
    """What became of lines from this number on. Of many changes, none is worth a close look."""
    if new and "\n" not in old[:-1] and "\n" not in new[:-1]:
        return [Span(number, [old], [new])]
    before, after = lines_of(old), lines_of(new)
    if not is_compared:
        return [Span(number, before, after)]
    return [Span(number + span.start, span.old, span.new) for span in compare(before, after)]


def _groups(raw: str, edits: Sequence[Edit]) -> Iterator[tuple[int, int, list[Edit]]]:
    """Edits that touch the same lines, and where these lines begin and end."""
    start, end, group = 0, 0, list[Edit]()
    for edit in edits:
        first = raw.rfind("\n", 0, edit.start) + 1
        if group and first >= end:
            yield start, end, group
            group = []
        start, end = start if group else first, _end_of_lines(raw, first, edit)
        group.append(edit)
    yield start, end, group


def _end_of_lines(raw: str, first: int, edit: Edit) -> int:
    """Where the last line ends that an edit changes: at its own end, if a line begins there before and after it."""
    is_clean = edit.text.endswith("\n") if edit.text else edit.start == first
    if is_clean and raw.endswith("\n", 0, edit.end):
        return edit.end
    return raw.find("\n", edit.end) + 1 or len(raw)
