"""SEARCH/REPLACE blocks: read from a model's text, and found in a file.

    src/a.py
    ```python
    <<<<<<< SEARCH
    lines of the file
    =======
    lines that replace them
    >>>>>>> REPLACE
    ```

Markers have five to nine signs. The file may also be named inside the fence, and a block without a name is for the file
of the block before it. A second divider ends a block without a last marker. Where lines of the file look like a
divider, the one with as many signs as the first marker counts.

The first strategy that finds a place is used:

exact               the lines as they are, the first of several places
indentation         all of them shifted by the same indentation; the replacement is shifted too
leading_blank_line  one of these two without the blank line that SEARCH begins with
elision             lines of `...` stand for omitted lines on both sides; each part occurs once
unwrapped           SEARCH is fenced once more
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise

from app.text.edit.fences import NAME_LINES, name_before, open_fence, parse_error
from app.text.edit.line_buffer import (
    LineBuffer,
    Match,
    Splice,
    TooManyPlaces,
    dedent,
    find_shifted,
    indent_lines,
    minimal_splice,
)

FORMAT = "SEARCH/REPLACE blocks"
HEAD = re.compile(r"(<{5,9}) SEARCH>?$")
DIVIDER = re.compile(r"={5,9}$")
TAIL = re.compile(r">{5,9} REPLACE$")

NO_NAME = "No file is named: write its path alone in the line before the opening fence, or give it in `file_path`."
NO_TAIL = "Expected `>>>>>>> REPLACE` or `=======`"
NO_DIVIDER = "Expected `=======`"
MANY_DIVIDERS = (
    "Expected only one `=======`: more than one line here may divide the block. Write its three markers with another"
    " number of signs (5 to 9) than the lines of the file have."
)

DOTS = "..."

Lines = Sequence[str]


@dataclass(frozen=True, slots=True)
class Block:
    """One edit; `line` is where it begins in the text, from 1."""

    path: str
    search: tuple[str, ...]
    replace: tuple[str, ...]
    line: int

    @property
    def is_addition(self) -> bool:
        """Whether SEARCH is empty: a new file, or lines appended to one."""
        return not any(line.strip() for line in self.search)

    def __str__(self) -> str:
        return "\n".join(("<<<<<<< SEARCH", *self.search, "=======", *self.replace, ">>>>>>> REPLACE"))


def parse(content: str, path: str | None = None) -> tuple[list[Block], list[str]]:
    """The blocks of a text, and the shell commands it proposes; `path` is the file of blocks that name none."""
    lines = content.replace("\r\n", "\n").split("\n")
    blocks, commands, at = list[Block](), list[str](), 0
    while at < len(lines):
        if _is_shell(lines, at):
            end = next((n for n in range(at + 1, len(lines)) if lines[n].strip().startswith("```")), len(lines))
            commands.append("\n".join(lines[at + 1 : end]))
            at = end
        elif HEAD.match(lines[at].strip()):
            path = name_before(lines[max(0, at - NAME_LINES) : at]) or path
            if path is None:
                raise parse_error(FORMAT, lines, at, NO_NAME)
            search, replace, end = _split_block(lines, at)
            blocks.append(Block(path, tuple(search), tuple(replace), at + 1))
            at = end
        at += 1
    if not blocks:
        raise parse_error(
            FORMAT, lines, len(lines) - 1, "Expected a block that begins with `<<<<<<< SEARCH`; there is none"
        )
    return blocks, commands


def _is_shell(lines: Sequence[str], at: int) -> bool:
    """Whether a fence with shell commands begins here; a block in its first two lines makes it one of a file."""
    fence = open_fence(lines[at].strip())
    if fence is None or not fence.is_shell:
        return False
    return not any(HEAD.match(line.strip()) for line in lines[at + 1 : at + 3])


def _split_block(lines: Sequence[str], head: int) -> tuple[Sequence[str], Sequence[str], int]:
    """The lines of SEARCH and of REPLACE, and where the block ends."""
    end, dividers = head + 1, list[int]()
    while end < len(lines) and not HEAD.match(line := lines[end].strip()) and not TAIL.match(line):
        if DIVIDER.match(line):
            dividers.append(end)
        end += 1
    is_ended = end < len(lines) and TAIL.match(lines[end].strip()) is not None
    if not dividers:
        raise parse_error(FORMAT, lines, min(end, len(lines) - 1), NO_DIVIDER)
    if not is_ended and len(dividers) == 1:
        raise parse_error(FORMAT, lines, min(end, len(lines) - 1), NO_TAIL)
    middle, stop = _find_divider(lines, head, dividers, end) if is_ended else (dividers[0], dividers[1])
    return lines[head + 1 : middle], lines[middle + 1 : stop], end if is_ended else stop


def _find_divider(lines: Sequence[str], head: int, dividers: Sequence[int], end: int) -> tuple[int, int]:
    """The dividing line of a block with a last marker, and where REPLACE ends."""
    if len(dividers) == 2 and dividers[1] == end - 1:
        return dividers[0], dividers[1]
    signs = len(lines[head].strip().split()[0])
    alike = [at for at in dividers if len(lines[at].strip()) == signs]
    if len(dividers) > 1 and len(alike) != 1:
        raise parse_error(FORMAT, lines, dividers[1], MANY_DIVIDERS)
    return (dividers[0] if len(dividers) == 1 else alike[0]), end


@dataclass(frozen=True, slots=True)
class Pieces:
    """Lines split at `...`; blank lines before the dots belong to them."""

    parts: list[Lines]
    dots: list[Lines]


def find(buffer: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    return (
        _find_in_place(buffer, search, replace)
        or _find_without_blank_line(buffer, search, replace)
        or _find_elided(buffer, search, replace)
        or _find_unwrapped(buffer, search, replace)
    )


def _find_in_place(buffer: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    return _find_exact(buffer, search, replace) or _find_shifted(buffer, search, replace)


def _find_exact(buffer: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    start = next(buffer.find(search), None)
    if start is None:
        return None
    return Match("exact", (Splice(start, start + len(search), replace),), buffer.count(search))


def _find_shifted(buffer: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    old, new = dedent(search, replace)
    found = list[tuple[int, str]]()
    with suppress(TooManyPlaces):
        for place in find_shifted(buffer, old):
            found.append(place)
    if not found:
        return None
    start, indent = found[0]
    splice = minimal_splice(start, old, new)
    return Match("indentation", (Splice(splice.start, splice.stop, indent_lines(splice.lines, indent)),), len(found))


def _find_without_blank_line(buffer: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    if len(search) <= 2 or search[0].strip():
        return None
    found = _find_in_place(buffer, search[1:], replace)
    return found and Match("leading_blank_line", found.splices, found.places)


def _find_elided(buffer: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    old, new = _split_at_dots(search), _split_at_dots(replace)
    if not old.dots or old.dots != new.dots:
        return None
    splices, end = list[Splice](), len(buffer.lines)
    for part, instead in zip(old.parts, new.parts, strict=True):
        if part:
            found = list(islice(buffer.find(part), 2))
            if len(found) != 1:
                return None
            splices.append(Splice(found[0], found[0] + len(part), instead))
        elif instead:
            splices.append(Splice(end, end, instead))
    ordered = sorted(splices, key=lambda splice: (splice.start, splice.stop))
    is_disjoint = all(one.stop <= next_one.start for one, next_one in pairwise(ordered))
    return Match("elision", tuple(splices)) if splices and is_disjoint else None


def _split_at_dots(lines: Lines) -> Pieces:
    pieces, start = Pieces([], []), 0
    for at, line in enumerate(lines):
        if line.lstrip() != DOTS:
            continue
        end = at
        while end > start and not lines[end - 1].strip():
            end -= 1
        pieces.parts.append(lines[start:end])
        pieces.dots.append(lines[end : at + 1])
        start = at + 1
    pieces.parts.append(lines[start:])
    return pieces


def _find_unwrapped(buffer: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    inner = _without_fence(search)
    if inner is search or not any(line.strip() for line in inner):
        return None
    found = _find_in_place(buffer, inner, _without_fence(replace))
    return found and Match("unwrapped", found.splices, found.places)


def _without_fence(lines: Lines) -> Lines:
    """The lines between fences, if these lines begin and end with them."""
    fence = open_fence(lines[0].strip()) if len(lines) > 1 else None
    return lines[1:-1] if fence and lines[-1].strip() == fence.closing else lines
