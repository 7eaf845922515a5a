"""Diffs."""

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from itertools import accumulate, chain, pairwise
from typing import overload

BLOCK = 8192
NEAR = 128
"""Characters that are walked line by line; farther lines are found by halves."""

CONTEXT = 3
MOST_COMPARED = 1000
MOST_PAIRS = 10_000
"""Lines on a side, and pairs of equal lines, up to which a stretch is compared line by line; beyond, it is replaced."""


class Lines(Sequence[str]):
    """The lines of a text, with their ends. Only a line feed ends one.

    Where a line begins is found by the number of line feeds in each block; to count them costs far less than to cut
    all lines out. Who knows how many lines there are, and where each begins, can say so.
    """

    def __init__(self, text: str, count: int | None = None, offset: Callable[[int], int] | None = None) -> None:
        self._text = text
        self._count = count
        self._offset = offset or self._found

    def __len__(self) -> int:
        if self._count is None:
            self._count = (self._ended[-1] if self._ended else 0) + bool(self._text and not self._text.endswith("\n"))
        return self._count

    @cached_property
    def _ended(self) -> list[int]:
        """How many line feeds there are up to the end of each block."""
        text = self._text
        return list(accumulate(text.count("\n", start, start + BLOCK) for start in range(0, len(text), BLOCK)))

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                return [self[number] for number in range(start, stop, step)]
            return self._cut(start, stop)
        number = place + len(self) if place < 0 else place
        if not 0 <= number < len(self):
            raise IndexError(place)
        return self._cut(number, number + 1)[0]

    def _cut(self, start: int, stop: int) -> list[str]:
        if start >= stop:
            return []
        lines, at = list[str](), self._offset(start)
        for _ in range(start, stop):
            end = self._text.find("\n", at) + 1 or len(self._text)
            lines.append(self._text[at:end])
            at = end
        return lines

    def _found(self, number: int) -> int:
        """Where a line begins: right after as many line feeds as there are lines before it."""
        block = bisect_left(self._ended, number)
        at, left, size = block * BLOCK, number - (self._ended[block - 1] if block else 0), BLOCK
        while size > NEAR:
            size //= 2
            passed = self._text.count("\n", at, at + size)
            if passed < left:
                at, left = at + size, left - passed
        for _ in range(left):
            at = self._text.index("\n", at) + 1
        return at


@dataclass(frozen=True, slots=True)
class Span:
    """From line `start` (the first is 0) on, the lines `old` became the lines `new`. Lines have their ends."""

    start: int
    old: Sequence[str]
    new: Sequence[str]


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff, and how many lines it adds and takes; the numbers are whole when the text is cut."""

    text: str
    additions: int
    deletions: int
    is_cut: bool = False


def unified(
    before: Sequence[str], spans: Iterable[Span], old_name: str, new_name: str, *, limit: int | None = None
) -> Diff:
    """The unified diff of a file with these lines, in which these spans changed; spans come in order.

    What is over `limit` characters is left out by whole lines, and never made.
    """
    changed = [span for span in spans if span.old != span.new]
    text, is_cut = _gathered(_lines(before, changed, old_name, new_name), limit)
    additions, deletions = sum(len(span.new) for span in changed), sum(len(span.old) for span in changed)
    return Diff(text, additions, deletions, is_cut)


def compare(before: Sequence[str], after: Sequence[str]) -> list[Span]:
    """What became what, when nobody knows.

    What both begin and end with is left out, then the lines that are there once on either side hold the rest in
    place. Only what is left between two of these is compared line by line, and only while that is little work.
    """
    start, least = 0, min(len(before), len(after))
    while start < least and before[start] == after[start]:
        start += 1
    end = 0
    while end < least - start and before[len(before) - 1 - end] == after[len(after) - 1 - end]:
        end += 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    if len(old) < 2 and len(new) < 2:
        return [Span(start, old, new)] if old or new else []
    held = [(-1, -1), *_held(old, new), (len(old), len(new))]
    between = (
        _between(old[i + 1 : next_i], new[j + 1 : next_j], start + i + 1)
        for (i, j), (next_i, next_j) in pairwise(held)
        if next_i > i + 1 or next_j > j + 1
    )
    return list(chain.from_iterable(between))


def lines_of(text: str) -> list[str]:
    """Lines with their ends. Only what ends a line in a file counts, not what `splitlines` takes for an end."""
    return StringIO(text, newline="\n").readlines()


def _held(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Places of lines that are there once on both sides: the most of them that come in the same order."""
    if not old or not new:
        return []
    in_old, in_new = Counter(old), Counter(new)
    places = {line: place for place, line in enumerate(new) if in_new[line] == 1 and in_old[line] == 1}
    return _rising([(place, places[line]) for place, line in enumerate(old) if line in places])


