"""Candidates."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, islice
from typing import NamedTuple

from app.text.edit.nearest_lines import WorkBudget, likeness, line_numbers, most_likeness

SPACES = (
    "\t\n\v\f\r \xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What counts as white space. Python's own idea of it differs a little from the one the replacers were made with."""

MOST_PLACES = 1000
"""Places of one thing that are looked at. Whoever means one of more than these has to say which."""

RUN = re.compile(f"[{SPACES}]+")
_RUN_IN_LINE = re.compile(f"[{SPACES.replace(chr(10), '')}]+")

_ESCAPE = re.compile(r"""\\([ntr'"`\\$]|\n)""")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}

MOST_WORDS = 8
"""Words, the longest ones, that are looked for before a whole text is made tight for nothing."""

_WORD = re.compile(f"[^{SPACES}]+")


class Candidate(NamedTuple):
    """A piece of the text that may be meant. `is_whole`: it was found as whole lines, indentation included."""

    text: str
    is_whole: bool = False


class TextViews:
    """A text whose lines end in line feeds."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def lines(self) -> list[str]:
        """Lines without their ends. A text that ends in a line feed has an empty last one."""
        return self.text.split("\n")

    @cached_property
    def bare(self) -> list[str]:
        """Lines without the white space around them."""
        return [line.strip(SPACES) for line in self.lines]

    @cached_property
    def tight(self) -> list[str]:
        """Bare lines in which any white space is one space."""
        return [line.strip(" ") for line in _RUN_IN_LINE.sub(" ", self.text).split("\n")]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(line) + 1 for line in self.lines)]

    @cached_property
    def _bare_text(self) -> str:
        """Bare lines with a line feed on both sides of each, so that a search meets whole lines only."""
        return "\n" + "\n".join(self.bare) + "\n"

    def cut(self, first: int, count: int) -> str:
        """So many lines from this one on, without the end of the last."""
        return self.text[self._starts[first] : self._starts[first + count] - 1]

    def windows(self, bare: Sequence[str]) -> Iterator[int]:
        """Where these lines stand, white space around each left aside: the first line's number for each place."""
        return _places(self._bare_text, "\n" + "\n".join(bare) + "\n")

    def around(self, first: int, last: int, count: int) -> range:
        """Where so many lines can begin that contain these ones and otherwise only blank ones."""
        before = self._blanks(range(first - 1, first - 1 - (count - 1 - last + first), -1))
        after = self._blanks(range(last + 1, last + 1 + (count - 1 - last + first)))
        return range(max(first - before, last - count + 1), min(first, last + after - count + 1) + 1)

    def _blanks(self, numbers: range) -> int:
        """How many of these lines, from the first of them on, are there and blank."""
        for seen, number in enumerate(numbers):
            if not 0 <= number < len(self.bare) or self.bare[number]:
                return seen
        return len(numbers)


def _places(text: str, sought: str) -> Iterator[int]:
    return islice(line_numbers(text, sought), MOST_PLACES)


def bared(text: str) -> list[str]:
    """The bare lines of a text."""
    return [line.strip(SPACES) for line in text.split("\n")]


def tightened(text: str) -> str:
    """A text in which any white space, line ends too, is one space, and none is around it."""
    return RUN.sub(" ", text).strip(" ")


def exact(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """The text itself, if it is there."""
    yield Candidate(wanted)


def line_trimmed(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """Lines that are the wanted ones but for the white space around them."""
    lines = bared(wanted.removesuffix("\n"))
    return (Candidate(page.cut(first, len(lines)), is_whole=True) for first in page.windows(lines))


def indentation_flexible(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """Lines that are the wanted ones, all moved in or out by as much."""
    lines = wanted.split("\n")
    moved = _moved_out(lines)
    for first in page.windows(bared(wanted)):
        if _moved_out(page.lines[first : first + len(lines)]) == moved:
            yield Candidate(page.cut(first, len(lines)), is_whole=True)


def escape_normalized(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """The text that is meant when what is escaped in it, or in the file, should not be."""
    plain = _unescaped(wanted).replace("\r\n", "\n")
    if plain in page.text:
        yield Candidate(plain)
    if "\\" not in page.text:
        return
    count = plain.count("\n") + 1
    for first in _plain_windows(page, plain):
        block = page.cut(first, count)
        if _unescaped(block) == plain:
            yield Candidate(block)


def trimmed_boundary(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """The text without the white space around it, or as many lines that are blank but for it."""
    trimmed = wanted.strip(SPACES)
    if trimmed == wanted or trimmed not in page.text:
        return
    yield Candidate(trimmed)
    count, lines = wanted.count("\n") + 1, bared(trimmed)
    for first in page.windows(lines):
        if page.cut(first, len(lines)).strip(SPACES) == trimmed:
            for begin in page.around(first, first + len(lines) - 1, count):
                yield Candidate(page.cut(begin, count), is_whole=True)


def _moved_out(lines: list[str]) -> list[str]:
    """Lines without the indentation they share; blank ones are left as they are."""
    indents = [len(line) - len(line.lstrip(SPACES)) for line in lines if line.strip(SPACES)]
    shared = min(indents, default=0)
    return [line[shared:] if line.strip(SPACES) else line for line in lines]


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)


def _plain_windows(page: TextViews, plain: str) -> Iterator[int]:
    """Where lines stand that may be the plain ones without their escapes.

    Lines are freed of their escapes one by one. A line in which a line end is escaped would be two, so it fits
    nowhere. A backslash at the end of a line escapes what ends it, unless the line is the last one.
    """
    lines = [_unescaped(f"{line}\n")[:-1] if "\\" in line else line for line in page.lines]
    text = "\n" + "\n".join("\0" if "\n" in line else line for line in lines)
    if plain.endswith("\\"):
        return _places(text, f"\n{plain[:-1]}")
    return _places(f"{text}\n", f"\n{plain}\n")


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
