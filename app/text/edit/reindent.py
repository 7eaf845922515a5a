"""Indents: new lines moved in or out, so that they stand in a file as they were meant to stand beside the old ones.

Old lines that were found in a file at other indents than they were given with tell how the given indents are to be
read: each of them stands for the one the file has.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from app.text.edit.candidates import SPACES
from app.text.edit.diff import Span, compare

Levels = Mapping[str, str]
"""Indents as given, and what they are in the file."""


def reindent(new: str, old: str, found: str) -> str:
    """The new text at the indents of the file, in which the old text was found as these whole lines."""
    before, after = old.split("\n"), new.split("\n")
    places = dict(_places(before, found.split("\n")))
    pairs = [(_indent(before[place]), indent) for place, indent in places.items()]
    if all(mine == theirs for mine, theirs in pairs):
        return new
    levels = dict(reversed(pairs))
    if all(levels[mine] == theirs for mine, theirs in pairs):
        return "\n".join(_moved(line, levels) for line in after)
    # The same indent stands for several ones, so only that of the first line is sure. A line that is where an old
    # one was, at the same indent, was given as carelessly as that one.
    careless = dict(_kept(before, after, places))
    first = dict(pairs[:1])
    return "\n".join(
        careless[place] + line.lstrip(SPACES) if place in careless else _moved(line, first)
        for place, line in enumerate(after)
    )


def _places(old: Sequence[str], found: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Old lines by their places, each with the indent its counterpart has in the file. Blank ones have none."""
    mine = [place for place, line in enumerate(old) if line.strip(SPACES)]
    theirs = [line for line in found if line.strip(SPACES)]
    for place, line in _counterparts(mine, old, theirs):
        yield place, _indent(line)


def _counterparts(mine: Sequence[int], old: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[int, str]]:
    if len(mine) == len(theirs):
        yield from zip(mine, theirs, strict=True)
        return
    for number, (place, line) in enumerate(zip(mine, theirs, strict=False)):
        # Where one side has more lines, only those before the first difference are surely the same.
        if number and old[place].strip(SPACES) != line.strip(SPACES):
            return
        yield place, line


def _kept(old: Sequence[str], new: Sequence[str], indents: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """New lines by their places that stand where an old one stood, at the same indent; each with that of the file."""
    for place, before in _beside(old, new):
        if before in indents and _indent(old[before]) == _indent(new[place]):
            yield place, indents[before]


def _beside(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Places of new lines and of the old ones they are, or are put in place of."""
    place = before = 0
    for span in [*compare(old, new), Span(len(old), (), ())]:
        while before < span.start:
            yield place, before
            place, before = place + 1, before + 1
        if len(span.old) == len(span.new):
            yield from zip(range(place, place + len(span.new)), range(before, before + len(span.old)), strict=True)
        place, before = place + len(span.new), before + len(span.old)


def _moved(line: str, levels: Levels) -> str:
    """A line at the indent of the file that its own one stands for, reckoned from the nearest one that is known."""
    if not line.strip(SPACES):
        return line
    indent, text, unit = _indent(line), line.lstrip(SPACES), _unit(levels)
    known = max((level for level in levels if indent.startswith(level)), key=len, default=None)
    if known is not None:
        return levels[known] + _converted(indent[len(known) :], unit) + text
    least = min(levels, key=len)
    if not least.startswith(indent):
        return levels[least] + text
    # Further out than all that is known: out from the outermost one, as far as the file goes.
    missing = _converted(least[len(indent) :], unit)
    return levels[least][: max(0, len(levels[least]) - len(missing))] + text


def _converted(indent: str, unit: tuple[str, str] | None) -> str:
    """Indentation in the file's own characters, where it is known how many of them stand for how many."""
    if unit is None or set(indent) != set(unit[0]):
        return indent
    count, rest = divmod(len(indent) * len(unit[1]), len(unit[0]))
    return indent if rest else unit[1][0] * count


def _unit(levels: Levels) -> tuple[str, str] | None:
    """What one step in is as given, and in the file, where that differs: other characters, or another width."""
    known = sorted(levels.items(), key=lambda level: len(level[0]))
    if len(known) == 1:
        known = [("", ""), *known]
    for (outer, found_outer), (inner, found_inner) in pairwise(known):
        mine, theirs = inner[len(outer) :], found_inner[len(found_outer) :]
        if len(set(mine)) != 1 or len(set(theirs)) != 1 or mine == theirs:
            continue
        if set(mine) != set(theirs) or (levels.get("") == "" and _is_scaled(levels, mine, theirs)):
            return mine, theirs
    return None


def _is_scaled(levels: Levels, mine: str, theirs: str) -> bool:
    """Whether all levels are to each other as these two are: not moved, but wider or narrower."""
    return all(len(given) * len(theirs) == len(found) * len(mine) for given, found in levels.items())


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(SPACES))]