def _rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of pairs that rises on both sides, by patience: a pile for each length."""
    tops, piles, below = list[int](), list[int](), list[int]()
    for number, (_, value) in enumerate(pairs):
        pile = bisect_left(tops, value)
        below.append(piles[pile - 1] if pile else -1)
        tops[pile : pile + 1] = [value]
        piles[pile : pile + 1] = [number]
    run, number = list[tuple[int, int]](), piles[-1] if piles else -1
    while number >= 0:
        run.append(pairs[number])
        number = below[number]
    return run[::-1]


def _between(old: Sequence[str], new: Sequence[str], start: int) -> list[Span]:
    if not _is_worth_comparing(old, new):
        return [Span(start, old, new)]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [Span(start + i1, old[i1:i2], new[j1:j2]) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]


def _is_worth_comparing(old: Sequence[str], new: Sequence[str]) -> bool:
    if max(len(old), len(new)) > MOST_COMPARED:
        return False
    in_new = Counter(new)
    return 0 < sum(count * in_new[line] for line, count in Counter(old).items()) <= MOST_PAIRS


def _gathered(lines: Iterator[str], limit: int | None) -> tuple[str, bool]:
    if limit is None:
        return "".join(lines), False
    kept, size = list[str](), 0
    for line in lines:
        size += len(line)
        if size > limit:
            return "".join(kept), True
        kept.append(line)
    return "".join(kept), False


def _lines(before: Sequence[str], changed: Sequence[Span], old_name: str, new_name: str) -> Iterator[str]:
    grown = 0
    for number, group in enumerate(_groups(changed)):
        if number == 0:
            yield f"--- {old_name}\n"
            yield f"+++ {new_name}\n"
        yield from _hunk(before, group, grown)
        grown += _growth(group)


def _groups(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Changes so near each other that their context meets stand in one hunk."""
    group: list[Span] = []
    for span in spans:
        if group and span.start - (group[-1].start + len(group[-1].old)) > 2 * CONTEXT:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _hunk(before: Sequence[str], group: Sequence[Span], grown: int) -> Iterator[str]:
    """The changes of a group with what stands around them; `grown` lines more came before it."""
    start = max(0, group[0].start - CONTEXT)
    end = min(len(before), group[-1].start + len(group[-1].old) + CONTEXT)
    old, new = _range(start, end - start), _range(start + grown, end - start + _growth(group))
    yield f"@@ -{old} +{new} @@\n"
    here = start
    for span in group:
        yield from _marked(" ", before[here : span.start])
        yield from _marked("-", span.old)
        yield from _marked("+", span.new)
        here = span.start + len(span.old)
    yield from _marked(" ", before[here:end])


def _growth(spans: Iterable[Span]) -> int:
    return sum(len(span.new) - len(span.old) for span in spans)


def _marked(mark: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield mark + (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")


def _range(start: int, length: int) -> str:
    """As `diff` writes it: the line before an empty range stands for it."""
    begin = start + 1 if length else start
    return str(begin) if length == 1 else f"{begin},{length}"
