"""Nearest: the lines of a text that are most like some others, found by a few looks through the whole of it."""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence

MOST_WANTED = 50
MOST_COLUMNS = 120
CANDIDATES = 5
PIECES = 8
PLACES = 200
ENOUGH = 0.4
_WORD = re.compile(r"\w{3,}")


def nearest(lines: Sequence[str], wanted: Sequence[str]) -> range | None:
    """Where the lines stand that are most like `wanted`; None when nothing is like it."""
    sought, text = [line.strip() for line in wanted[:MOST_WANTED]], "\n".join(lines)
    for pieces in (_lines(sought), _words(sought)):
        candidates = _candidates(text, pieces)
        likeness = {start: _likeness(lines, sought, start) for start in candidates}
        best = max(candidates, key=lambda start: likeness[start], default=None)
        if best is not None and likeness[best] >= ENOUGH:
            return range(max(best, 0), min(best + len(wanted), len(lines)))
    return None


def _lines(sought: list[str]) -> dict[str, int]:
    """Each line, and where it stands first."""
    return {line: place for place, line in reversed([*enumerate(sought)])}


def _words(sought: list[str]) -> dict[str, int]:
    """Each word, and in which line it stands first."""
    return {word: place for place, line in reversed([*enumerate(sought)]) for word in _WORD.findall(line)}


def _candidates(text: str, pieces: dict[str, int]) -> list[int]:
    """Where the whole may begin, by the longest of its pieces that are there; `pieces` tell where they belong."""
    votes = Counter[int]()
    for piece in sorted(filter(None, pieces), key=len, reverse=True)[:PIECES]:
        for number in _lines_with(text, piece):
            votes[number - pieces[piece]] += len(piece)
    return [start for start, _ in votes.most_common(CANDIDATES)]


def _lines_with(text: str, word: str) -> Iterator[int]:
    number, counted, at = 0, 0, text.find(word)
    for _ in range(PLACES):
        if at < 0:
            return
        number, counted = number + text.count("\n", counted, at), at
        yield number
        at = text.find(word, at + len(word))


def _likeness(lines: Sequence[str], sought: list[str], start: int) -> float:
    """How much of what is sought is there, line by line: 1 is all of it."""
    alike, size = 0.0, 0
    for number, line in enumerate(sought, start):
        there = lines[number].strip() if 0 <= number < len(lines) else ""
        alike += len(line) * _ratio(there, line)
        size += len(line)
    return alike / size if size else 0.0


def _ratio(one: str, other: str) -> float:
    if one == other:
        return 1.0
    return difflib.SequenceMatcher(None, one[:MOST_COLUMNS], other[:MOST_COLUMNS], autojunk=False).ratio()
