"""The lines of a file while edits are applied to it, and the search for lines at another indentation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from app.text.edit.diff import Span, compare

# Marks around each line in the searched text; edited texts have no NUL.
BEGIN, END = "\0", "\n"
T = TypeVar("T")

MAX_COMPARED_LINES = 200_000


@dataclass(frozen=True, slots=True)
class Splice:
    """Replaces the lines from `start` (the first is 0) up to `stop`. Lines have no ends."""

    start: int
    stop: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Match:
    """Where an edit applies, by which strategy it was found, and how many places match."""

    strategy: str
    splices: tuple[Splice, ...]
    places: int = 1


class LineBuffer:
    """The lines of a text, without their ends.

    Unchanged lines keep their line ends, new ones get that of the first line, and a text without a final line end
    stays without one.
    """

    def __init__(self, text: str = "") -> None:
        self._end = "\r\n" if text.find("\r\n") == text.find("\n") - 1 >= 0 else "\n"
        self._ends: list[str] | None = None
        is_even = text.count("\r\n") == (text.count("\n") if self._end == "\r\n" else 0)
        self.lines = text.split(self._end if is_even else "\n")
        self._is_open = self.lines[-1] != ""
        if not is_even:
            self._split_mixed_ends()
        if not self._is_open:
            self.lines.pop()
        self._origins = list(range(len(self.lines)))
        self._before = _State(self.lines, self._end, self._ends, self._is_open)
        self._stripped: list[str] | None = None
        self._joined: dict[bool, str] = {}

    @property
    def text(self) -> str:
        if self._ends is None:
            text = self._end.join(self.lines)
            return text + self._end if self.lines and not self._is_open else text
        text = "".join(line + end for line, end in zip(self.lines, self._ends, strict=True))
        return text.removesuffix(self._ends[-1]) if self._ends and self._is_open else text

    def find(self, wanted: Sequence[str], *, stripped: bool = False, disjoint: bool = False) -> Iterator[int]:
        """Where these lines are, in order; `disjoint`: of overlapping places only the first.

        `stripped`: lines are compared without their indentation, and the wanted ones have none.
        """
        text, needle = self._search_text(stripped), _delimited(wanted)
        at, step = text.find(needle) if wanted else -1, len(needle) if disjoint else 1
        line = seen = 0
        while at >= 0:
            line, seen = line + text.count(BEGIN, seen, at), at
            yield line
            at = text.find(needle, at + step)

    def count(self, wanted: Sequence[str]) -> int:
        """How many disjoint places have these lines."""
        return self._search_text(False).count(_delimited(wanted)) if wanted else 0

    def apply(self, splices: Iterable[Splice]) -> None:
        """Apply splices that do not overlap; their line numbers are those before the first of them."""
        spans = [
            Span(splice.start + span.start, span.old, span.new)
            for splice in sorted(splices, key=lambda splice: (splice.start, splice.stop))
            for span in compare(self.lines[splice.start : splice.stop], splice.lines)
        ]
        self._replace_spans(spans)
        if self._is_open and self.lines and not self.lines[-1]:
            self._replace_spans([Span(len(self.lines) - 1, [""], [])])
            self._is_open = False  # an empty last line is none: the line before it ends the text

    def spans(self) -> list[Span]:
        """The changes since the text was loaded, for a diff."""
        before, after = self._before, _State(self.lines, self._end, self._ends, self._is_open)
        spans, old, new = list[Span](), 0, 0
        for here, origin in enumerate(self._original_numbers(before, after)):
            if origin < 0:
                continue
            if (old, new) != (origin, here):
                spans.append(Span(old, before.slice(old, origin), after.slice(new, here)))
            old, new = origin + 1, here + 1
        if old < len(before.lines) or new < len(after.lines):
            spans.append(Span(old, before.slice(old, len(before.lines)), after.slice(new, len(after.lines))))
        return spans

    def _split_mixed_ends(self) -> None:
        """Line ends are mixed, so each line has its own."""
        last = self.lines.pop()
        self._ends = ["\r\n" if line.endswith("\r") else "\n" for line in self.lines]
        self.lines = [line.removesuffix("\r") for line in self.lines]
        self.lines.append(last)
        if self._is_open:
            self._ends.append(self._end)

    def _replace_spans(self, spans: Sequence[Span]) -> None:
        self.lines = _spliced(self.lines, spans, lambda line: line)
        self._origins = _spliced(self._origins, spans, lambda _: -1)
        if self._ends is not None:
            self._ends = _spliced(self._ends, spans, lambda _: self._end)
        if self._stripped is not None:
            self._stripped = _spliced(self._stripped, spans, str.lstrip)
        self._joined.clear()

    def _original_numbers(self, before: "_State", after: "_State") -> list[int]:
        """The original number of each line, -1 for new ones. Of unchanged lines only a last one may end differently."""
        numbers, last = self._origins[:], len(before.lines) - 1
        for here in {len(numbers) - 1, numbers.index(last) if last in numbers else -1}:
            if here < 0 or numbers[here] < 0:
                continue
            if before.slice(numbers[here], numbers[here] + 1) != after.slice(here, here + 1):
                numbers[here] = -1
        return numbers

    def _search_text(self, stripped: bool) -> str:
        """All lines as one text to search in, cached until the next change."""
        if stripped and self._stripped is None:
            self._stripped = [line.lstrip() for line in self.lines]
        if stripped not in self._joined:
            self._joined[stripped] = _delimited(self._stripped or [] if stripped else self.lines)
        return self._joined[stripped]


@dataclass(frozen=True, slots=True)
class _State:
    """The lines of a text at one moment, and how they end."""

    lines: Sequence[str]
    end: str
    ends: Sequence[str] | None
    is_open: bool

    def slice(self, start: int, stop: int) -> list[str]:
        """These lines with their ends."""
        ends = [self.end] * (stop - start) if self.ends is None else list(self.ends[start:stop])
        if self.is_open and start < stop == len(self.lines):
            ends[-1] = ""
        return [line + end for line, end in zip(self.lines[start:stop], ends, strict=True)]


def _spliced(items: list[T], spans: Iterable[Span], of: Callable[[str], T]) -> list[T]:
    """A list with one item per line, in which the items of old lines are replaced; spans are in order."""
    made, here = list[T](), 0
    for span in spans:
        made += items[here : span.start]
        made += map(of, span.new)
        here = span.start + len(span.old)
    return made + items[here:]


def _delimited(lines: Sequence[str]) -> str:
    """Lines joined with marks, so that a search only finds whole lines."""
    return BEGIN + (END + BEGIN).join(lines) + END if lines else ""


class TooManyPlaces(Exception):
    """So many places nearly match that they are not all compared: the text is very repetitive."""


def dedent(*texts: Sequence[str]) -> list[list[str]]:
    """Texts without the indentation that all their lines share."""
    depths = [len(line) - len(line.lstrip()) for text in texts for line in text if line.strip()]
    least = min(depths, default=0)
    return [[line[least:] if line.strip() else line for line in text] for text in texts]


def indent_lines(lines: Sequence[str], by: str) -> list[str]:
    return [by + line if line.strip() else line for line in lines]


def find_shifted(buffer: LineBuffer, lines: Sequence[str], *, disjoint: bool = False) -> Iterator[tuple[int, str]]:
    """Where dedented lines are, and the indentation that each of them has there. Any blank lines match each other.

    `disjoint`: of overlapping places only the first; else raises `TooManyPlaces` if there are too many.
    """
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return
    left = MAX_COMPARED_LINES
    for start in buffer.find([line.lstrip() for line in lines], stripped=True, disjoint=disjoint):
        left -= 0 if disjoint else len(lines)
        if left < 0:
            raise TooManyPlaces
        there = buffer.lines[start + first]
        if not there.endswith(lines[first]):
            continue  # the file has less indentation
        indent = there.removesuffix(lines[first])
        if all(is_shifted(buffer.lines[start + n], line, indent) for n, line in enumerate(lines)):
            yield start, indent


def is_shifted(there: str, line: str, indent: str) -> bool:
    return there == indent + line if line.strip() else not there.strip()


def minimal_splice(start: int, old: Sequence[str], new: Sequence[str]) -> Splice:
    """Replace old lines at `start` by new ones; their common head and tail stay as they are in the file."""
    least = min(len(old), len(new))
    head = next((n for n in range(least) if old[n] != new[n]), least)
    tail = next((n for n in range(least - head) if old[-1 - n] != new[-1 - n]), least - head)
    stop = start + len(old)
    return Splice(start + head, stop - tail, new[head : len(new) - tail])
