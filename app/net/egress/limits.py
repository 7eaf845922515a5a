"""Limits of what passes the egress proxy, and the meter that watches over them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """What one connection may take, and how many there may be at once for one leave; more of them wait."""

    connections: int = 64
    head_seconds: float = 10.0
    idle_seconds: float = 600.0
    total_seconds: float = 3600.0
    bytes: int = 1024 * 1024 * 1024


class OverLimit(Exception):
    """More went through a connection than may."""


class ByteMeter:
    """Counts the bytes of a connection in both directions. When none pass for long, or it lasts too long, it ends."""

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits
        self._clock: asyncio.Timeout | None = None
        self._end = 0.0
        self.bytes = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises `TimeoutError`."""
        now = asyncio.get_running_loop().time()
        self._end = now + self._limits.total_seconds
        async with asyncio.timeout_at(min(self._end, now + self._limits.idle_seconds)) as self._clock:
            yield

    def add(self, count: int) -> None:
        """So many bytes pass now. Raises `OverLimit`."""
        self.bytes += count
        if self.bytes > self._limits.bytes:
            raise OverLimit
        if self._clock is not None and not self._clock.expired():
            now = asyncio.get_running_loop().time()
            self._clock.reschedule(min(self._end, now + self._limits.idle_seconds))
