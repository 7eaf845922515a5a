"""The lines of a file that are most similar to lines that are not in it, by Levenshtein distance.

A few passes over the file find likely places; only a few of them are compared, within a budget of fixed size.
"""

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 256
"""Bits of a row that are processed in about one step."""

MIN_SIMILARITY = 0.6
MAX_WANTED = 100
"""Only this many of the wanted lines are compared."""
MAX_PLACES = 12
MAX_OCCURRENCES = 500
"""A line or fragment that is more frequent in the file does not tell where to look."""
FRAGMENT_LENGTHS = (12, 6, 3)
FRAGMENTS_PER_LINE = 3
MAX_FRAGMENTED_LINES = 4
MAX_WHOLE_LINES = 8
MAX_LINE_LENGTH = 200
MAX_STEPS = 400_000
MAX_SHOWN_LINES = 20
MAX_SHOWN_COLUMNS = 200

Votes = dict[int, float]
"""For each line at which the wanted ones may begin, the weight of the evidence."""


@dataclass(slots=True)
class WorkBudget:
    """Steps of work that are left. Work that would exceed them is not done."""

    left: int

    def spend(self, steps: int) -> bool:
        if steps > self.left:
            return False
        self.left -= steps
        return True


def distance(a: str, b: str, budget: WorkBudget) -> int | None:
    """The Levenshtein distance of two texts; None if it exceeds the budget.

    Myers' bit-parallel algorithm in Hyyrö's form: a row of the table is one integer with a bit for each character of
    the longer text, and a step is a character of the shorter one.
    """
    if a == b:
        return 0
    a, b = _without_common_ends(a, b)
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    if not shorter:
        return len(longer)
    if not budget.spend((len(longer) + len(shorter)) * (1 + len(longer) // WIDTH)):
        return None
    return _bit_distance(longer, shorter)


def similarity(a: str, b: str, budget: WorkBudget) -> float | None:
    """1.0 for equal texts, 0.0 for texts with nothing in common, and for two empty ones."""
    size = max(len(a), len(b))
    if not size:
        return 0.0
    edits = distance(a, b, budget)
    return None if edits is None else 1 - edits / size


def max_similarity(a: str, b: str) -> float:
    """An upper bound of `similarity`, from the lengths alone."""
    if a == b:
        return 1.0 if a else 0.0
    size = max(len(a), len(b))
    return 1 - (size - min(len(a), len(b))) / size


def _without_common_ends(a: str, b: str) -> tuple[str, str]:
    """Both without their common head and tail, which does not change the distance."""
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
    """The lines most similar to the wanted ones, if similar enough; leading and trailing blank lines are ignored."""
    return nearest_in("\n".join(lines), lines, wanted)


def nearest_in(text: str, lines: Sequence[str], wanted: Sequence[str]) -> range | None:
    """The same for a text whose lines may be lazy: only likely ones are accessed."""
    wanted_lines = [line.strip() for line in wanted]
    filled = [place for place, line in enumerate(wanted_lines) if line]
    if not filled:
        return None
    wanted_lines = wanted_lines[filled[0] : filled[-1] + 1]
    budget = WorkBudget(MAX_STEPS)
    for votes in _candidate_votes(text, wanted_lines[:MAX_WANTED]):
        best = _best(lines, wanted_lines[:MAX_WANTED], votes, budget)
        if best is not None:
            return range(max(0, best), min(len(lines), best + len(wanted_lines)))
    return None


def _candidate_votes(text: str, wanted_lines: Sequence[str]) -> Iterator[Votes]:
    """Likely places: by whole lines, then by shorter and shorter fragments of lines."""
    yield _votes_by_lines(text, wanted_lines)
    for size in FRAGMENT_LENGTHS:
        yield _votes_by_fragments(text, wanted_lines, size)


def _votes_by_lines(text: str, wanted_lines: Sequence[str]) -> Votes:
    longest = sorted(dict.fromkeys(filter(None, wanted_lines)), key=len, reverse=True)[:MAX_WHOLE_LINES]
    seen = {line: _places(text, line) for line in longest}
    return _count_votes((place, seen[line]) for place, line in enumerate(wanted_lines) if line in seen)


def _votes_by_fragments(text: str, wanted_lines: Sequence[str], size: int) -> Votes:
    places = sorted(range(len(wanted_lines)), key=lambda place: -len(wanted_lines[place]))[:MAX_FRAGMENTED_LINES]
    return _count_votes(
        (place, _places(text, fragment)) for place in places for fragment in _fragments(wanted_lines[place], size)
    )


def _places(text: str, piece: str) -> list[int]:
    """The lines that contain a piece, if they are not too many."""
    return list(line_numbers(text, piece)) if text.count(piece) <= MAX_OCCURRENCES else []


def line_numbers(text: str, piece: str) -> Iterator[int]:
    """The line, counted from 0, of each occurrence of a piece; occurrences may overlap."""
    line, seen, at = 0, 0, text.find(piece)
    while at >= 0:
        line, seen = line + text.count("\n", seen, at), at
        yield line
        at = text.find(piece, at + 1)


def _count_votes(found: Iterable[tuple[int, Sequence[int]]]) -> Votes:
    """What is at few places weighs more for each of them than what is at many."""
    votes: Votes = defaultdict(float)
    for place, numbers in found:
        for number in numbers:
            votes[number - place] += 1 / len(numbers)
    return votes


def _fragments(line: str, size: int) -> list[str]:
    """A few pieces, spread evenly over a line."""
    if len(line) <= size:
        return []
    last = len(line) - size
    return list(
        dict.fromkeys(line[last * part // (FRAGMENTS_PER_LINE - 1) :][:size] for part in range(FRAGMENTS_PER_LINE))
    )


def _best(lines: Sequence[str], wanted_lines: Sequence[str], votes: Votes, budget: WorkBudget) -> int | None:
    """Of the most likely places, the one whose lines are most similar, if similar enough."""
    places = sorted(votes, key=lambda place: (-votes[place], place))[:MAX_PLACES]
    scores = {place: _similarity_at(lines, wanted_lines, place, budget) for place in sorted(places)}
    best = max(scores, key=lambda place: scores[place], default=None)
    return best if best is not None and scores[best] >= MIN_SIMILARITY else None


def _similarity_at(lines: Sequence[str], wanted_lines: Sequence[str], place: int, budget: WorkBudget) -> float:
    """How similar the lines at a place are: one by one, or as sequences, where some may be missing."""
    there = [line.strip() for line in lines[max(0, place) : place + len(wanted_lines)]]
    before = [""] * min(len(wanted_lines), max(0, -place))
    here = before + there + [""] * (len(wanted_lines) - len(before) - len(there))
    pairs = [
        (line[:MAX_LINE_LENGTH], other[:MAX_LINE_LENGTH])
        for line, other in zip(here, wanted_lines, strict=True)
        if line or other
    ]
    one_by_one = sum(similarity(line, other, budget) or 0.0 for line, other in pairs) / len(pairs)
    return max(one_by_one, difflib.SequenceMatcher(None, here, wanted_lines, autojunk=False).ratio())


def cut_lines(lines: Sequence[str]) -> str:
    """Lines to show, as many and as long as is reasonable; `…` stands for the rest."""
    shown = [line.removesuffix("\n") for line in lines[:MAX_SHOWN_LINES]]
    shown = [line if len(line) <= MAX_SHOWN_COLUMNS else f"{line[:MAX_SHOWN_COLUMNS]}…" for line in shown]
    return "\n".join([*shown, "…"] if len(lines) > MAX_SHOWN_LINES else shown)


def excerpt(lines: Sequence[str], near: range) -> dict[str, Any]:
    """The nearest lines, as the details of an error have them."""
    return {"line": near.start + 1, "text": cut_lines(lines[near.start : near.stop])}


def numbered_excerpt(line: int, text: str) -> str:
    """The same, as its message has them."""
    return "\n".join(f"L{number}: {shown}" for number, shown in enumerate(text.split("\n"), line))
