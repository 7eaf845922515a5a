"""Diffs: what changed, as a unified diff. Where changes are known it costs what they cost, not what the file does."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

CONTEXT = 3
MOST_COMPARED = 2000
"""Lines on a side that are compared one by one; beyond that, all of them count as replaced."""


@dataclass(frozen=True, slots=True)
class Span:
    """From line `start` (the first is 0) on, the lines `old` became the lines `new`. Lines have their ends."""

    start: int
    old: Sequence[str]
    new: Sequence[str]


@dataclass(frozen=True, slots=True)
class Diff:
    text: str
    additions: int
    deletions: int


def unified(before: Sequence[str], spans: Iterable[Span], old_name: str, new_name: str) -> Diff:
    """The unified diff of a file with these lines, in which these spans changed; spans come in order."""
    changed = [span for span in spans if span.old != span.new]
    lines, grown = list[str](), 0
    for group in _groups(changed):
        lines += _hunk(before, group, grown)
        grown += _growth(group)
    head = [f"--- {old_name}\n", f"+++ {new_name}\n"] if lines else []
    additions, deletions = sum(len(span.new) for span in changed), sum(len(span.old) for span in changed)
    return Diff("".join(head + lines), additions, deletions)


def compare(before: Sequence[str], after: Sequence[str]) -> list[Span]:
    """What became what, when nobody knows: what both begin and end with is left out first."""
    start, least = 0, min(len(before), len(after))
    while start < least and before[start] == after[start]:
        start += 1
    end = 0
    while end < least - start and before[len(before) - 1 - end] == after[len(after) - 1 - end]:
        end += 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    if not old and not new:
        return []
    if max(len(old), len(new)) > MOST_COMPARED:
        return [Span(start, old, new)]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [Span(start + i1, old[i1:i2], new[j1:j2]) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]


def lines_of(text: str) -> list[str]:
    """Lines with their ends. Only what ends a line in a file counts, not what `splitlines` takes for an end."""
    lines = text.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _groups(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Changes so near each other that their context meets stand in one hunk."""
    group: list[Span] = []
    for span in spans:
        if group and span.start - (group[-1].start + len(group[-1].old)) > 2 * CONTEXT:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _hunk(before: Sequence[str], group: Sequence[Span], grown: int) -> list[str]:
    """The changes of a group with what stands around them; `grown` lines more came before it."""
    start = max(0, group[0].start - CONTEXT)
    end = min(len(before), group[-1].start + len(group[-1].old) + CONTEXT)
    lines, here = list[str](), start
    for span in group:
        lines += _marked(" ", before[here : span.start])
        lines += _marked("-", span.old)
        lines += _marked("+", span.new)
        here = span.start + len(span.old)
    lines += _marked(" ", before[here:end])
    old, new = _range(start, end - start), _range(start + grown, end - start + _growth(group))
    return [f"@@ -{old} +{new} @@\n", *lines]


def _growth(spans: Iterable[Span]) -> int:
    return sum(len(span.new) - len(span.old) for span in spans)


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")


def _range(start: int, length: int) -> str:
    """As `diff` writes it: the line before an empty range stands for it."""
    begin = start + 1 if length else start
    return str(begin) if length == 1 else f"{begin},{length}"
