"""One lock per idempotency key."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class KeyedLocks:
    """One batch of an Idempotency-Key at a time, until its calls are accepted: then the next can be compared."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, principal: str, key: str) -> AsyncIterator[None]:
        async with self._locks.setdefault((principal, key), asyncio.Lock()):
            yield
