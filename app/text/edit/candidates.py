"""Pieces of a text that an edit may mean, found by ever more lenient comparison.

Each function names candidates in the text for the string that an edit wants to replace. They search in views of the
text, which are made once and only when needed, so each costs only a few passes over the text. The two anchor searches
are linear: a first line is paired with the next last line only, blocks of a wrong length are dropped, and the rest is
compared within a budget of fixed size. A search that exceeds it finds nothing, because the best of a part may not be
the best of all.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, islice
from typing import NamedTuple

from app.text.edit.nearest_lines import WorkBudget, line_numbers, max_similarity, similarity

SPACES = (
    "\t\n\v\f\r \xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""White space as in JavaScript, for which the replacers were written; Python's own differs a little."""

MAX_PLACES = 1000
"""Occurrences of one piece that are considered."""

RUN = re.compile(f"[{SPACES}]+")
_RUN_IN_LINE = re.compile(f"[{SPACES.replace(chr(10), '')}]+")

_ESCAPE = re.compile(r"""\\([ntr'"`\\$]|\n)""")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}

MAX_WORDS = 8
"""This many of the longest words must occur before the whole text is normalized."""

_WORD = re.compile(f"[^{SPACES}]+")


class Candidate(NamedTuple):
    """A piece of the text that may be meant. `is_whole`: it consists of whole lines, indentation included."""

    text: str
    is_whole: bool = False


