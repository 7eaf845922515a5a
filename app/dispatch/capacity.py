"""How many calls there may be: under way, of one key and all together, and of one key in a minute.

Counted are calls, not requests.
"""

from collections import Counter, deque
from math import ceil

from app.core.errors import TooBusy, TooManyCalls
from app.core.ports import Clock
from app.core.principals import Key

MINUTE = 60.0


class Capacity:
    """Counts live calls. Whoever lets a call in asks first; a call that goes on anyway is only counted."""

    def __init__(self, per_key: int, total: int, clock: Clock) -> None:
        self._per_key = per_key
        self._total = total
        self._clock = clock
        self.under_way = 0
        self.by_key: Counter[str] = Counter()
        self._begun: dict[str, deque[float]] = {}

    def admit(self, key: Key | None, calls: int = 1) -> None:
        """Is there room for so many more calls of this key? If not, nothing has happened yet."""
        if key is not None:
            most = key.bounds.concurrent_calls or self._per_key
            if self.by_key[key.id] + calls > most:
                raise TooManyCalls(f"A key may have {most} calls under way; wait until some have ended.")
            if key.bounds.calls_per_minute is not None:
                self._admit_now(key.id, calls, key.bounds.calls_per_minute)
        if self.under_way + calls > self._total:
            raise TooBusy(f"The service has its {self._total} calls under way; try again in a moment.")

    def enter(self, key: Key | None) -> None:
        self.under_way += 1
        if key is not None:
            self.by_key[key.id] += 1
            if key.bounds.calls_per_minute is not None:
                self._begun.setdefault(key.id, deque()).append(self._clock.monotonic())

    def leave(self, key: Key | None) -> None:
        self.under_way -= 1
        if key is not None:
            self.by_key[key.id] -= 1
            if not self.by_key[key.id]:
                del self.by_key[key.id]

    def _admit_now(self, key: str, calls: int, most: int) -> None:
        """The minute slides: what counts is every call that began within the last sixty seconds."""
        begun, now = self._begun.get(key, deque()), self._clock.monotonic()
        while begun and begun[0] <= now - MINUTE:
            begun.popleft()
        if not begun:
            self._begun.pop(key, None)
        over = len(begun) + calls - most
        if over <= 0:
            return
        if calls > most:
            raise TooManyCalls(
                f"This key may make {most} calls in a minute, so {calls} at once never fit.", int(MINUTE)
            )
        seconds = max(1, ceil(begun[over - 1] + MINUTE - now))
        raise TooManyCalls(f"This key may make {most} calls in a minute; try again in {seconds} s.", seconds)
