"""How many calls may be under way: those of one key, and all together. Counted are calls, not requests."""

from collections import Counter

from app.core.errors import TooBusy, TooManyCalls
from app.core.principals import Key


class Capacity:
    """Counts live calls. Whoever lets a call in asks first; a call that goes on anyway is only counted."""

    def __init__(self, per_key: int, total: int) -> None:
        self._per_key = per_key
        self._total = total
        self.under_way = 0
        self.by_key: Counter[str] = Counter()

    def admit(self, key: Key | None, calls: int = 1) -> None:
        """Is there room for so many more calls of this key? If not, nothing has happened yet."""
        if key is not None:
            most = key.bounds.concurrent_calls or self._per_key
            if self.by_key[key.id] + calls > most:
                raise TooManyCalls(f"A key may have {most} calls under way; wait until some have ended.")
        if self.under_way + calls > self._total:
            raise TooBusy(f"The service has its {self._total} calls under way; try again in a moment.")

    def enter(self, key: str | None) -> None:
        """One more call of the key with this id: also one that came with it before the service was started anew."""
        self.under_way += 1
        if key is not None:
            self.by_key[key] += 1

    def leave(self, key: str | None) -> None:
        self.under_way -= 1
        if key is not None:
            self.by_key[key] -= 1
            if not self.by_key[key]:
                del self.by_key[key]
