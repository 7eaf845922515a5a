"""Line buffer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from app.text.edit.diff import Span, compare

# What begins a line and what ends it, where lines are searched: no text that is edited has a NUL.
BEGIN, END = "\0", "\n"
T = TypeVar("T")

MOST_COMPARED = 200_000


@dataclass(frozen=True, slots=True)
class Splice:
    """From line `start` (the first is 0) up to `stop`, these lines come instead. Lines have no ends."""

    start: int
    stop: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Match:
    """Where an edit belongs, by which rule that was found, and how many places there were to choose from."""

    strategy: str
    splices: tuple[Splice, ...]
    places: int = 1


class LineBuffer:
    """The lines of a text, without their ends.

    A line that stays keeps its end, one that comes ends as the first line of the file does, and a text whose last
    line is open stays open.
    """

    def __init__(self, text: str = "") -> None:
        self._end = "\r\n" if text.find("\r\n") == text.find("\n") - 1 >= 0 else "\n"
        self._ends: list[str] | None = None
        is_even = text.count("\r\n") == (text.count("\n") if self._end == "\r\n" else 0)
        self.lines = text.split(self._end if is_even else "\n")
        self._is_open = self.lines[-1] != ""
        if not is_even:
            self._take_ends()
        if not self._is_open:
            self.lines.pop()
        self._origins = list(range(len(self.lines)))
        self._before = _State(self.lines, self._end, self._ends, self._is_open)
        self._bare: list[str] | None = None
        self._joined: dict[bool, str] = {}

    @property
    def text(self) -> str:
        if self._ends is None:
            text = self._end.join(self.lines)
            return text + self._end if self.lines and not self._is_open else text
        text = "".join(line + end for line, end in zip(self.lines, self._ends, strict=True))
        return text.removesuffix(self._ends[-1]) if self._ends and self._is_open else text

    def places(self, wanted: Sequence[str], *, bare: bool = False, apart: bool = False) -> Iterator[int]:
        """Where these lines stand, one place after the other; `apart`: of places that meet, only the first.

        `bare`: lines are compared without the white space they begin with, and the wanted ones have none.
        """
        text, needle = self._searched(bare), _form(wanted)
        at, step = text.find(needle) if wanted else -1, len(needle) if apart else 1
        line = seen = 0
        while at >= 0:
            line, seen = line + text.count(BEGIN, seen, at), at
            yield line
            at = text.find(needle, at + step)

    def count(self, wanted: Sequence[str]) -> int:
        """How many times these lines stand here beside each other."""
        return self._searched(False).count(_form(wanted)) if wanted else 0

    def make(self, splices: Iterable[Splice]) -> None:
        """Make all these changes. They do not meet; lines are numbered as they are before the first of them."""
        spans = [
            Span(splice.start + span.start, span.old, span.new)
            for splice in sorted(splices, key=lambda splice: (splice.start, splice.stop))
            for span in compare(self.lines[splice.start : splice.stop], splice.lines)
        ]
        self._put(spans)
        if self._is_open and self.lines and not self.lines[-1]:
            self._put([Span(len(self.lines) - 1, [""], [])])
            self._is_open = False  # an open line with nothing in it is none: the one before has its end

    def spans(self) -> list[Span]:
        """What became what since the script was opened, as a diff tells it."""
        before, after = self._before, _State(self.lines, self._end, self._ends, self._is_open)
        spans, old, new = list[Span](), 0, 0
        for here, origin in enumerate(self._kept(before, after)):
            if origin < 0:
                continue
            if (old, new) != (origin, here):
                spans.append(Span(old, before.slice(old, origin), after.slice(new, here)))
            old, new = origin + 1, here + 1
        if old < len(before.lines) or new < len(after.lines):
            spans.append(Span(old, before.slice(old, len(before.lines)), after.slice(new, len(after.lines))))
        return spans

    def _take_ends(self) -> None:
        """Ends are mixed: each line keeps its own in mind."""
        last = self.lines.pop()
        self._ends = ["\r\n" if line.endswith("\r") else "\n" for line in self.lines]
        self.lines = [line.removesuffix("\r") for line in self.lines]
        self.lines.append(last)
        if self._is_open:
            self._ends.append(self._end)

    def _put(self, spans: Sequence[Span]) -> None:
        self.lines = _spliced(self.lines, spans, lambda line: line)
        self._origins = _spliced(self._origins, spans, lambda _: -1)
        if self._ends is not None:
            self._ends = _spliced(self._ends, spans, lambda _: self._end)
        if self._bare is not None:
            self._bare = _spliced(self._bare, spans, str.lstrip)
        self._joined.clear()

    def _kept(self, before: "_State", after: "_State") -> list[int]:
        """The number each line had, -1 for those that came. Of those that stayed, only a last one may have changed."""
        kept, last = self._origins[:], len(before.lines) - 1
        for here in {len(kept) - 1, kept.index(last) if last in kept else -1}:
            if here < 0 or kept[here] < 0:
                continue
            if before.slice(kept[here], kept[here] + 1) != after.slice(here, here + 1):
                kept[here] = -1
        return kept

    def _searched(self, bare: bool) -> str:
        """All lines as one text to search in, made once for each state of the script."""
        if bare and self._bare is None:
            self._bare = [line.lstrip() for line in self.lines]
        if bare not in self._joined:
            self._joined[bare] = _form(self._bare or [] if bare else self.lines)
        return self._joined[bare]


@dataclass(frozen=True, slots=True)
class _State:
    """The lines of a script at one moment, and how each of them ends."""

    lines: Sequence[str]
    end: str
    ends: Sequence[str] | None
    is_open: bool

    def slice(self, start: int, stop: int) -> list[str]:
        """Some of the lines, with their ends."""
        ends = [self.end] * (stop - start) if self.ends is None else list(self.ends[start:stop])
        if self.is_open and start < stop == len(self.lines):
            ends[-1] = ""
        return [line + end for line, end in zip(self.lines[start:stop], ends, strict=True)]


def _spliced(items: list[T], spans: Iterable[Span], of: Callable[[str], T]) -> list[T]:
    """A list in which what stands for old lines is replaced by what stands for new ones; spans come in order."""
    made, here = list[T](), 0
    for span in spans:
        made += items[here : span.start]
        made += map(of, span.new)
        here = span.start + len(span.old)
    return made + items[here:]


def _form(lines: Sequence[str]) -> str:
    """Lines such that each is told from the next: what is found begins and ends with whole lines."""
    return BEGIN + (END + BEGIN).join(lines) + END if lines else ""


class Endless(Exception):
    """So many places nearly fit that they are not all looked at: the text repeats itself again and again."""


def outdented(*texts: Sequence[str]) -> list[list[str]]:
    """Texts without the indentation that all their lines have in common."""
    depths = [len(line) - len(line.lstrip()) for text in texts for line in text if line.strip()]
    least = min(depths, default=0)
    return [[line[least:] if line.strip() else line for line in text] for text in texts]


def indented(lines: Sequence[str], add: str) -> list[str]:
    return [add + line if line.strip() else line for line in lines]


def shifted_places(script: LineBuffer, lines: Sequence[str], *, apart: bool = False) -> Iterator[tuple[int, str]]:
    """Where outdented lines stand on a script, and what is before each of them there. Blank lines fit blank lines.

    `apart`: of places that meet, only the first. Else there may be more than it takes; then it raises `Endless`.
    """
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return
    left = MOST_COMPARED
    for start in script.places([line.lstrip() for line in lines], bare=True, apart=apart):
        left -= 0 if apart else len(lines)
        if left < 0:
            raise Endless
        add = indent_before(script.lines[start + first], lines[first])
        if add is not None and all(fits(script.lines[start + n], line, add) for n, line in enumerate(lines)):
            yield start, add


def indent_before(there: str, line: str) -> str | None:
    """What stands before a line in the file where both are the same but for that; None where the file has less."""
    return there.removesuffix(line) if there.endswith(line) else None


def fits(there: str, line: str, add: str) -> bool:
    return there == add + line if line.strip() else not there.strip()


def replacing(start: int, old: Sequence[str], new: Sequence[str]) -> Splice:
    """New lines for old ones that stand from `start` on. What both begin and end with stays as it is there."""
    least = min(len(old), len(new))
    head = next((n for n in range(least) if old[n] != new[n]), least)
    tail = next((n for n in range(least - head) if old[-1 - n] != new[-1 - n]), least - head)
    stop = start + len(old)
    return Splice(start + head, stop - tail, new[head : len(new) - tail])
