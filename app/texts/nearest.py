"""The lines of a file nearest to lines that are not in it. Linear: lines vote for a place, few places are compared."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

LEAST_LIKENESS = 0.6
MOST_WANTED = 60
MOST_PLACES = 6
MOST_OFFSETS = 3
MOST_WORDS = 8
MOST_HITS = 50
LONGEST_LINE = 160

_WORD = re.compile(r"\w{3,}")


def nearest(lines: Sequence[str], wanted: Sequence[str]) -> range | None:
    """Where the lines most like these stand; None when nothing is much like them."""
    shown = wanted[:MOST_WANTED]
    votes = _votes(lines, shown) or _votes_of_words(lines, shown)
    best, place = 0.0, 0
    for start, _ in votes.most_common(MOST_PLACES):
        start = max(0, min(start, len(lines) - len(wanted)))
        if (likeness := _likeness(lines[start : start + len(shown)], shown)) > best:
            best, place = likeness, start
    return range(place, min(len(lines), place + len(wanted))) if best >= LEAST_LIKENESS else None


def _votes(lines: Sequence[str], wanted: Sequence[str]) -> Counter[int]:
    """Each line that is the same but for its indentation speaks for the place the whole would have then."""
    offsets: dict[str, list[int]] = {}
    for offset, line in enumerate(wanted):
        if (key := line.strip()) and len(offsets.setdefault(key, [])) < MOST_OFFSETS:
            offsets[key].append(offset)
    votes: Counter[int] = Counter()
    for number, line in enumerate(lines):
        for offset in offsets.get(line.strip(), ()):
            votes[number - offset] += 1
    return votes


def _votes_of_words(lines: Sequence[str], wanted: Sequence[str]) -> Counter[int]:
    """No line is the same: the longest words speak for the lines they are in."""
    text, votes = "\n".join(lines), Counter[int]()
    offsets = {word: offset for offset, line in enumerate(wanted) for word in _WORD.findall(line)}
    for word in sorted(offsets, key=len, reverse=True)[:MOST_WORDS]:
        for number in _numbers(text, word):
            votes[number - offsets[word]] += 1
    return votes


def _numbers(text: str, word: str) -> Iterator[int]:
    """The lines that have a word in them, the first of them only."""
    line, seen, at = 0, 0, text.find(word)
    for _ in range(MOST_HITS):
        if at < 0:
            return
        line, seen = line + text.count("\n", seen, at), at
        yield line
        at = text.find(word, at + 1)


def _likeness(there: Sequence[str], wanted: Sequence[str]) -> float:
    """How alike two texts are: as whole lines that may have moved, or line by line."""
    ours, theirs = [line.strip() for line in wanted], [line.strip() for line in there]
    whole = SequenceMatcher(None, ours, theirs, autojunk=False).ratio()
    if whole >= LEAST_LIKENESS:
        return whole
    pairs = sum(_alike(one[:LONGEST_LINE], other[:LONGEST_LINE]) for one, other in zip(ours, theirs, strict=False))
    return max(whole, pairs / len(ours))


def _alike(one: str, other: str) -> float:
    if one == other:
        return 1.0
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
