"""Retries: what must be recorded is handed over again until the store takes it, or the service has ended."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.core.errors import StoreUnavailable
from app.store.writer import Batch, Writer

T = TypeVar("T")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0


async def submit_until_stored(
    writer: Writer, change: Callable[[Batch], T], pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> T:
    """Bring a change that was refused to the store after all. `pause` is where the caller can be interrupted."""
    seconds = FIRST_PAUSE
    while True:
        await pause(seconds)
        try:
            return await writer.submit(change)
        except StoreUnavailable:
            if writer.is_closed:
                raise
        seconds = min(2 * seconds, LONGEST_PAUSE)
