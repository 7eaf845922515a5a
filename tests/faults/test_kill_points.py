"""kill -9 at every named point: the first, the second and the last time it is reached.

TOOLCRIB_TEST_FULL=1 kills it the n-th time for n = 1, 2, 3 … until a whole run has no n-th time. Each run plays the
same scene on a copy of the same data directory, which a killed service left behind. After the kill a service is started
again, and all that was promised must be true.
"""

import asyncio
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.data_checks import Acknowledged, broken_promises, last_seq, left_running
from tests.faults.kill_points import POINTS, RECORD
from tests.faults.raw_sockets import GONE, streamed, wired
from tests.faults.recording_client import Actor, actor, hear_until, say_yes
from tests.faults.service_processes import Service, Zygote
from tests.support.scale import FULL

pytestmark = pytest.mark.faults

LONG = 600.0
MOST = 60
KILLED = -signal.SIGKILL


@dataclass(slots=True)
class Left:
    """What a killed service left behind, and what it had told."""

    data_dir: Path
    told: Acknowledged

    def copy(self, zygote: Zygote, data_dir: Path) -> tuple[Service, Acknowledged]:
        shutil.copytree(self.data_dir, data_dir)
        return Service(zygote, data_dir), deepcopy(self.told)


@pytest.fixture(scope="module")
def lanes(zygote: Zygote) -> Iterator[list[Zygote]]:
    """Two, so that one run computes while the other one waits for the disk."""
    second = Zygote()
    yield [zygote, second]
    second.close()


@pytest.fixture(scope="module")
def left(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Calls in every state in which a kill can leave them."""
    service = Service(zygote, tmp_path_factory.mktemp("left") / "data").start()
    told = Acknowledged()
    asyncio.run(leave_behind(service, told))
    return Left(service.data_dir, told)


@pytest.fixture(scope="module")
def reached(left: Left, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How often a run without a kill reaches each point."""
    folder = tmp_path_factory.mktemp("reached")
    service, told = left.copy(zygote, folder / "data")
    assert asyncio.run(play(service, told, f"{RECORD}:{folder / 'points'}")) == 0, service.log()
    return Counter((folder / "points").read_text().split())


@pytest.mark.parametrize("point", POINTS)
async def test_all_promises_hold_wherever_it_is_killed(
    point: str, left: Left, reached: Counter[str], lanes: list[Zygote], tmp_path: Path
) -> None:
    numbers = range(1, MOST) if FULL else sorted({1, min(2, reached[point]), reached[point]})
    loop = Loop(point, left, tmp_path, iter(numbers))

    async with asyncio.TaskGroup() as group:
        for zygote in lanes:
            group.create_task(loop.run(zygote))

    assert loop.hits > 0, f"{point} was never reached"


@dataclass(slots=True)
class Loop:
    """Runs for these n of one point, one in each lane at a time, until one of them has no n-th time."""

    point: str
    left: Left
    folder: Path
    numbers: Iterator[int]
    end: int = MOST
    hits: int = 0

    async def run(self, zygote: Zygote) -> None:
        for number in self.numbers:
            if number > self.end:
                break
            service, told = self.left.copy(zygote, self.folder / f"run{number}")
            code = await play(service, told, f"{self.point}:{number}")
            assert code in (0, KILLED), service.log()
            await check(service, told)
            if code == 0:
                self.end = min(self.end, number)
            self.hits += code == KILLED
        assert self.end < MOST or not FULL, f"after {MOST} kills {self.point} was still reached"


async def leave_behind(service: Service, told: Acknowledged) -> None:
    """A call that streams, one that has the gate, two behind it, one of another call's, one that asks: then a kill."""
    async with actor(service.port, told) as act:
        await act.call("echo", "first")
        await act.until(lambda: act.heard("call.completed"))
        await act.call("slow", "left-streaming", wait=0, chunks=500)
        await act.call("turn", "left-holder", wait=0, seconds=LONG)
        await act.call("turn", "left-waiting", wait=0)
        await act.call("turn", "left-keyed", wait=0, key="left")
        await act.call("relay", "left-parent", wait=0)
        await act.call("careful", "left-asking", wait=0)
        await act.until(lambda: act.heard("call.waiting") == 4 and act.told.output)
        service.kill()


async def play(service: Service, told: Acknowledged, fault: str) -> int:
    """The scene, from recovery to an orderly end, as far as it comes; the exit code."""
    if not await asyncio.to_thread(service.start_armed, fault):
        return service.ended()
    try:
        async with actor(service.port, told) as act:
            await call_each(act)
            await wait_in_turn(act)
            await ask_people(act)
            last = await stop_some(act)
            code = await asyncio.to_thread(service.terminate)
            await last
            return code
    except TimeoutError:  # it hangs, which is not what was asked for
        service.kill()
        raise
    except GONE:
        return service.ended()


async def call_each(act: Actor) -> None:
    await act.call("append", "keyed", key="one")
    await act.call("append", "keyed", key="one", wait=0)
    await act.call("slow", "slow", chunks=3)
    await act.plan("plan")
    await act.call("relay", "relay")


async def wait_in_turn(act: Actor) -> None:
    await act.call("turn", "holder", wait=0, seconds=0.03)
    await act.call("turn", "waiting", wait=0)
    await act.batch(("turn", "batch-1"), ("echo", "batch-2"), ("turn", "batch-3"))


async def ask_people(act: Actor) -> None:
    """One that was asked before the kill, and two of which the answer to one settles the other."""
    [left] = await act.open_asks(1)
    await act.answer(left, decision="allow")
    calls = [await act.call("careful", f"asked-{number}", wait=0) for number in (1, 2)]
    first, _ = await act.open_asks(2)
    await act.answer(first, decision="allow_always", rule={"pattern": "asked-*"}, scope="global")
    for call in calls:
        await act.wait_for(call)


async def stop_some(act: Actor) -> "asyncio.Task[None]":
    """Cancel one that streams and one that waits; the orderly end finds one that has the gate, one behind it, and one
    that asks."""
    streaming = await act.call("slow", "canceled", wait=0, chunks=500)
    holder = await act.call("turn", "open-holder", wait=0, seconds=LONG)
    waiting = await act.call("turn", "canceled-waiting", wait=0)
    await act.call("turn", "open-waiting", wait=0)
    await act.call("careful", "open-asking", wait=0)
    await act.until(lambda: streaming["id"] in act.told.output)
    await act.cancel(streaming)
    await act.cancel(waiting)
    return asyncio.create_task(act.wait_for(holder))


async def check(service: Service, told: Acknowledged) -> None:
    """Start again. What was told stands, what was sent with a key is answered the same, and the log says it all."""
    await asyncio.to_thread(service.start)
    assert left_running(service.database) == []
    person = asyncio.create_task(say_yes(service.port))
    await service.settle()
    person.cancel()
    async with wired(service.port) as wire:
        act = Actor(wire, service.port, told)
        await act.call("append", "keyed", key="one")
        await act.call("turn", "left-keyed", key="left")
    await service.settle()
    async with streamed(service.port, "/v1/events", after=0) as stream:
        await hear_until(stream, told, last_seq(service.database))
    service.kill()
    assert broken_promises(service.database, service.effects, told) == []
