"""Nearest: the lines of a file that come closest to lines that are not in it.

A few passes over the file find places worth a look, and only so many of them are looked at, as far as a purse of
fixed size lasts: what is far away is not found by trying everything.
"""

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from app.text.edit.similarity import WorkBudget, likeness
from app.text.edit.text_views import numbered

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
    return list(numbered(text, piece)) if text.count(piece) <= MOST_SEEN else []


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
