"""Calls of every kind, by the hundred: nothing is left of them in the process but their records."""

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from tests.faults.raw_sockets import Answer, Body, Stream, Wire, wired
from tests.faults.resource_usage import Memory, holds, inside, wait_inside
from tests.faults.service_processes import HANG, Started, runner
from tests.support.mcp_wire import called
from tests.support.scale import rounds

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("memory")]  # they measure what a service holds

ROUNDS = rounds(4, 6)
WARM = 2
MB_EACH = 2.0  # on average: an allocator grows in steps, a leak all the time
OBJECTS_EACH = 250  # less than one for each call
STREAM = {"Accept": "text/event-stream"}
EXPECTED = {
    None: 300,
    "UnknownTool": 30,
    "InvalidArgs": 30,
    "Canceled": 90,
    "Timeout": 50,
}

numbers = count()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Started]:
    started = Started(runner(tmp_path / "data"), TOOLCRIB_LOG_LEVEL="warning", FAULT_SMALL_CACHES="1")
    yield started
    started.close()


async def test_five_hundred_calls_of_all_kinds_leave_the_service_as_it_was(service: Started, tmp_path: Path) -> None:
    figures, objects, sizes = list[Body](), list[int](), list[float]()
    memory = Memory(service.process.pid)
    for number in range(ROUNDS):
        async with asyncio.timeout(HANG), asyncio.TaskGroup() as group:
            for kind, times in KINDS.items():
                group.create_task(repeat(service.port, kind, times))
        await until_ended(tmp_path / "data" / "toolcrib.db", number + 1)
        await holds(service.port, subscribers=0)
        if number >= WARM:
            await wait_inside(service.port, lambda held: held == figures[-1])
        figures.append(await inside(service.port))
        objects.append(await objects_inside(service.port))
        sizes.append(memory.grown())

    print(f"\n{ROUNDS} rounds of 500 calls: {figures[-1]}; objects {objects}; MB grown {sizes}")  # noqa: T201
    assert all(held == figures[WARM - 1] for held in figures[WARM:])
    assert (objects[-1] - objects[WARM - 1]) / (ROUNDS - WARM) <= OBJECTS_EACH
    assert (sizes[-1] - sizes[WARM - 1]) / (ROUNDS - WARM) <= MB_EACH


async def repeat(port: int, kind: Callable[[Wire], Awaitable[None]], times: int) -> None:
    for _ in range(times):
        async with wired(port) as wire:
            await kind(wire)


async def completes(wire: Wire) -> None:
    for _ in range(10):
        assert state(await wire.call(call("echo"))) == "completed"


async def fails(wire: Wire) -> None:
    assert state(await wire.call(call("nothing"))) == "UnknownTool"
    assert state(await wire.call({"tool": "echo", "arguments": {"no": 1}})) == "InvalidArgs"


async def is_canceled(wire: Wire) -> None:
    made = (await wire.call(endless(), wait=0)).body
    assert state(await wire.ask("POST", f"/v1/calls/{made['id']}/cancel", None, {})) == "Canceled"


async def times_out(wire: Wire) -> None:
    assert state(await wire.call(endless() | {"timeout": 0.02})) == "Timeout"


async def goes_away(wire: Wire) -> None:
    """The client leaves in the middle of its stream, and its call ends with it."""
    await wire.send("POST", "/v1/calls", endless() | {"cancel_on_disconnect": True}, STREAM)
    await wire.read_head()
    await wire.reader.readuntil(b"event: call.progress")


async def looks_on(wire: Wire) -> None:
    """Somebody who follows everything for a while, as JSON, as a stream from the start, and leaves."""
    assert (await wire.get("/v1/events?limit=5", Accept="application/json")).status == 200
    stream = Stream(wire)
    await stream.open("/v1/events", after=0)
    while not await stream.frames():
        pass


async def is_streamed(wire: Wire) -> None:
    await wire.send("POST", "/v1/calls", call("slow", chunks=3, seconds=0.001), STREAM)
    status, _ = await wire.read_head()
    text = await wire.reader.readuntil(b"0\r\n\r\n")
    assert (status, text.count(b"event: call.completed")) == (200, 1)


async def is_a_batch(wire: Wire) -> None:
    body = {"calls": [call("echo") for _ in range(12)]}
    answer = await wire.ask("POST", "/v1/calls/batch", body, {})
    assert [one["status"] for one in answer.body["data"]] == ["completed"] * 12


async def is_repeated(wire: Wire) -> None:
    asked, key = call("append"), f"key-{next(numbers)}"
    first, second = [await wire.call(asked, key=key) for _ in range(2)]
    assert first.body == second.body


async def comes_by_mcp(wire: Wire) -> None:
    asked = called("echo", {"token": token()})
    answer = await wire.ask("POST", "/mcp", asked["json"], asked["headers"])
    assert (answer.status, answer.body["result"]["isError"]) == (200, False), answer.content


KINDS = {
    completes: 10,
    fails: 30,
    is_canceled: 50,
    times_out: 50,
    goes_away: 40,
    is_streamed: 60,
    is_a_batch: 5,
    is_repeated: 20,
    comes_by_mcp: 60,
    looks_on: 20,
}


async def objects_inside(port: int) -> int:
    async with wired(port) as wire:
        answer = await wire.call({"tool": "inside", "arguments": {}})
        return int(answer.body["result"]["metadata"]["objects"])


def token() -> str:
    return f"{next(numbers):08d}"


def call(tool: str, **more: float) -> Body:
    return {"tool": tool, "arguments": {"token": token()} | more}


def endless() -> Body:
    return call("slow", chunks=1_000_000, seconds=0.01)


def state(answer: Answer) -> str:
    body = answer.body
    assert answer.status == 200, body
    return str(body["error"]["code"] if body["error"] else body["status"])


async def until_ended(database: Path, rounds: int) -> None:
    """Those whose client went away end a moment later."""
    async with asyncio.timeout(HANG):
        while sum((found := ends(database)).values()) < 500 * rounds:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert found == {code: count * rounds for code, count in EXPECTED.items()}


def ends(database: Path) -> dict[str | None, int]:
    """How the calls of the tests have ended, by error code."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT error FROM calls WHERE tool != 'inside' AND ended_at IS NOT NULL").fetchall()
    return dict(Counter(json.loads(error)["code"] if error else None for (error,) in rows))
