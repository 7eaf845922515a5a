"""Nearest: the lines of a text that are most like some others. Each line of the text is looked at once or twice."""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence

MOST_WANTED = 50
MOST_COLUMNS = 120
CANDIDATES = 5
REPEATS = 4
WORDS = 8
PLACES = 200
ENOUGH = 0.6
_WORD = re.compile(r"\w{3,}")


def nearest(lines: Sequence[str], wanted: Sequence[str]) -> range | None:
    """Where the lines stand that are most like `wanted`; None when nothing is like it."""
    sought = [_bare(line) for line in wanted[:MOST_WANTED]]
    for votes in (_votes_by_line, _votes_by_word):
        candidates = [start for start, _ in votes(lines, sought).most_common(CANDIDATES)]
        likeness = {start: _likeness(lines, sought, start) for start in candidates}
        best = max(candidates, key=lambda start: likeness[start], default=None)
        if best is not None and likeness[best] >= ENOUGH:
            return range(max(best, 0), min(best + len(wanted), len(lines)))
    return None


def _bare(line: str) -> str:
    return line.strip()[:MOST_COLUMNS]


def _votes_by_line(lines: Sequence[str], sought: list[str]) -> Counter[int]:
    """Where the whole would begin, by each line that is there as it is sought; long lines say more."""
    places: dict[str, list[int]] = {}
    for place, line in enumerate(sought):
        if line and len(places.setdefault(line, [])) < REPEATS:
            places[line].append(place)
    votes = Counter[int]()
    for number, line in enumerate(map(_bare, lines)):
        for place in places.get(line, ()):
            votes[number - place] += len(line)
    return votes


def _votes_by_word(lines: Sequence[str], sought: list[str]) -> Counter[int]:
    """The same by the longest words, for lines of which none is there as it is."""
    words = {word: place for place, line in enumerate(sought) for word in _WORD.findall(line)}
    text, votes = "\n".join(lines), Counter[int]()
    for word in sorted(words, key=len, reverse=True)[:WORDS]:
        for number in _lines_with(text, word):
            votes[number - words[word]] += len(word)
    return votes


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
        there = _bare(lines[number]) if 0 <= number < len(lines) else ""
        alike += len(line) * difflib.SequenceMatcher(None, there, line, autojunk=False).ratio()
        size += len(line)
    return alike / size if size else 0.0
