"""Where a SEARCH/REPLACE block belongs in a file. The first of these rules that finds a place counts:

exact               the lines as they are, the first place of several
indentation         the same indentation more or less before all of them; what comes is indented alike
leading_blank_line  one of these two without the blank line that SEARCH begins with
elision             lines of `...` stand for what is left out, on both sides; each part stands there once
unwrapped           SEARCH is fenced once more

Shifts: lines that stand in a file as they are given, but for one indentation more or less before all of them.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise

from app.text.edit.fences import opening
from app.text.edit.line_buffer import LineBuffer, Match, Splice

MOST_COMPARED = 200_000


class Endless(Exception):
    """So many places nearly fit that they are not all looked at: the text repeats itself again and again."""


def outdented(*texts: Sequence[str]) -> list[list[str]]:
    """Texts without the indentation that all their lines have in common."""
    depths = [len(line) - len(line.lstrip()) for text in texts for line in text if line.strip()]
    least = min(depths, default=0)
    return [[line[least:] if line.strip() else line for line in text] for text in texts]


def indented(lines: Sequence[str], add: str) -> list[str]:
    return [add + line if line.strip() else line for line in lines]


def places(script: LineBuffer, lines: Sequence[str], *, apart: bool = False) -> Iterator[tuple[int, str]]:
    """Where outdented lines stand on a script, and what is before each of them there. Blank lines fit blank lines.

    `apart`: of places that meet, only the first. Else there may be more than it takes; then it raises `Endless`.
    """
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return
    left = MOST_COMPARED
    for start in script.places([line.lstrip() for line in lines], bare=True, apart=apart):
        left -= 0 if apart else len(lines)
        if left < 0:
            raise Endless
        add = before(script.lines[start + first], lines[first])
        if add is not None and all(fits(script.lines[start + n], line, add) for n, line in enumerate(lines)):
            yield start, add


def before(there: str, line: str) -> str | None:
    """What stands before a line in the file where both are the same but for that; None where the file has less."""
    return there.removesuffix(line) if there.endswith(line) else None


def fits(there: str, line: str, add: str) -> bool:
    return there == add + line if line.strip() else not there.strip()


def replacing(start: int, old: Sequence[str], new: Sequence[str]) -> Splice:
    """New lines for old ones that stand from `start` on. What both begin and end with stays as it is there."""
    least = min(len(old), len(new))
    head = next((n for n in range(least) if old[n] != new[n]), least)
    tail = next((n for n in range(least - head) if old[-1 - n] != new[-1 - n]), least - head)
    stop = start + len(old)
    return Splice(start + head, stop - tail, new[head : len(new) - tail])


DOTS = "..."

Lines = Sequence[str]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Lines as dots part them; blank lines before dots belong to them."""

    parts: list[Lines]
    dots: list[Lines]


def find(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    return (
        _in_place(script, search, replace)
        or _without_blank_line(script, search, replace)
        or _elided(script, search, replace)
        or _unwrapped(script, search, replace)
    )


def _in_place(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    return _exact(script, search, replace) or _shifted(script, search, replace)


def _exact(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    start = next(script.places(search), None)
    if start is None:
        return None
    return Match("exact", (Splice(start, start + len(search), replace),), script.count(search))


def _shifted(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    old, new = outdented(search, replace)
    found, candidates = list[tuple[int, str]](), places(script, old)
    with suppress(Endless):
        for place in candidates:
            found.append(place)
    if not found:
        return None
    start, add = found[0]
    splice = replacing(start, old, new)
    return Match("indentation", (Splice(splice.start, splice.stop, indented(splice.lines, add)),), len(found))


def _without_blank_line(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    if len(search) <= 2 or search[0].strip():
        return None
    found = _in_place(script, search[1:], replace)
    return found and Match("leading_blank_line", found.splices, found.places)


def _elided(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    old, new = _pieces(search), _pieces(replace)
    if not old.dots or old.dots != new.dots:
        return None
    splices, end = list[Splice](), len(script.lines)
    for part, instead in zip(old.parts, new.parts, strict=True):
        if part:
            found = list(islice(script.places(part), 2))
            if len(found) != 1:
                return None
            splices.append(Splice(found[0], found[0] + len(part), instead))
        elif instead:
            splices.append(Splice(end, end, instead))
    ordered = sorted(splices, key=lambda splice: (splice.start, splice.stop))
    is_apart = all(one.stop <= next_one.start for one, next_one in pairwise(ordered))
    return Match("elision", tuple(splices)) if splices and is_apart else None


def _pieces(lines: Lines) -> Pieces:
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


def _unwrapped(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    inner = _inside(search)
    if inner is search or not any(line.strip() for line in inner):
        return None
    found = _in_place(script, inner, _inside(replace))
    return found and Match("unwrapped", found.splices, found.places)


def _inside(lines: Lines) -> Lines:
    """What stands between fences, if these lines begin and end with them."""
    fence = opening(lines[0].strip()) if len(lines) > 1 else None
    return lines[1:-1] if fence and lines[-1].strip() == fence.closing else lines
