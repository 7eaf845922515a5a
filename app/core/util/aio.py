"""Waiting for work that must not be interrupted halfway, even when the waiting task is canceled."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def finish_despite_cancel(work: Awaitable[T]) -> T:
    """Wait until `work` is done; a cancel of the waiting task is raised after that, not before."""
    future = asyncio.ensure_future(work)
    canceled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            canceled = error
    if canceled is None:
        return future.result()
    if not future.cancelled():
        future.exception()  # marks it as retrieved: the cancel is raised instead
    raise canceled


async def in_thread_uncancelable(work: Callable[..., T], *args: Any) -> T:
    """Run blocking work in a thread and wait for its end, even when the waiting task is canceled."""
    return await finish_despite_cancel(asyncio.to_thread(work, *args))
