"""Lines out of a file: slices of a file of any size, and the block of code around a line.

A block is found by indentation. From the anchor it grows in turns, a line up and a line down, over lines that are
indented at least as far as its outermost level. Without siblings each side takes one line of that level, the block's
own head and foot; comments above the head may follow. A blank line belongs to the line above it. Lines are found in
the bytes as they are needed, so the cost of a block does not grow with the file.
"""

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Event
from typing import BinaryIO

LINE_BYTES = 500
# Decoding never makes a line shorter, so a few more bytes than are shown are enough.
READ_BYTES = LINE_BYTES + 12
CHUNK_BYTES = 262_144

TAB_WIDTH = 4
LEVEL_WIDTH = 4
LOOK_BACK_BYTES = 4096
_ASCII_SPACES = b"\t\n\v\f\r "
# All characters that Unicode calls white space; possessive, so that a megabyte of them takes no stack.
_SPACES = (
    rb"(?:[\t\n\v\f\r ]++|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)*+"
)
_BLANK = re.compile(_SPACES)
_COMMENT = re.compile(_SPACES + rb"(?:#|//|--)")
_INDENT = re.compile(rb"[\t ]*+")


def skip_lines(file: BinaryIO, lines: int, stop: Event) -> int:
    """Skip this many lines; returns how many there were, which is less when the file ends before."""
    seen, last = 0, b"\n"
    while seen < lines and not stop.is_set() and (chunk := file.read(CHUNK_BYTES)):
        found = chunk.count(b"\n")
        if seen + found >= lines:
            file.seek(offset_after(chunk, lines - seen) - len(chunk), os.SEEK_CUR)
            return lines
        seen, last = seen + found, chunk[-1:]
    return seen + (last != b"\n")


def offset_after(data: bytes, lines: int) -> int:
    """The offset behind this many lines, at least one, by bisection: no byte is counted more than twice."""
    low, high = 0, len(data)
    while high - low > 1:
        middle = (low + high) // 2
        found = data.count(b"\n", low, middle)
        if found >= lines:
            high = middle
        else:
            low, lines = middle, lines - found
    return high


def read_lines(file: BinaryIO, stop: Event) -> Iterator[bytes]:
    """Every line from here on, each cut to `READ_BYTES`: a line of a gigabyte takes no memory."""
    while (line := file.readline(READ_BYTES)) and not stop.is_set():
        rest = line
        while rest and not rest.endswith(b"\n") and not stop.is_set():
            rest = file.readline(CHUNK_BYTES)
        yield line


def display_line(line: bytes) -> str:
    """A line without its end, invalid bytes replaced, cut to `LINE_BYTES` at a whole character."""
    end = b"\r\n" if line.endswith(b"\r\n") else b"\n"
    text = line.removesuffix(end).decode(errors="replace")
    return text.encode()[:LINE_BYTES].decode(errors="ignore")


