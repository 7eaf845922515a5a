"""Unified diffs, whose cost is that of the changes and not of the file, and lazily split lines."""

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
"""Within this many characters lines are walked one by one; farther ones are found by bisection."""

CONTEXT = 3
MAX_COMPARED_LINES = 1000
MAX_PAIRS = 10_000
"""LazyLines on a side, and pairs of equal lines, up to which a stretch is compared line by line."""


class LazyLines(Sequence[str]):
    """The lines of a text with their ends, as a sequence; only LF ends a line.

    A line is found by the number of line feeds in each block, which is much cheaper than splitting the text. `count`
    and `offset` (where a line begins) can be given if they are known.
    """

    def __init__(self, text: str, count: int | None = None, offset: Callable[[int], int] | None = None) -> None:
        self._text = text
        self._count = count
        self._offset = offset or self._find_offset

    def __len__(self) -> int:
        if self._count is None:
            self._count = (self._ended[-1] if self._ended else 0) + bool(self._text and not self._text.endswith("\n"))
        return self._count

    @cached_property
    def _ended(self) -> list[int]:
        """The number of line feeds up to the end of each block."""
        text = self._text
        return list(accumulate(text.count("\n", start, start + BLOCK) for start in range(0, len(text), BLOCK)))

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[number] for number in range(start, stop, step)]
            return self._cut(start, stop)
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(index)
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

    def _find_offset(self, number: int) -> int:
        """Where a line begins: behind as many line feeds as there are lines before it."""
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
    """From line `start` (the first is 0), the lines `old` became the lines `new`. LazyLines have their ends."""

    start: int
    old: Sequence[str]
    new: Sequence[str]


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff, and how many lines it adds and deletes, counted in full even if the text is cut."""

    text: str
    additions: int
    deletions: int
    is_cut: bool = False


def unified(
    before: Sequence[str], spans: Iterable[Span], old_name: str, new_name: str, *, limit: int | None = None
) -> Diff:
    """The unified diff of a file with these lines, in which these spans changed, in order.

    It is cut at a whole line below `limit` characters.
    """
    changed = [span for span in spans if span.old != span.new]
    text, is_cut = _join_up_to(_lines(before, changed, old_name, new_name), limit)
    additions, deletions = sum(len(span.new) for span in changed), sum(len(span.old) for span in changed)
    return Diff(text, additions, deletions, is_cut)


def compare(before: Sequence[str], after: Sequence[str]) -> list[Span]:
    """The changed spans of two texts, by a patience diff.

    Common head and tail are left out, then lines that are unique on both sides are the anchors. Only the stretches
    between anchors are compared line by line, and only if that is little work.
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
    anchors = [(-1, -1), *_anchors(old, new), (len(old), len(new))]
    stretches = (
        _compare_stretch(old[i + 1 : next_i], new[j + 1 : next_j], start + i + 1)
        for (i, j), (next_i, next_j) in pairwise(anchors)
        if next_i > i + 1 or next_j > j + 1
    )
    return list(chain.from_iterable(stretches))


def lines_of(text: str) -> list[str]:
    """LazyLines with their ends. Only LF ends a line, unlike in `splitlines`."""
    return StringIO(text, newline="\n").readlines()


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of indices of lines that are unique on both sides: the longest sequence in the same order."""
    if not old or not new:
        return []
    in_old, in_new = Counter(old), Counter(new)
    by_line = {line: index for index, line in enumerate(new) if in_new[line] == 1 and in_old[line] == 1}
    return _longest_increasing([(index, by_line[line]) for index, line in enumerate(old) if line in by_line])


def _longest_increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest increasing subsequence of pairs, by patience sorting."""
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


def _compare_stretch(old: Sequence[str], new: Sequence[str], start: int) -> list[Span]:
    if not _is_worth_comparing(old, new):
        return [Span(start, old, new)]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [Span(start + i1, old[i1:i2], new[j1:j2]) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]


def _is_worth_comparing(old: Sequence[str], new: Sequence[str]) -> bool:
    if max(len(old), len(new)) > MAX_COMPARED_LINES:
        return False
    in_new = Counter(new)
    return 0 < sum(count * in_new[line] for line, count in Counter(old).items()) <= MAX_PAIRS


def _join_up_to(lines: Iterator[str], limit: int | None) -> tuple[str, bool]:
    if limit is None:
        return "".join(lines), False
    taken, size = list[str](), 0
    for line in lines:
        size += len(line)
        if size > limit:
            return "".join(taken), True
        taken.append(line)
    return "".join(taken), False


def _lines(before: Sequence[str], changed: Sequence[Span], old_name: str, new_name: str) -> Iterator[str]:
    grown = 0
    for number, group in enumerate(_groups(changed)):
        if number == 0:
            yield f"--- {old_name}\n"
            yield f"+++ {new_name}\n"
        yield from _hunk(before, group, grown)
        grown += _growth(group)


def _groups(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Changes whose context overlaps form one hunk."""
    group: list[Span] = []
    for span in spans:
        if group and span.start - (group[-1].start + len(group[-1].old)) > 2 * CONTEXT:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _hunk(before: Sequence[str], group: Sequence[Span], grown: int) -> Iterator[str]:
    """One hunk with its context; the hunks before it added `grown` lines."""
    start = max(0, group[0].start - CONTEXT)
    end = min(len(before), group[-1].start + len(group[-1].old) + CONTEXT)
    old, new = _range(start, end - start), _range(start + grown, end - start + _growth(group))
    yield f"@@ -{old} +{new} @@\n"
    here = start
    for span in group:
        yield from _prefixed(" ", before[here : span.start])
        yield from _prefixed("-", span.old)
        yield from _prefixed("+", span.new)
        here = span.start + len(span.old)
    yield from _prefixed(" ", before[here:end])


def _growth(spans: Iterable[Span]) -> int:
    return sum(len(span.new) - len(span.old) for span in spans)


def _prefixed(mark: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield mark + (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")


def _range(start: int, length: int) -> str:
    """As `diff` writes it: an empty range is named by the line before it."""
    begin = start + 1 if length else start
    return str(begin) if length == 1 else f"{begin},{length}"
