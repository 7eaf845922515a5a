"""Where a SEARCH/REPLACE block belongs in a file. The first of these rules that finds a place counts:

exact               the lines as they are, the first place of several
indentation         the same indentation more or less before all of them; what comes is indented alike
leading_blank_line  one of these two without the blank line that SEARCH begins with
elision             lines of `...` stand for what is left out, on both sides; each part stands there once
unwrapped           SEARCH is fenced once more
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise

from app.texts import shifts
from app.texts.listings import opening
from app.texts.manuscripts import Manuscript, Match, Splice

DOTS = "..."

Lines = Sequence[str]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Lines as dots part them; blank lines before dots belong to them."""

    parts: list[Lines]
    dots: list[Lines]


def find(script: Manuscript, search: Lines, replace: Lines) -> Match | None:
    return (
        _in_place(script, search, replace)
        or _without_blank_line(script, search, replace)
        or _elided(script, search, replace)
        or _unwrapped(script, search, replace)
    )


def _in_place(script: Manuscript, search: Lines, replace: Lines) -> Match | None:
    return _exact(script, search, replace) or _shifted(script, search, replace)


def _exact(script: Manuscript, search: Lines, replace: Lines) -> Match | None:
    start = next(script.places(search), None)
    if start is None:
        return None
    return Match("exact", (Splice(start, start + len(search), replace),), script.count(search))


def _shifted(script: Manuscript, search: Lines, replace: Lines) -> Match | None:
    old, new = shifts.outdented(search, replace)
    found, places = list[tuple[int, str]](), shifts.places(script, old)
    with suppress(shifts.Endless):
        for place in places:
            found.append(place)
    if not found:
        return None
    start, add = found[0]
    splice = shifts.replacing(start, old, new)
    return Match("indentation", (Splice(splice.start, splice.stop, shifts.indented(splice.lines, add)),), len(found))


def _without_blank_line(script: Manuscript, search: Lines, replace: Lines) -> Match | None:
    if len(search) <= 2 or search[0].strip():
        return None
    found = _in_place(script, search[1:], replace)
    return found and Match("leading_blank_line", found.splices, found.places)


def _elided(script: Manuscript, search: Lines, replace: Lines) -> Match | None:
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


def _unwrapped(script: Manuscript, search: Lines, replace: Lines) -> Match | None:
    inner = _inside(search)
    if inner is search or not any(line.strip() for line in inner):
        return None
    found = _in_place(script, inner, _inside(replace))
    return found and Match("unwrapped", found.splices, found.places)


def _inside(lines: Lines) -> Lines:
    """What stands between fences, if these lines begin and end with them."""
    fence = opening(lines[0].strip()) if len(lines) > 1 else None
    return lines[1:-1] if fence and lines[-1].strip() == fence.closing else lines
