"""MCP servers that are killed again and again: nothing of all that is left in the service."""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

from tests.faults.raw_sockets import Body, Wire, wired
from tests.faults.resource_usage import Memory, inside, settled, wait_inside
from tests.faults.sandboxed_service import alive, kill_all_around
from tests.faults.service_processes import HANG, Started, runner
from tests.mcp.service_process import hostile, kill, until_gone, variables
from tests.support.scale import rounds

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("memory")]  # they measure what a service holds

WARM = 10
KILLS = rounds(30, 100)
MB = 15.0
WAYS = ("plain", "shell", "daemon")
PROCESSES = 6
"""One for the plain server, two with a wrapper, three with a daemon beside it."""

numbers = count()


@pytest.fixture
def tag() -> str:
    return f"tag{uuid4().hex}"


@pytest.fixture
def service(tmp_path: Path, tag: str) -> Iterator[Started]:
    servers = {way: hostile("wrappers", way, tag) for way in WAYS}
    started = Started(runner(tmp_path / "data"), TOOLCRIB_LOG_LEVEL="error", **variables(servers))
    yield started
    started.close()


async def test_many_kills_leave_files_tasks_threads_and_processes_as_they_were(service: Started, tag: str) -> None:
    async with asyncio.timeout(HANG * 3), wired(service.port) as wire:
        await all_up(wire)
        for number in range(WARM):
            await kill_once(wire, WAYS[number % len(WAYS)])
        await all_up(wire)
        before, held = await inside(service.port), await settled(service.process.pid)
        memory = Memory(service.process.pid)
        for number in range(KILLS):
            await kill_once(wire, WAYS[number % len(WAYS)])
        await all_up(wire)
        await wait_inside(service.port, lambda now: now == before)
        after = await back_at(held, service.process.pid)

    assert after == held
    assert memory.grown() <= MB
    assert len(alive(tag)) == PROCESSES

    service.end()
    assert until_gone(tag) == []


async def kill_once(wire: Wire, way: str) -> None:
    """kill -9 while it has a call."""
    call = await begin(wire, way)
    kill(await pid_of(wire, call))
    ended = (await wire.get(f"/v1/calls/{call}?wait=30")).body
    assert ended["error"]["code"] == "McpDisconnected", ended


async def begin(wire: Wire, way: str) -> str:
    """A call that the server has; one that is not back yet is asked again."""
    while True:
        arguments = {"number": next(numbers)}  # who does the same again and again is held
        call = (await wire.call({"tool": f"mcp__{way}__waits", "arguments": arguments}, wait=0)).body
        if await is_there(wire, call["id"]):
            return str(call["id"])
        await asyncio.sleep(0.02)


async def is_there(wire: Wire, call: str) -> bool:
    while True:
        if await progress(wire, call):
            return True
        now = (await wire.get(f"/v1/calls/{call}")).body
        if now["status"] == "error":
            assert now["error"]["code"] == "ToolUnavailable", now
            return False
        await asyncio.sleep(0.01)


async def pid_of(wire: Wire, call: str) -> int:
    return int((await progress(wire, call))[0]["data"]["title"])


async def progress(wire: Wire, call: str) -> list[Body]:
    page = (await wire.get(f"/v1/calls/{call}/events", Accept="application/json")).body
    return [event for event in page["data"] if event["type"] == "call.progress"]


async def all_up(wire: Wire) -> None:
    for way in WAYS:
        while not await works(wire, way):  # noqa: ASYNC110 - nobody tells when a server is back
            await asyncio.sleep(0.02)


async def works(wire: Wire, way: str) -> bool:
    arguments = {"number": next(numbers)}
    return bool((await wire.call({"tool": f"mcp__{way}__pid", "arguments": arguments})).body["status"] == "completed")


async def back_at(wanted: Body, pid: int) -> Body:
    """What the service and its processes hold, when they had a moment to give back what they do not need."""
    for _ in range(8):
        if (now := await settled(pid)) == wanted:
            break
    return now


async def test_nothing_outlives_all_of_the_service_killed_at_once(service: Started, tag: str, tmp_path: Path) -> None:
    """Not even whoever watches over processes is left; the next start sees to it."""
    async with wired(service.port) as wire:
        await all_up(wire)
    kill_all_around(service.process.pid, tag)
    service.wait()

    again = Started(runner(tmp_path / "data"), TOOLCRIB_LOG_LEVEL="error", **variables({}))
    try:
        assert until_gone(tag) == []
    finally:
        again.close()
