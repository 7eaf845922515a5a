"""Slices: some lines out of a file of any size, with no more of it in memory than is shown."""

import os
from collections.abc import Iterator
from threading import Event
from typing import BinaryIO

LINE_BYTES = 500
# Decoding never makes a line shorter, so a few bytes more than can be shown are all that matters of it.
KEPT_BYTES = LINE_BYTES + 12
BLOCK = 262_144


def skip(file: BinaryIO, lines: int, stop: Event) -> int:
    """Leave so many lines behind. Answers how many there were, which is less when the file ends before."""
    seen, last = 0, b"\n"
    while seen < lines and not stop.is_set() and (block := file.read(BLOCK)):
        found = block.count(b"\n")
        if seen + found >= lines:
            file.seek(after(block, lines - seen) - len(block), os.SEEK_CUR)
            return lines
        seen, last = seen + found, block[-1:]
    return seen + (last != b"\n")


def after(data: bytes, lines: int) -> int:
    """Where the text goes on after so many lines, one at least; all of them must end in it.

    Each step counts one half of what is left, so it is all counted twice at most.
    """
    low, high = 0, len(data)
    while high - low > 1:
        middle = (low + high) // 2
        found = data.count(b"\n", low, middle)
        if found >= lines:
            high = middle
        else:
            low, lines = middle, lines - found
    return high


def lines_of(file: BinaryIO, stop: Event) -> Iterator[bytes]:
    """Every line from here on, in the little of it that can be shown: a line of a gigabyte takes no memory."""
    while (line := file.readline(KEPT_BYTES)) and not stop.is_set():
        rest = line
        while rest and not rest.endswith(b"\n") and not stop.is_set():
            rest = file.readline(BLOCK)
        yield line


def shown(line: bytes) -> str:
    """A line without its end, bad bytes replaced, cut at a whole character."""
    end = b"\r\n" if line.endswith(b"\r\n") else b"\n"
    text = line.removesuffix(end).decode(errors="replace")
    return text.encode()[:LINE_BYTES].decode(errors="ignore")