class TextViews:
    """A text with LF line ends, and views of it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def lines(self) -> list[str]:
        """Lines without their ends. A text that ends with LF has an empty last line."""
        return self.text.split("\n")

    @cached_property
    def stripped(self) -> list[str]:
        """Lines without surrounding white space."""
        return [line.strip(SPACES) for line in self.lines]

    @cached_property
    def normalized(self) -> list[str]:
        """Stripped lines in which any run of white space is one space."""
        return [line.strip(" ") for line in _RUN_IN_LINE.sub(" ", self.text).split("\n")]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(line) + 1 for line in self.lines)]

    @cached_property
    def _stripped_text(self) -> str:
        """Stripped lines with LF on both sides of each, so that a search finds only whole lines."""
        return "\n" + "\n".join(self.stripped) + "\n"

    def slice(self, first: int, count: int) -> str:
        """`count` lines from `first` on, without the end of the last."""
        return self.text[self._starts[first] : self._starts[first + count] - 1]

    def find_lines(self, stripped: Sequence[str]) -> Iterator[int]:
        """Where these stripped lines are: the number of the first line for each place."""
        return _places(self._stripped_text, "\n" + "\n".join(stripped) + "\n")

    def around(self, first: int, last: int, count: int) -> range:
        """Where `count` lines can begin that contain these lines and otherwise only blank ones."""
        before = self._blanks(range(first - 1, first - 1 - (count - 1 - last + first), -1))
        after = self._blanks(range(last + 1, last + 1 + (count - 1 - last + first)))
        return range(max(first - before, last - count + 1), min(first, last + after - count + 1) + 1)

    def _blanks(self, numbers: range) -> int:
        """How many of these lines exist and are blank, up to the first that is not."""
        for seen, number in enumerate(numbers):
            if not 0 <= number < len(self.stripped) or self.stripped[number]:
                return seen
        return len(numbers)


def _places(text: str, sought: str) -> Iterator[int]:
    return islice(line_numbers(text, sought), MAX_PLACES)


def strip_lines(text: str) -> list[str]:
    """The stripped lines of a text."""
    return [line.strip(SPACES) for line in text.split("\n")]


def normalize_spaces(text: str) -> str:
    """A text in which any run of white space, line ends included, is one space, and none surrounds it."""
    return RUN.sub(" ", text).strip(" ")


def exact(views: TextViews, wanted: str) -> Iterator[Candidate]:
    """The text itself."""
    yield Candidate(wanted)


def line_trimmed(views: TextViews, wanted: str) -> Iterator[Candidate]:
    """Lines equal to the wanted ones except for surrounding white space."""
    lines = strip_lines(wanted.removesuffix("\n"))
    return (Candidate(views.slice(first, len(lines)), is_whole=True) for first in views.find_lines(lines))


def indentation_flexible(views: TextViews, wanted: str) -> Iterator[Candidate]:
    """Lines equal to the wanted ones except for a common indentation."""
    lines = wanted.split("\n")
    dedented = _dedent(lines)
    for first in views.find_lines(strip_lines(wanted)):
        if _dedent(views.lines[first : first + len(lines)]) == dedented:
            yield Candidate(views.slice(first, len(lines)), is_whole=True)


def escape_normalized(views: TextViews, wanted: str) -> Iterator[Candidate]:
    """Text equal to the wanted one when escapes in it, or in the file, are resolved."""
    plain = _unescape(wanted).replace("\r\n", "\n")
    if plain in views.text:
        yield Candidate(plain)
    if "\\" not in views.text:
        return
    count = plain.count("\n") + 1
    for first in _find_unescape(views, plain):
        block = views.slice(first, count)
        if _unescape(block) == plain:
            yield Candidate(block)


def trimmed_boundary(views: TextViews, wanted: str) -> Iterator[Candidate]:
    """The wanted text without surrounding white space, or as many lines that are blank except for it."""
    trimmed = wanted.strip(SPACES)
    if trimmed == wanted or trimmed not in views.text:
        return
    yield Candidate(trimmed)
    count, lines = wanted.count("\n") + 1, strip_lines(trimmed)
    for first in views.find_lines(lines):
        if views.slice(first, len(lines)).strip(SPACES) == trimmed:
            for begin in views.around(first, first + len(lines) - 1, count):
                yield Candidate(views.slice(begin, count), is_whole=True)


def _dedent(lines: list[str]) -> list[str]:
    """Lines without their common indentation; blank ones stay as they are."""
    indents = [len(line) - len(line.lstrip(SPACES)) for line in lines if line.strip(SPACES)]
    shared = min(indents, default=0)
    return [line[shared:] if line.strip(SPACES) else line for line in lines]


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)


def _find_unescape(views: TextViews, plain: str) -> Iterator[int]:
    """Where lines are that may equal the plain ones once unescaped.

    Lines are unescaped one by one. A line with an escaped line end would be two, so it matches nowhere. A backslash at
    the end of a line escapes the line end, except in the last line.
    """
    lines = [_unescape(f"{line}\n")[:-1] if "\\" in line else line for line in views.lines]
    text = "\n" + "\n".join("\0" if "\n" in line else line for line in lines)
    if plain.endswith("\\"):
        return _places(text, f"\n{plain[:-1]}")
    return _places(f"{text}\n", f"\n{plain}\n")


def whitespace_normalized(views: TextViews, wanted: str) -> Iterator[Candidate]:
    """Within each line, the wanted text except for its spacing; then as many lines as wanted that have it together."""
    wanted_text = normalize_spaces(wanted)
    longest = sorted(set(wanted_text.split(" ")), key=len, reverse=True)[:MAX_WORDS]
    if not all(word in views.text for word in longest):
        return
    yield from _within_lines(views, wanted_text)
    if "\n" in wanted:
        yield from _across_lines(views, wanted_text, wanted.count("\n") + 1)


def _within_lines(views: TextViews, wanted_text: str) -> Iterator[Candidate]:
    """One candidate per line: all of it, or its first matching part."""
    text = "\n".join(views.normalized)
    number, seen, at = 0, 0, text.find(wanted_text)
    while at >= 0:
        number, seen = number + text.count("\n", seen, at), at
        line, before = views.lines[number], text[text.rfind("\n", 0, at) + 1 : at]
        is_whole = views.normalized[number] == wanted_text
        yield Candidate(line if is_whole else _part(line, before, wanted_text), is_whole)
        end = text.find("\n", at)
        at = text.find(wanted_text, end) if end >= 0 else -1


def _part(line: str, before: str, wanted_text: str) -> str:
    """The part of a line that is `wanted` in its normalized form, after `before` there."""
    words = [word.start() for word in _WORD.finditer(line)]
    first = before.count(" ")
    last = first + wanted_text.count(" ")
    start = words[first] + len(_last_word(before))
    end = start if first == last else words[last]
    return line[start : end + len(_last_word(wanted_text))]


def _last_word(wanted_text: str) -> str:
    return wanted_text[wanted_text.rfind(" ") + 1 :]


def _across_lines(views: TextViews, wanted_text: str, count: int) -> Iterator[Candidate]:
    """`count` lines whose words are the wanted ones, wherever the line ends are."""
    numbers = [number for number, line in enumerate(views.normalized) if line]
    text = " ".join(views.normalized[number] for number in numbers)
    if wanted_text not in text:
        return
    starts = [0, *accumulate(len(views.normalized[number]) + 1 for number in numbers)]
    for place, number in enumerate(numbers):
        if not text.startswith(wanted_text, starts[place]):
            continue
        after = bisect_right(starts, starts[place] + len(wanted_text))
        if after < len(starts) and starts[after] == starts[place] + len(wanted_text) + 1:
            for first in views.around(number, numbers[after - 1], count):
                yield Candidate(views.slice(first, count), is_whole=True)


MIN_SIMILARITY = 0.65
MIN_EQUAL_SHARE = 0.5
MIN_LINES = 3
MAX_STEPS = 400_000
"""The budget of a search for the most similar block, in lines and characters compared."""

Block = tuple[int, int]


def block_anchor(views: TextViews, wanted: str) -> Iterator[Candidate]:
    """The most similar block with the wanted first and last lines and about the wanted length."""
    lines = _lines_if_enough(wanted)
    if lines is None:
        return
    slack = max(1, len(lines) // 4)
    blocks = [block for block in _blocks(views, lines) if abs(_size(block) - len(lines)) <= slack]
    best = _most_similar(views, lines, blocks)
    if best is not None:
        yield Candidate(views.slice(best[0], _size(best)), is_whole=True)


def context_aware(views: TextViews, wanted: str) -> Iterator[Candidate]:
    """Each block with the wanted first and last lines and the wanted length, half of whose lines are equal."""
    lines = _lines_if_enough(wanted)
    if lines is None:
        return
    for block in _blocks(views, lines):
        if _size(block) == len(lines) and _is_half_equal(views.stripped[block[0] + 1 : block[1]], lines[1:-1]):
            yield Candidate(views.slice(block[0], len(lines)), is_whole=True)


def _lines_if_enough(wanted: str) -> list[str] | None:
    lines = strip_lines(wanted)
    if len(lines) < MIN_LINES:
        return None
    return lines[:-1] if wanted.endswith("\n") else lines


def _size(block: Block) -> int:
    return block[1] - block[0] + 1


def _blocks(views: TextViews, lines: list[str]) -> Iterator[Block]:
    """Each wanted first line, paired with the nearest wanted last line at least two lines below."""
    ends = (number for number, line in enumerate(views.stripped) if line == lines[-1])
    end = next(ends, None)
    for start, line in enumerate(views.stripped):
        if line != lines[0]:
            continue
        while end is not None and end < start + 2:
            end = next(ends, None)
        if end is None:
            return
        yield start, end


def _most_similar(views: TextViews, lines: list[str], blocks: list[Block]) -> Block | None:
    """The first of the most similar blocks, if similar enough."""
    scorer = _Scorer(is_single=len(blocks) == 1)
    best, most = None, 0.0
    for block in blocks:
        pairs = list(zip(views.stripped[block[0] + 1 : block[1]], lines[1:-1], strict=False))
        score = scorer.score(pairs, max(most, MIN_SIMILARITY))
        if score is None:
            return None
        if score >= MIN_SIMILARITY and score > most:
            best, most = block, score
    return best


class _Scorer:
    """The average similarity of lines. A single block is scored only until it is similar enough."""

    def __init__(self, is_single: bool) -> None:
        self._is_single = is_single
        self._budget = WorkBudget(MAX_STEPS)
        self._known: dict[tuple[str, str], float | None] = {}

    def score(self, pairs: list[tuple[str, str]], least: float) -> float | None:
        """None if the budget is spent. What cannot reach `least` is not compared at all."""
        if not pairs:
            return 1.0
        if not self._budget.spend(len(pairs)):
            return None
        if sum(max_similarity(*pair) for pair in pairs) / len(pairs) < least - 1e-9:
            return 0.0
        return self._average(pairs)

    def _average(self, pairs: list[tuple[str, str]]) -> float | None:
        share, total = len(pairs) if self._is_single else 1, 0.0
        for pair in pairs:
            if pair not in self._known:
                self._known[pair] = similarity(*pair, self._budget)
            score = self._known[pair]
            if score is None:
                return None
            total += score / share
            if self._is_single and total >= MIN_SIMILARITY:
                break
        return total if self._is_single else total / len(pairs)


def _is_half_equal(found: list[str], wanted: list[str]) -> bool:
    """Whether half of the lines are equal, without those blank on both sides."""
    pairs = [(line, other) for line, other in zip(found, wanted, strict=True) if line or other]
    return not pairs or sum(line == other for line, other in pairs) / len(pairs) >= MIN_EQUAL_SHARE
