"""Ids: a prefix, the time in microseconds, and 40 random bits. Sorted by name they are sorted by birth."""

import random
import secrets

from app.core.ports import Clock

TIME_DIGITS = 14  # of hexadecimal: microseconds until the year 4253


class Ids:
    """Gives out ids that never go back, even when the wall clock does."""

    def __init__(self, clock: Clock, newest: int = 0) -> None:
        self._clock = clock
        self._newest = newest
        self._random = random.Random(secrets.randbits(128))  # ids are unique, not secret

    def new(self, prefix: str) -> tuple[str, int]:
        """A fresh id and the time it carries."""
        at = max(self._clock.now(), self._newest + 1)
        self._newest = at
        return f"{prefix}_{at:014x}{self._random.getrandbits(40):010x}", at


def earliest(prefix: str, at: int) -> str:
    """What sorts before every id of this moment or later, and behind all before it."""
    return f"{prefix}_{at:014x}"


def time_of(id: str) -> int:
    """The microseconds an id carries; 0 for anything that is not one of ours."""
    try:
        return int(id.partition("_")[2][:TIME_DIGITS], 16)
    except ValueError:
        return 0
