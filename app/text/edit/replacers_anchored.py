"""Anchors: blocks found by their first and last lines. What stands between them has to be much alike.

Both replacers are linear in the text: a first line is paired with one last line only, the next one, and blocks of a
wrong length are dropped unseen. The rest is paid from a purse of fixed size; a search that the purse does not last
for finds nothing, because the best of a part may not be the best of all.

Spacings: text found when any white space is taken for one space.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from app.text.edit.similarity import WorkBudget, likeness, most_likeness
from app.text.edit.text_views import SPACES, Candidate, TextViews, bared, tightened

MOST_WORDS = 8
"""Words, the longest ones, that are looked for before a whole text is made tight for nothing."""

_WORD = re.compile(f"[^{SPACES}]+")


def whitespace_normalized(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """In each line, what is wanted but for its spacing; then as many lines as wanted that say it together."""
    tight = tightened(wanted)
    longest = sorted(set(tight.split(" ")), key=len, reverse=True)[:MOST_WORDS]
    if not all(word in page.text for word in longest):
        return
    yield from _in_lines(page, tight)
    if "\n" in wanted:
        yield from _over_lines(page, tight, wanted.count("\n") + 1)


def _in_lines(page: TextViews, tight: str) -> Iterator[Candidate]:
    """One candidate for each line: all of it, or the first part of it that fits."""
    text = "\n".join(page.tight)
    number, seen, at = 0, 0, text.find(tight)
    while at >= 0:
        number, seen = number + text.count("\n", seen, at), at
        line, before = page.lines[number], text[text.rfind("\n", 0, at) + 1 : at]
        is_whole = page.tight[number] == tight
        yield Candidate(line if is_whole else _part(line, before, tight), is_whole)
        end = text.find("\n", at)
        at = text.find(tight, end) if end >= 0 else -1


def _part(line: str, before: str, tight: str) -> str:
    """What is tight in a line's tight form, after what comes before it there, as the line has it."""
    words = [word.start() for word in _WORD.finditer(line)]
    first = before.count(" ")
    last = first + tight.count(" ")
    start = words[first] + len(_last_word(before))
    end = start if first == last else words[last]
    return line[start : end + len(_last_word(tight))]


def _last_word(tight: str) -> str:
    return tight[tight.rfind(" ") + 1 :]


def _over_lines(page: TextViews, tight: str, count: int) -> Iterator[Candidate]:
    """So many lines whose words are the wanted ones, wherever the lines end."""
    numbers = [number for number, line in enumerate(page.tight) if line]
    text = " ".join(page.tight[number] for number in numbers)
    if tight not in text:
        return
    starts = [0, *accumulate(len(page.tight[number]) + 1 for number in numbers)]
    for place, number in enumerate(numbers):
        if not text.startswith(tight, starts[place]):
            continue
        after = bisect_right(starts, starts[place] + len(tight))
        if after < len(starts) and starts[after] == starts[place] + len(tight) + 1:
            for first in page.around(number, numbers[after - 1], count):
                yield Candidate(page.cut(first, count), is_whole=True)


ENOUGH = 0.65
HALF = 0.5
LEAST_LINES = 3
STEPS = 400_000
"""What a search for the most similar block may cost, in lines looked at and characters compared."""

Block = tuple[int, int]


def block_anchor(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """Of the blocks between the wanted first and last lines that are about as long as wanted, the most similar one."""
    lines = _wanted_lines(wanted)
    if lines is None:
        return
    slack = max(1, len(lines) // 4)
    blocks = [block for block in _blocks(page, lines) if abs(_size(block) - len(lines)) <= slack]
    best = _most_alike(page, lines, blocks)
    if best is not None:
        yield Candidate(page.cut(best[0], _size(best)), is_whole=True)


def context_aware(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """Each block of the wanted length between the wanted first and last lines, half of whose lines are the same."""
    lines = _wanted_lines(wanted)
    if lines is None:
        return
    for block in _blocks(page, lines):
        if _size(block) == len(lines) and _is_half_the_same(page.bare[block[0] + 1 : block[1]], lines[1:-1]):
            yield Candidate(page.cut(block[0], len(lines)), is_whole=True)


def _wanted_lines(wanted: str) -> list[str] | None:
    lines = bared(wanted)
    if len(lines) < LEAST_LINES:
        return None
    return lines[:-1] if wanted.endswith("\n") else lines


def _size(block: Block) -> int:
    return block[1] - block[0] + 1


def _blocks(page: TextViews, lines: list[str]) -> Iterator[Block]:
    """Each line that is the wanted first one, with the nearest line after the next that is the wanted last one."""
    ends = (number for number, line in enumerate(page.bare) if line == lines[-1])
    end = next(ends, None)
    for start, line in enumerate(page.bare):
        if line != lines[0]:
            continue
        while end is not None and end < start + 2:
            end = next(ends, None)
        if end is None:
            return
        yield start, end


def _most_alike(page: TextViews, lines: list[str], blocks: list[Block]) -> Block | None:
    """The first of those blocks that are most alike, if that is enough."""
    scale = _Scale(is_only=len(blocks) == 1)
    best, most = None, 0.0
    for block in blocks:
        pairs = list(zip(page.bare[block[0] + 1 : block[1]], lines[1:-1], strict=False))
        alike = scale.weigh(pairs, max(most, ENOUGH))
        if alike is None:
            return None
        if alike >= ENOUGH and alike > most:
            best, most = block, alike
    return best


class _Scale:
    """Weighs how much alike lines are, on the average. An only block is weighed just until it is enough."""

    def __init__(self, is_only: bool) -> None:
        self._is_only = is_only
        self._purse = WorkBudget(STEPS)
        self._known: dict[tuple[str, str], float | None] = {}

    def weigh(self, pairs: list[tuple[str, str]], least: float) -> float | None:
        """None when the purse is empty. What cannot reach the least is not weighed at all."""
        if not pairs:
            return 1.0
        if not self._purse.pay(len(pairs)):
            return None
        if sum(most_likeness(*pair) for pair in pairs) / len(pairs) < least - 1e-9:
            return 0.0
        return self._weighed(pairs)

    def _weighed(self, pairs: list[tuple[str, str]]) -> float | None:
        share, total = len(pairs) if self._is_only else 1, 0.0
        for pair in pairs:
            if pair not in self._known:
                self._known[pair] = likeness(*pair, self._purse)
            alike = self._known[pair]
            if alike is None:
                return None
            total += alike / share
            if self._is_only and total >= ENOUGH:
                break
        return total if self._is_only else total / len(pairs)


def _is_half_the_same(found: list[str], wanted: list[str]) -> bool:
    """Whether half of the lines are the same, those left aside that are blank in both."""
    pairs = [(mine, theirs) for mine, theirs in zip(found, wanted, strict=True) if mine or theirs]
    return not pairs or sum(mine == theirs for mine, theirs in pairs) / len(pairs) >= HALF