@dataclass(frozen=True, slots=True)
class Line:
    """A line by its number and its offsets in the file, its line end included."""

    number: int
    start: int
    end: int

    def read(self, data: bytes) -> bytes:
        return data[self.start : min(self.end, self.start + READ_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a block includes. `levels`: how many around the anchor's own; 0 is all of them."""

    levels: int = 0
    siblings: bool = False
    header: bool = True


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines. `is_cut`: the block has more of them; `is_too_long`: because of their bytes."""

    lines: list[Line]
    is_cut: bool = False
    is_too_long: bool = False


def find_block(data: bytes, anchor: int, shape: Shape, *, limit: int, max_bytes: int) -> Block | None:
    """The block around line number `anchor` without blank lines at its ends; None past the end of the file.

    It has at most `limit` lines and about `max_bytes` of output, but always one line.
    """
    start = _line_at(data, anchor)
    if start is None:
        return None
    if limit == 1 or start.end - start.start == len(data):
        return Block([start], is_cut=start.end - start.start < len(data))
    lines, is_too_long = deque[Line](), False
    for line in _grow(data, start, shape):
        is_too_long = max_bytes <= 0
        if is_too_long or len(lines) == limit:
            return Block(_strip_blank_lines(data, lines), is_cut=True, is_too_long=is_too_long)
        max_bytes -= min(line.end - line.start, LINE_BYTES) + len(f"L{line.number}: ")
        lines.append(line) if line.number >= anchor else lines.appendleft(line)
    return Block(_strip_blank_lines(data, lines))


def _strip_blank_lines(data: bytes, lines: deque[Line]) -> list[Line]:
    while lines and _is_blank(data, lines[0]):
        lines.popleft()
    while lines and _is_blank(data, lines[-1]):
        lines.pop()
    return list(lines)


def _line_at(data: bytes, number: int) -> Line | None:
    start = 0
    if number > 1:
        if data.count(b"\n") < number - 1:
            return None
        start = offset_after(data, number - 1)
    return _line(data, number, start) if start < len(data) else None


def _grow(data: bytes, anchor: Line, shape: Shape) -> Iterator[Line]:
    """The lines of a block in the order in which they are added: the anchor, then one above and one below in turns."""
    indent = _indent(data, anchor) if not _is_blank(data, anchor) else _indent_above(data, anchor.start)[0]
    least = max(0, indent - LEVEL_WIDTH * shape.levels) if shape.levels else 0
    yield anchor
    sides = [_above(data, anchor, least, shape), _below(data, anchor, (indent, least), shape)]
    while sides:
        for side in tuple(sides):
            line = next(side, None)
            if line is None:
                sides.remove(side)
            else:
                yield line


def _is_blank(data: bytes, line: Line) -> bool:
    return _BLANK.fullmatch(data, line.start, line.end) is not None


def _above(data: bytes, anchor: Line, least: int, shape: Shape) -> Iterator[Line]:
    line, heads, known, reach = anchor, 0, 0, anchor.start
    while line.start > 0:
        line = _line_before(data, line)
        if line.start < reach:
            known, reach = _indent_above(data, line.end)
        if known < least:
            return
        if known == least and not shape.siblings:
            if heads and not (shape.header and _COMMENT.match(data, line.start, line.end)):
                return
            heads += 1
        yield line


def _below(data: bytes, anchor: Line, indents: tuple[int, int], shape: Shape) -> Iterator[Line]:
    line, feet, (indent, least) = anchor, 0, indents
    while line.end < len(data):
        line = _line(data, line.number + 1, line.end)
        if not _is_blank(data, line):
            indent = _indent(data, line)
        if indent < least:
            return
        if indent == least and not shape.siblings:
            if feet:
                return
            feet += 1
        yield line


def _indent_above(data: bytes, end: int) -> tuple[int, int]:
    """The indent and the start of the last line before here that is not blank."""
    while end > 0:
        end = _text_end(data, end)
        start = data.rfind(b"\n", 0, end) + 1
        line = Line(0, start, end)
        if not _is_blank(data, line):
            return _indent(data, line), start
        end = start
    return 0, 0


def _text_end(data: bytes, end: int) -> int:
    """Where the ASCII white space before here begins; searched in steps, because it is rarely long."""
    while end > 0:
        start = max(0, end - LOOK_BACK_BYTES)
        left = len(data[start:end].rstrip(_ASCII_SPACES))
        if left:
            return start + left
        end = start
    return 0


def _indent(data: bytes, line: Line) -> int:
    found = _INDENT.match(data, line.start, line.end)
    end = found.end() if found else line.start
    return end - line.start + (TAB_WIDTH - 1) * data.count(b"\t", line.start, end)


def _line(data: bytes, number: int, start: int) -> Line:
    end = data.find(b"\n", start)
    return Line(number, start, len(data) if end < 0 else end + 1)


def _line_before(data: bytes, line: Line) -> Line:
    return Line(line.number - 1, data.rfind(b"\n", 0, line.start - 1) + 1, line.start)
