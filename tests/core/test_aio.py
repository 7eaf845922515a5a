"""Work that must be finished is waited for even when the waiting task is canceled."""

import asyncio
import threading

import pytest

from app.core.util.aio import finish_despite_cancel, in_thread_uncancelable


async def test_a_cancel_is_raised_after_the_work_is_done() -> None:
    started, may_end, done = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        started.set()
        await may_end.wait()
        done.append(True)

    waiting = asyncio.create_task(finish_despite_cancel(work()))
    await started.wait()
    for _ in range(2):
        waiting.cancel()
        await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done == [True]


async def test_without_a_cancel_the_result_or_the_error_of_the_work_comes_back() -> None:
    async def fail() -> None:
        raise ValueError("no")

    assert await finish_despite_cancel(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ValueError, match="no"):
        await finish_despite_cancel(fail())


async def test_a_thread_is_waited_for_despite_a_cancel() -> None:
    started, may_end, done = threading.Event(), threading.Event(), []

    def work(value: int) -> None:
        started.set()
        may_end.wait(30)
        done.append(value)

    waiting = asyncio.create_task(in_thread_uncancelable(work, 1))
    await asyncio.to_thread(started.wait, 30)
    waiting.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done == [1]
