"""A server gets only so many calls at once; the others wait in line, and the line is bounded."""

import asyncio

import pytest

from app.core.errors import Overloaded
from app.mcp.client.upstream import CallSlots
from tests.support.services import HANG


class Queue:
    """Callers of a server with two places and room for two more, in the order they got in."""

    def __init__(self) -> None:
        self.turns = CallSlots("slow", 2, 2)
        self.order: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}

    async def call(self, name: str) -> None:
        leave = self.leave[name] = asyncio.Event()
        async with self.turns:
            self.order.append(name)
            await leave.wait()


async def spun() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_callers_get_in_in_the_order_they_came() -> None:
    queue = Queue()
    async with asyncio.timeout(HANG), asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(queue.call(name))
        await spun()
        assert queue.order == ["a", "b"]

        queue.leave["b"].set()
        await spun()
        assert queue.order == ["a", "b", "c"]
        for name in "acd":
            queue.leave[name].set()

    assert queue.order == ["a", "b", "c", "d"]


async def test_one_too_many_is_told_so_at_once() -> None:
    queue = Queue()
    async with asyncio.timeout(HANG), asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(queue.call(name))
        await spun()

        with pytest.raises(Overloaded, match="slow is busy and 2 calls wait"):
            await queue.call("e")
        for leave in queue.leave.values():
            leave.set()

    assert queue.order == ["a", "b", "c", "d"]


async def test_who_gives_up_waiting_leaves_no_trace() -> None:
    queue = Queue()
    async with asyncio.timeout(HANG), asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(queue.call(name)) for name in "abcd"}
        await spun()

        tasks["c"].cancel()
        await spun()
        assert queue.turns.waiting == 1
        for leave in queue.leave.values():
            leave.set()

    assert queue.order == ["a", "b", "d"]


async def test_a_turn_that_comes_too_late_goes_to_the_next() -> None:
    queue = Queue()
    async with asyncio.timeout(HANG), asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(queue.call(name)) for name in "abcd"}
        await spun()

        queue.leave["a"].set()
        while not tasks["a"].done():  # noqa: ASYNC110 - until the place was passed on, and not a step longer
            await asyncio.sleep(0)
        tasks["c"].cancel()
        for leave in queue.leave.values():
            leave.set()

    assert tasks["c"].cancelled()
    assert queue.order == ["a", "b", "d"]
    async with asyncio.timeout(HANG), queue.turns, queue.turns:
        assert queue.turns.waiting == 0


async def test_who_gives_up_while_a_turn_is_passed_on_does_not_take_it_along() -> None:
    queue = Queue()
    async with asyncio.timeout(HANG), asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(queue.call(name)) for name in "abcd"}
        await spun()

        queue.leave["a"].set()
        tasks["c"].cancel()
        for leave in queue.leave.values():
            leave.set()

    assert queue.order == ["a", "b", "d"]
    async with asyncio.timeout(HANG), queue.turns, queue.turns:
        assert queue.turns.waiting == 0


async def test_with_no_line_at_all_nobody_waits() -> None:
    turns = CallSlots("busy", 1, 0)

    async with turns:
        with pytest.raises(Overloaded):
            await turns.__aenter__()
    async with turns:
        pass
