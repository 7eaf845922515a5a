"""Distances: how many characters two lines differ in, by Levenshtein, and a purse that keeps the work in bounds."""

from dataclasses import dataclass

WIDTH = 256
"""Bits of a row that are worked on in about one step."""


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
    return _counted(longer, shorter)


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


def _counted(longer: str, shorter: str) -> int:
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
