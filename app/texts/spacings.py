"""Spacings: text found when any white space is taken for one space."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from app.texts.pages import SPACES, Candidate, Page, tightened

MOST_WORDS = 8
"""Words, the longest ones, that are looked for before a whole text is made tight for nothing."""

_WORD = re.compile(f"[^{SPACES}]+")


def whitespace_normalized(page: Page, wanted: str) -> Iterator[Candidate]:
    """In each line, what is wanted but for its spacing; then as many lines as wanted that say it together."""
    tight = tightened(wanted)
    longest = sorted(set(tight.split(" ")), key=len, reverse=True)[:MOST_WORDS]
    if not all(word in page.text for word in longest):
        return
    yield from _in_lines(page, tight)
    if "\n" in wanted:
        yield from _over_lines(page, tight, wanted.count("\n") + 1)


def _in_lines(page: Page, tight: str) -> Iterator[Candidate]:
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


def _over_lines(page: Page, tight: str, count: int) -> Iterator[Candidate]:
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
