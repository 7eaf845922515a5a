"""A throttle that merges values: of those that come too fast, only the last is passed on."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

BURST = 32
A_SECOND = 10


class Throttle(Generic[T]):
    """`burst` at once, then `a_second` per second. Of faster values the last one is always passed on."""

    __slots__ = ("_a_second", "_at", "_burst", "_last", "_left", "_tell", "_timer")

    def __init__(self, tell: Callable[[T], None], *, burst: int = BURST, a_second: float = A_SECOND) -> None:
        self._tell = tell
        self._burst = burst
        self._a_second = a_second
        self._left = float(burst)
        self._at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._last: T | None = None

    def offer(self, what: T) -> None:
        if self._timer is not None:
            self._last = what
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._left = min(self._left + (now - self._at) * self._a_second, self._burst)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            self._tell(what)
            return
        self._last = what
        self._timer = loop.call_later((1 - self._left) / self._a_second, self.flush)

    def flush(self) -> None:
        """Pass on the waiting value, if there is one."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer, last, self._last = None, self._last, None
        self._left, self._at = 0.0, asyncio.get_running_loop().time()
        if last is not None:
            self._tell(last)
