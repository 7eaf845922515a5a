"""Retention: the oldest calls go when they are too old, or when the records take too much room.

They go in small batches through the one writer, each a transaction of its own
with a pause behind it, so that calls under way hardly notice.
"""

import asyncio
import logging
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.errors import StoreError
from app.core.ports import Clock
from app.dispatch.events.hub import EventHub
from app.store import retention
from app.store.retention import OldCall
from app.store.writer import Writer

log = logging.getLogger(__name__)

DAY = 86_400
BATCH = 50
BATCH_BYTES = 8 * 1024 * 1024
PAUSE = 0.05
INTERVAL = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What is kept: calls that ended within so many days, in so many bytes. None is without end."""

    days: float | None
    bytes: int | None

    @property
    def is_set(self) -> bool:
        return self.days is not None or self.bytes is not None


class Retention:
    def __init__(self, engine: AsyncEngine, writer: Writer, hub: EventHub, clock: Clock, limits: Limits) -> None:
        self._engine = engine
        self._writer = writer
        self._hub = hub
        self._clock = clock
        self._limits = limits

    async def run(self) -> None:
        """Sweep now and every minute, for as long as the service lives."""
        while self._limits.is_set:
            try:
                if removed := await self.sweep():
                    log.info("removed %d old calls", removed)
            except StoreError as error:
                log.warning("old calls could not be removed, will try again: %s", error)
            await asyncio.sleep(INTERVAL)

    async def sweep(self) -> int:
        """Remove all that is beyond the limits; the answer is how many calls that was."""
        removed = 0
        while batch := await self._too_much():
            await self._remove([old.id for old in batch])
            removed += len(batch)
            await asyncio.sleep(PAUSE)
        return removed

    async def _remove(self, ids: list[str]) -> None:
        floor = await self._writer.submit(lambda batch: retention.remove(batch, ids))
        self._hub.floor = max(self._hub.floor, floor)

    async def _too_much(self) -> list[OldCall]:
        """The next few calls that must go; an Idempotency-Key keeps its call for a day at least."""
        now = self._clock.now()
        keys_before = now - DAY * 1_000_000
        if self._limits.days is not None:
            cutoff = now - int(self._limits.days * DAY * 1_000_000)
            if old := await self._oldest(cutoff, keys_before):
                return old
        if self._limits.bytes is not None and await retention.used_bytes(self._engine) > self._limits.bytes:
            return await self._oldest(now, keys_before)
        return []

    async def _oldest(self, ended_before: int, keys_before: int) -> list[OldCall]:
        found = await retention.oldest(self._engine, ended_before=ended_before, keys_before=keys_before, limit=BATCH)
        size = 0
        for number, old in enumerate(found):
            size += old.output
            if size > BATCH_BYTES and number:
                return found[:number]
        return found
