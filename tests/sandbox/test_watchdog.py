"""A tree that takes more than it may is ended, and one that only looks large is not."""

import sys
import time
from collections.abc import AsyncIterator

import pytest

from app.core.sandbox import ExitStatus
from app.sandbox.process import process_tree
from app.sandbox.process.spawner import Spawner
from app.sandbox.process.supervisor import MAX_CHECK_SECONDS as LONGEST
from app.sandbox.process.supervisor import MIN_CHECK_SECONDS as SHORTEST
from app.sandbox.process.supervisor import Watchdog
from tests.sandbox.spawned import bash, order, said_until, started

pytestmark = pytest.mark.timeout(60)
MEGABYTE = 1024 * 1024
LIMIT = 96 * MEGABYTE


@pytest.fixture
async def crib() -> AsyncIterator[Spawner]:
    spawner = Spawner()
    yield spawner
    spawner.close()


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", script)


async def test_one_that_takes_too_much_memory_is_ended(crib: Spawner) -> None:
    greedy = "x = bytearray(200 * 1024**2); x[::4096] = bytes(len(x[::4096])); import time; time.sleep(60)"
    async with started(crib, order(*python(greedy), memory=LIMIT)) as child:
        assert await child.wait() == ExitStatus(137, "memory")


async def test_eight_that_take_too_much_together_are_ended(crib: Spawner) -> None:
    script = (
        "import os, time\nfor _ in range(7):\n  if os.fork() == 0:\n    os.setsid()\n    break\n"
        "x = bytearray(20 * 1024**2); x[::4096] = bytes(len(x[::4096])); time.sleep(60)"
    )
    async with started(crib, order(*python(script), memory=LIMIT)) as child:
        assert await child.wait() == ExitStatus(137, "memory")


async def test_memory_that_is_shared_with_the_system_counts_too(crib: Spawner) -> None:
    script = (
        "import mmap, time\nx = mmap.mmap(-1, 200 * 1024**2)\nfor n in range(0, len(x), 4096): x[n] = 1\ntime.sleep(60)"
    )
    async with started(crib, order(*python(script), memory=LIMIT)) as child:
        assert await child.wait() == ExitStatus(137, "memory")


async def test_memory_that_many_share_since_a_fork_counts_once(crib: Spawner) -> None:
    script = (
        "import os, time\nx = bytearray(40 * 1024**2); x[::4096] = bytes(len(x[::4096]))\n"
        "kids = [os.fork() or (time.sleep(1.5), os._exit(0)) for _ in range(6)]\n"
        "for pid in kids: os.waitpid(pid, 0)"
    )
    async with started(crib, order(*python(script), memory=LIMIT)) as child:
        assert await child.wait() == ExitStatus(0)


async def test_too_many_processes_are_ended(crib: Spawner) -> None:
    script = "for i in $(seq 30); do (setsid sleep 60 &); done; sleep 60"
    async with started(crib, bash(script, processes=20)) as child:
        assert await child.wait() == ExitStatus(137, "processes")


async def test_threads_count_as_well(crib: Spawner) -> None:
    script = "import _thread, time\nfor _ in range(30): _thread.start_new_thread(time.sleep, (60,))\ntime.sleep(60)"
    async with started(crib, order(*python(script), processes=20)) as child:
        assert await child.wait() == ExitStatus(137, "processes")


async def test_who_keeps_to_the_limits_is_left_alone(crib: Spawner) -> None:
    script = "for i in $(seq 10); do sleep 0.6 & done; wait; echo done"
    async with started(crib, bash(script, processes=20, memory=LIMIT)) as child:
        await said_until(child, b"done\n")
        assert await child.wait() == ExitStatus(0)


def test_it_looks_less_often_where_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used = 0.0, [(3, 1000), (3, 1000), (3, 1000), (3, 1000), (4, 1000), (4, 1500), (4, 1501)]
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(process_tree, "usage", lambda pids: used.pop(0))
    watchdog = Watchdog(2000, None)

    pauses = []
    while used:
        now = watchdog.due
        assert watchdog.is_due
        assert watchdog.check([1]) is None
        pauses.append(watchdog.due - now)

    assert pauses == [
        SHORTEST,
        2 * SHORTEST,
        LONGEST,
        LONGEST,
        SHORTEST,
        SHORTEST,
        2 * SHORTEST,
    ]
    assert Watchdog(None, None).due == float("inf")
