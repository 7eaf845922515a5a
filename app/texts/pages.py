"""Pages: the text of a file while edits are made to it, one after the other. Its line ends stay its own."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from app.texts.diffs import Span, compare, lines_of

# What begins a line and what ends it, where lines are searched: no text that is edited has a NUL.
BEGIN, END = "\0", "\n"


@dataclass(frozen=True, slots=True)
class Splice:
    """From line `start` (the first is 0) up to `stop`, these lines come instead. Lines have no ends."""

    start: int
    stop: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Match:
    """Where an edit belongs on a page, by which rule that was found, and how many places there were to choose from."""

    strategy: str
    splices: tuple[Splice, ...]
    places: int = 1


class Page:
    """The lines of a text, without their ends.

    A line that stays keeps its end, one that comes ends as the first line of the file does, and a text whose last
    line is open stays open.
    """

    def __init__(self, text: str = "") -> None:
        self._text = text
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
        for splice in reversed(sorted(splices, key=lambda splice: (splice.start, splice.stop))):
            spans = compare(self.lines[splice.start : splice.stop], splice.lines)
            for span in reversed(spans):
                self._put(splice.start + span.start, span)
        if self._is_open and self.lines and not self.lines[-1]:
            self._close()
        self._joined.clear()

    def spans(self) -> list[Span]:
        """What became what since the page was opened, as a diff tells it."""
        before, after = lines_of(self._text), lines_of(self.text)
        spans, old, new = list[Span](), 0, 0
        for here, origin in enumerate(self._kept(before, after)):
            if origin < 0:
                continue
            if (old, new) != (origin, here):
                spans.append(Span(old, before[old:origin], after[new:here]))
            old, new = origin + 1, here + 1
        if old < len(before) or new < len(after):
            spans.append(Span(old, before[old:], after[new:]))
        return spans

    def _take_ends(self) -> None:
        """Ends are mixed: each line keeps its own in mind."""
        last = self.lines.pop()
        self._ends = ["\r\n" if line.endswith("\r") else "\n" for line in self.lines]
        self.lines = [line.removesuffix("\r") for line in self.lines]
        self.lines.append(last)
        if self._is_open:
            self._ends.append(self._end)

    def _put(self, start: int, span: Span) -> None:
        stop = start + len(span.old)
        self.lines[start:stop] = span.new
        self._origins[start:stop] = [-1] * len(span.new)
        if self._ends is not None:
            self._ends[start:stop] = [self._end] * len(span.new)
        if self._bare is not None:
            self._bare[start:stop] = [line.lstrip() for line in span.new]

    def _close(self) -> None:
        """An open line with nothing in it is none: the one before has its end."""
        self._put(len(self.lines) - 1, Span(0, self.lines[-1:], []))
        self._is_open = False

    def _kept(self, before: Sequence[str], after: Sequence[str]) -> list[int]:
        """The number each line had, -1 for those that came. Of those that stayed, only a last one may have changed."""
        kept = self._origins[:]
        for here in {len(kept) - 1, kept.index(len(before) - 1) if len(before) - 1 in kept else -1}:
            if here >= 0 and kept[here] >= 0 and before[kept[here]] != after[here]:
                kept[here] = -1
        return kept

    def _searched(self, bare: bool) -> str:
        """All lines as one text to search in, made once for each state of the page."""
        if bare and self._bare is None:
            self._bare = [line.lstrip() for line in self.lines]
        if bare not in self._joined:
            self._joined[bare] = _form(self._bare or [] if bare else self.lines)
        return self._joined[bare]


def _form(lines: Sequence[str]) -> str:
    """Lines such that each is told from the next: what is found begins and ends with whole lines."""
    return BEGIN + (END + BEGIN).join(lines) + END if lines else ""
