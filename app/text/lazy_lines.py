"""Lines: a long text as a sequence of lines of which only those that are looked at are made."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import overload

BLOCK = 8192
NEAR = 128
"""Characters that are walked line by line; farther lines are found by halves."""


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
