"""Reindents new lines for a file in which the old lines were found at another indentation.

Each indent of the given old lines is mapped to the one that the line has in the file, and new lines follow that map.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from app.text.edit.candidates import SPACES
from app.text.edit.diff import Span, compare

Levels = Mapping[str, str]
"""Indents as given, and as they are in the file."""


def reindent(new: str, old: str, found: str) -> str:
    """The new text at the indents of the file, in which the old text was found as the lines `found`."""
    before, after = old.split("\n"), new.split("\n")
    indents = dict(_indents_in_file(before, found.split("\n")))
    pairs = [(_indent(before[index]), indent) for index, indent in indents.items()]
    if all(own == actual for own, actual in pairs):
        return new
    levels = dict(reversed(pairs))
    if all(levels[own] == actual for own, actual in pairs):
        return "\n".join(_reindent_line(line, levels) for line in after)
    # One given indent maps to several, so only that of the first line is certain. A line at the place and indent of
    # an old one gets that line's indent in the file.
    copied = dict(_indents_of_old_lines(before, after, indents))
    first = dict(pairs[:1])
    return "\n".join(
        copied[index] + line.lstrip(SPACES) if index in copied else _reindent_line(line, first)
        for index, line in enumerate(after)
    )


def _indents_in_file(old: Sequence[str], found: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Indices of old lines that are not blank, each with the indent of its counterpart in the file."""
    own = [index for index, line in enumerate(old) if line.strip(SPACES)]
    actual = [line for line in found if line.strip(SPACES)]
    for index, line in _counterparts(own, old, actual):
        yield index, _indent(line)


def _counterparts(own: Sequence[int], old: Sequence[str], actual: Sequence[str]) -> Iterator[tuple[int, str]]:
    if len(own) == len(actual):
        yield from zip(own, actual, strict=True)
        return
    for number, (index, line) in enumerate(zip(own, actual, strict=False)):
        # If one side has more lines, only those before the first difference are certain.
        if number and old[index].strip(SPACES) != line.strip(SPACES):
            return
        yield index, line


def _indents_of_old_lines(
    old: Sequence[str], new: Sequence[str], indents: Mapping[int, str]
) -> Iterator[tuple[int, str]]:
    """Indices of new lines at the place and indent of an old one, each with that line's indent in the file."""
    for index, before in _aligned(old, new):
        if before in indents and _indent(old[before]) == _indent(new[index]):
            yield index, indents[before]


def _aligned(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Indices of new lines and of the old lines that they equal or replace."""
    index = before = 0
    for span in [*compare(old, new), Span(len(old), (), ())]:
        while before < span.start:
            yield index, before
            index, before = index + 1, before + 1
        if len(span.old) == len(span.new):
            yield from zip(range(index, index + len(span.new)), range(before, before + len(span.old)), strict=True)
        index, before = index + len(span.new), before + len(span.old)


def _reindent_line(line: str, levels: Levels) -> str:
    """A line at the indent of the file, computed from the nearest known indent."""
    if not line.strip(SPACES):
        return line
    indent, text, unit = _indent(line), line.lstrip(SPACES), _unit(levels)
    known = max((level for level in levels if indent.startswith(level)), key=len, default=None)
    if known is not None:
        return levels[known] + _converted(indent[len(known) :], unit) + text
    least = min(levels, key=len)
    if not least.startswith(indent):
        return levels[least] + text
    # Less than all known indents: reduce the smallest one by the difference.
    missing = _converted(least[len(indent) :], unit)
    return levels[least][: max(0, len(levels[least]) - len(missing))] + text


def _converted(indent: str, unit: tuple[str, str] | None) -> str:
    """Indentation in the file's own characters, if the ratio is known."""
    if unit is None or set(indent) != set(unit[0]):
        return indent
    count, rest = divmod(len(indent) * len(unit[1]), len(unit[0]))
    return indent if rest else unit[1][0] * count


def _unit(levels: Levels) -> tuple[str, str] | None:
    """One level of indentation as given and in the file, if they differ in characters or width."""
    known = sorted(levels.items(), key=lambda level: len(level[0]))
    if len(known) == 1:
        known = [("", ""), *known]
    for (outer, found_outer), (inner, found_inner) in pairwise(known):
        own, actual = inner[len(outer) :], found_inner[len(found_outer) :]
        if len(set(own)) != 1 or len(set(actual)) != 1 or own == actual:
            continue
        if set(own) != set(actual) or (levels.get("") == "" and _is_scaled(levels, own, actual)):
            return own, actual
    return None


def _is_scaled(levels: Levels, own: str, actual: str) -> bool:
    """Whether all levels have the ratio of these two: scaled, not shifted."""
    return all(len(level) * len(actual) == len(found) * len(own) for level, found in levels.items())


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(SPACES))]
