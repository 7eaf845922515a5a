"""A text with LF line ends to search in, and the way back to the original line ends.

Models do not see line ends, so these are ignored in searches, and replacements get those of their place.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from app.text.edit.diff import Span, compare, lines_of

MAX_COMPARED_EDITS = 100
"""With more edits than this, unchanged lines inside an edit count as changed in the diff."""

Hit = tuple[int, int]
"""The start and end of a piece of a text."""


class Edit(NamedTuple):
    """A piece of the original text, and its replacement."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Spliced:
    """The new text, how many pieces were replaced, and the lines (from 1) they were in."""

    text: str
    spans: list[Span]
    count: int
    first_line: int
    last_line: int


class NormalizedText:
    """The original text, `raw`, and with LF line ends, `text`. A literal one is not converted at all."""

    def __init__(self, raw: str, is_literal: bool) -> None:
        self.raw = raw
        self._is_literal = is_literal

    @cached_property
    def end(self) -> str | None:
        """The line end of every line; None if they differ.

        A lone CR ends lines only in a text without LF.
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

    def convert(self, other: str) -> str:
        """Another text, with its line ends converted as those of this one."""
        if self._is_literal or "\r" not in other:
            return other
        plain = other.replace("\r\n", "\n")
        return plain.replace("\r", "\n") if "\r" in plain and self.end == "\r" else plain

    def raw_form(self, converted: str) -> str | None:
        """A converted text as it is in the raw one; None if line ends are mixed."""
        if "\n" not in converted:
            return converted
        return None if self.end is None else converted.replace("\n", self.end)

    def splice(self, hits: Iterable[Hit], new: str) -> Spliced:
        """The raw text with each hit in `text` replaced; hits are in order."""
        return self.splice_raw(self._raw_hits(hits), new)

    def splice_raw(self, hits: Iterable[Hit], new: str) -> Spliced:
        """The raw text with each hit in it replaced, in order, with the line ends of its surroundings."""
        edits = [Edit(start, end, self._with_line_ends(new, start, end)) for start, end in hits]
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
        """The offset in the raw text for an offset of `text` in this line."""
        if self.end == "\r\n":
            return offset + line
        if self.end is not None:
            return offset
        return self._raw_starts[line] + offset - (self.text.rfind("\n", 0, offset) + 1)

    @cached_property
    def _raw_starts(self) -> list[int]:
        return [0, *accumulate(len(line) + 1 for line in self.raw.split("\n"))]

    def _with_line_ends(self, new: str, start: int, end: int) -> str:
        """A replacement with the line ends of the raw text between these offsets."""
        if "\n" not in new or self.end == "\n":
            return new
        if self.end is not None:
            return new.replace("\n", self.end)
        # Including the end of the last line: a piece without line ends takes that of its line.
        stop = self.raw.find("\n", max(start, end - 1)) + 1 or len(self.raw)
        ends, returned = self.raw.count("\n", start, stop), self.raw.count("\r\n", start, stop)
        if returned in (0, ends):
            return new.replace("\n", "\r\n") if returned else new
        return _with_ends(new, lines_of(self.raw[start:stop]))


def normalize(raw: str) -> NormalizedText:
    """A text without any line end needs no conversion."""
    return NormalizedText(raw, is_literal="\n" not in raw and "\r" not in raw)


def literal(raw: str) -> NormalizedText:
    """The text as it is, with its CR characters."""
    return NormalizedText(raw, is_literal=True)


def _with_ends(new: str, old: Sequence[str]) -> str:
    """New lines with line ends: unchanged ones keep theirs, the others get that of the first old line."""
    lines, usual = lines_of(new), _end_of(old[0])
    ends = [usual] * len(lines)
    for new_line, old_line in _unchanged([_with_lf(line) for line in old], lines):
        ends[new_line] = _end_of(old[old_line])
    return "".join(line[:-1] + end if line.endswith("\n") else line for line, end in zip(lines, ends, strict=True))


def _unchanged(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The numbers of unchanged lines, in the new and in the old text."""
    new_line = old_line = 0
    for span in [*compare(old, new), Span(len(old), (), ())]:
        for _ in range(span.start - old_line):
            yield new_line, old_line
            new_line, old_line = new_line + 1, old_line + 1
        new_line, old_line = new_line + len(span.new), old_line + len(span.old)


def _end_of(line: str) -> str:
    return "\r\n" if line.endswith("\r\n") else "\n"


def _with_lf(line: str) -> str:
    return f"{line[:-2]}\n" if line.endswith("\r\n") else line


def _spans(raw: str, edits: Sequence[Edit]) -> Iterator[Span]:
    """The changes by lines."""
    number, seen = 0, 0
    for start, end, group in _groups(raw, edits):
        number, seen = number + raw.count("\n", seen, start), start
        pieces, here = list[str](), start
        for edit in group:
            pieces += (raw[here : edit.start], edit.text)
            here = edit.end
        yield from _changed_spans(
            number, raw[start:end], "".join([*pieces, raw[here:end]]), len(edits) <= MAX_COMPARED_EDITS
        )


def _changed_spans(number: int, old: str, new: str, is_compared: bool) -> list[Span]:
    """The changes of lines from this number on, not compared further if there are many edits."""
    if new and "\n" not in old[:-1] and "\n" not in new[:-1]:
        return [Span(number, [old], [new])]
    before, after = lines_of(old), lines_of(new)
    if not is_compared:
        return [Span(number, before, after)]
    return [Span(number + span.start, span.old, span.new) for span in compare(before, after)]


def _groups(raw: str, edits: Sequence[Edit]) -> Iterator[tuple[int, int, list[Edit]]]:
    """Edits that touch the same lines, and the offsets of these lines."""
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
    """The end of the last line that an edit changes: its own end, if a line begins there before and after it."""
    is_clean = edit.text.endswith("\n") if edit.text else edit.start == first
    if is_clean and raw.endswith("\n", 0, edit.end):
        return edit.end
    return raw.find("\n", edit.end) + 1 or len(raw)
