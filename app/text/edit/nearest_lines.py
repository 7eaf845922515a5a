"""Nearest."""

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

WIDTH = 256
"""Bits of a row that are worked on in about one step."""

ENOUGH = 0.6
MOST_WANTED = 100
"""Wanted lines that are compared; of more, the first ones stand for all."""
MOST_PLACES = 12
MOST_SEEN = 500
"""How often a line or a scrap may be in the file and still tell one place from another."""
SCRAPS = (12, 6, 3)
SCRAPS_OF_A_LINE = 3
MOST_LINES = 4
MOST_WHOLE = 8
LONGEST = 200
STEPS = 400_000

Votes = dict[int, float]
"""For each line at which the wanted ones may begin, how much speaks for it."""


@dataclass(slots=True)
class WorkBudget:
    """Work that may still be done, in steps. What cannot be paid for is not done, and not counted."""

    left: int

    def pay(self, steps: int) -> bool:
        if steps > self.left:
            return False
        self.left -= steps
        return True


def distance(a: str, b: str, purse: WorkBudget) -> int | None:
    """The Levenshtein distance of two texts; None when the purse does not have the steps for it.

    A row of the table is one number with a bit for each character of the longer text (Hyyrö's form of Myers' method),
    so a step is a character of the shorter one.
    """
    if a == b:
        return 0
    a, b = _trimmed(a, b)
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    if not shorter:
        return len(longer)
    if not purse.pay((len(longer) + len(shorter)) * (1 + len(longer) // WIDTH)):
        return None
    return _bit_distance(longer, shorter)


def likeness(a: str, b: str, purse: WorkBudget) -> float | None:
    """1.0 for equal texts, 0.0 for texts with nothing in common, and for two empty ones."""
    size = max(len(a), len(b))
    if not size:
        return 0.0
    away = distance(a, b, purse)
    return None if away is None else 1 - away / size


def most_likeness(a: str, b: str) -> float:
    """What `likeness` cannot be above: their lengths alone tell so much."""
    if a == b:
        return 1.0 if a else 0.0
    size = max(len(a), len(b))
    return 1 - (size - min(len(a), len(b))) / size


def _trimmed(a: str, b: str) -> tuple[str, str]:
    """Both without what they begin and end with alike, which does not change their distance."""
    start, least = 0, min(len(a), len(b))
    while start < least and a[start] == b[start]:
        start += 1
    end = 0
    while end < least - start and a[-1 - end] == b[-1 - end]:
        end += 1
    return a[start : len(a) - end], b[start : len(b) - end]


def _bit_distance(longer: str, shorter: str) -> int:
    bits: dict[str, int] = {}
    for place, char in enumerate(longer):
        bits[char] = bits.get(char, 0) | 1 << place
    full, last, count = (1 << len(longer)) - 1, 1 << len(longer) - 1, len(longer)
    more, less = full, 0
    for char in shorter:
        same = bits.get(char, 0)
        across = same | less
        down = (((same & more) + more) ^ more) | same
        up, back = less | ~(down | more), more & down
        count += bool(up & last) - bool(back & last)
        up, back = up << 1 | 1, back << 1
        more, less = (back | ~(across | up)) & full, up & across & full
    return count


def nearest(lines: Sequence[str], wanted: Sequence[str]) -> range | None:
    """The lines that are most like the wanted ones, if any are much like them; blank ones around these do not count."""
    return nearest_in("\n".join(lines), lines, wanted)


def nearest_in(text: str, lines: Sequence[str], wanted: Sequence[str]) -> range | None:
    """The same in a text with these lines, of which only those are looked at that may be it."""
    sought = [line.strip() for line in wanted]
    filled = [place for place, line in enumerate(sought) if line]
    if not filled:
        return None
    sought = sought[filled[0] : filled[-1] + 1]
    purse = WorkBudget(STEPS)
    for votes in _elections(text, sought[:MOST_WANTED]):
        best = _best(lines, sought[:MOST_WANTED], votes, purse)
        if best is not None:
            return range(max(0, best), min(len(lines), best + len(sought)))
    return None


def _elections(text: str, sought: Sequence[str]) -> Iterator[Votes]:
    """Places to look at: by lines that are there, then by scraps of lines, the longest ones first."""
    yield _votes_of_lines(text, sought)
    for size in SCRAPS:
        yield _votes_of_scraps(text, sought, size)


def _votes_of_lines(text: str, sought: Sequence[str]) -> Votes:
    longest = sorted(dict.fromkeys(filter(None, sought)), key=len, reverse=True)[:MOST_WHOLE]
    seen = {line: _places(text, line) for line in longest}
    return _counted((place, seen[line]) for place, line in enumerate(sought) if line in seen)


def _votes_of_scraps(text: str, sought: Sequence[str], size: int) -> Votes:
    places = sorted(range(len(sought)), key=lambda place: -len(sought[place]))[:MOST_LINES]
    return _counted((place, _places(text, scrap)) for place in places for scrap in _scraps(sought[place], size))


def _places(text: str, piece: str) -> list[int]:
    """The lines a piece stands in, if they are not too many to tell one place from another."""
    return list(line_numbers(text, piece)) if text.count(piece) <= MOST_SEEN else []


def line_numbers(text: str, piece: str) -> Iterator[int]:
    """The line, counted from 0, of each occurrence of a piece; occurrences may overlap."""
    line, seen, at = 0, 0, text.find(piece)
    while at >= 0:
        line, seen = line + text.count("\n", seen, at), at
        yield line
        at = text.find(piece, at + 1)


def _counted(found: Iterable[tuple[int, Sequence[int]]]) -> Votes:
    """What is at few places says more about each of them than what is at many, and what is at too many says nothing."""
    votes: Votes = defaultdict(float)
    for place, numbers in found:
        for number in numbers:
            votes[number - place] += 1 / len(numbers)
    return votes


def _scraps(line: str, size: int) -> list[str]:
    """A few pieces of a line, spread evenly over it."""
    if len(line) <= size:
        return []
    last = len(line) - size
    return list(dict.fromkeys(line[last * part // (SCRAPS_OF_A_LINE - 1) :][:size] for part in range(SCRAPS_OF_A_LINE)))


def _best(lines: Sequence[str], sought: Sequence[str], votes: Votes, purse: WorkBudget) -> int | None:
    """Of the places most speaks for, the one whose lines are most alike, if they are enough."""
    places = sorted(votes, key=lambda place: (-votes[place], place))[:MOST_PLACES]
    alike = {place: _closeness(lines, sought, place, purse) for place in sorted(places)}
    best = max(alike, key=lambda place: alike[place], default=None)
    return best if best is not None and alike[best] >= ENOUGH else None


def _closeness(lines: Sequence[str], sought: Sequence[str], place: int, purse: WorkBudget) -> float:
    """How much the lines here are like the sought ones: one by one, or in order where some are left out."""
    there = [line.strip() for line in lines[max(0, place) : place + len(sought)]]
    before = [""] * min(len(sought), max(0, -place))
    here = before + there + [""] * (len(sought) - len(before) - len(there))
    pairs = [(mine[:LONGEST], theirs[:LONGEST]) for mine, theirs in zip(here, sought, strict=True) if mine or theirs]
    one_by_one = sum(likeness(mine, theirs, purse) or 0.0 for mine, theirs in pairs) / len(pairs)
    return max(one_by_one, difflib.SequenceMatcher(None, here, sought, autojunk=False).ratio())
