"""Pages: a text as the replacers look at it. Each view is made once, and only when a replacer asks for it."""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

SPACES = (
    "\t\n\v\f\r \xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What counts as white space. Python's own idea of it differs a little from the one the replacers were made with."""

MOST_PLACES = 1000
"""Places of one thing that are looked at. Whoever means one of more than these has to say which."""

RUN = re.compile(f"[{SPACES}]+")
_RUN_IN_LINE = re.compile(f"[{SPACES.replace(chr(10), '')}]+")


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
        return numbered(self._bare_text, "\n" + "\n".join(bare) + "\n")

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


def numbered(text: str, sought: str) -> Iterator[int]:
    """How many line feeds stand before each place where something is, up to so many places."""
    line, seen, at = 0, 0, text.find(sought)
    for _ in range(MOST_PLACES):
        if at < 0:
            return
        line, seen = line + text.count("\n", seen, at), at
        yield line
        at = text.find(sought, at + 1)


def bared(text: str) -> list[str]:
    """The bare lines of a text."""
    return [line.strip(SPACES) for line in text.split("\n")]


def tightened(text: str) -> str:
    """A text in which any white space, line ends too, is one space, and none is around it."""
    return RUN.sub(" ", text).strip(" ")
