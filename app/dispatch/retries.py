"""Retries of changes that must be stored, until the store takes them or the service has ended."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.core.errors import StoreUnavailable
from app.store.writer import Batch, Writer

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0


async def submit_until_stored(
    writer: Writer, change: Callable[[Batch], T], pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> T:
    """Submit a refused change again until it is stored. The caller can be interrupted in `pause`."""
    seconds = FIRST_PAUSE_SECONDS
    while True:
        await pause(seconds)
        try:
            return await writer.submit(change)
        except StoreUnavailable:
            if writer.is_closed:
                raise
        seconds = min(2 * seconds, MAX_PAUSE_SECONDS)
