"""Regular expressions of strangers: how long a text may be so that matching it cannot hold up the service.

Python's engine backtracks. What it does at worst is estimated from the text of
the pattern: each loop in a row is one more place to try, and a loop in a loop
doubles the work with every character.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from math import comb

WORK = 4_000_000
LONGEST = 1_000_000
NESTED = 16
"""Characters for a pattern with a loop in a loop: 2 ** 16 ways at most."""

_TIMES = re.compile(r"\*|\+|\?|\{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


@dataclass(slots=True)
class _Scan:
    """What a pattern holds: loops in a row, and whether one stands in another."""

    loops: int = 0
    is_nested: bool = False


@lru_cache(maxsize=4096)
def reach(pattern: str) -> int:
    """The longest text this pattern is matched with; of a longer one nothing is said here."""
    scan = _scan(pattern)
    if scan.is_nested:
        return NESTED
    # A pattern that is not tied to the start is tried at every character.
    loops = scan.loops + (not pattern.startswith("^"))
    low, high = 1, LONGEST
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if comb(middle + loops, loops) <= WORK else (low, middle - 1)
    return low


def _scan(pattern: str) -> _Scan:
    scan = _Scan()
    varies = [False]  # for each open group, whether it can match in more than one way
    inner = False  # whether what stands before can
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if (times := _TIMES.match(pattern, at)) and at > 0:
            at = times.end()
            if pattern[at : at + 1] in ("?", "+"):
                at += 1
            low, high = _bounds(times)
            scan.is_nested |= inner and high > 1
            scan.loops += low != high
            varies[-1] |= low != high
            inner = False
            continue
        inner = False
        if char == "(":
            varies.append(False)
            at += 2 if pattern[at + 1 : at + 2] == "?" else 1
        elif char == ")" and len(varies) > 1:
            inner = varies.pop()
            varies[-1] |= inner
            at += 1
        elif char == "[" and (found := _CLASS.match(pattern, at)):
            at = found.end()
        else:
            varies[-1] |= char == "|"
            at += 2 if char == "\\" else 1
    return scan


def _bounds(times: re.Match[str]) -> tuple[int, int]:
    match times[0]:
        case "*":
            return 0, LONGEST
        case "+":
            return 1, LONGEST
        case "?":
            return 0, 1
    low = int(times["low"] or 0)
    if not times["comma"]:
        return low, low
    return low, int(times["high"]) if times["high"] else LONGEST
