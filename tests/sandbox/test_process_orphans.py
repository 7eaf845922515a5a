"""Nobody outlives the tree he was started in, however he hides and whoever is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.core.sandbox import ExitStatus
from app.sandbox.process.spawner import Spawner
from tests.sandbox.spawned import (
    WAYS,
    bash,
    keeper_of,
    order,
    resident_of,
    said_until,
    sleeper,
    spawner_of,
    started,
    tagged,
    zombies_below,
)
from tests.support.scale import rounds
from tests.support.services import HANG, until

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parents[2]


@pytest.fixture
async def crib() -> AsyncIterator[Spawner]:
    spawner = Spawner()
    yield spawner
    spawner.close()


@pytest.fixture
def tag() -> Iterator[str]:
    """A word in the command line of what a test starts; at its end nothing of that name may be alive."""
    tag = f"tag{uuid.uuid4().hex}"
    yield tag
    left = tagged(tag)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def hiding(tag: str, way: str = "") -> str:
    """A script that leaves people behind, one in each way or in this one."""
    return "\n".join(one.format(it=sleeper(tag)) for one in ([way] if way else WAYS.values()))


async def all_there(tag: str, count: int = len(WAYS)) -> None:
    await until(lambda: len(tagged(tag)) == count)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
async def test_who_is_left_behind_goes_with_the_first_process(crib: Spawner, tag: str, way: str) -> None:
    async with started(crib, bash(f"{hiding(tag, way)}\nexit 4")) as child:
        assert await child.wait() == ExitStatus(4)

        assert tagged(tag) == []


async def test_who_is_left_behind_has_a_moment_and_no_more(crib: Spawner, tag: str) -> None:
    async with started(crib, bash(f"{hiding(tag)}\n(sleep 0.2; echo late) &", grace=HANG)) as child:
        assert b"late" in await said_until(child, b"late\n")
        assert child.ended is None

        assert await child.end(0) == ExitStatus(0)
        assert tagged(tag) == []


async def test_the_end_takes_everybody(crib: Spawner, tag: str) -> None:
    async with started(crib, bash(f"{hiding(tag)}\n{sleeper(tag)}")) as child:
        await all_there(tag, len(WAYS) + 1)
        await child.end(0)

        assert tagged(tag) == []
        assert zombies_below(resident_of(crib)) == []


async def test_a_cancel_takes_everybody(crib: Spawner, tag: str) -> None:
    async def run() -> None:
        async with started(crib, bash(f"{hiding(tag)}\n{sleeper(tag)}")) as child:
            await child.wait()

    running = asyncio.create_task(run())
    await all_there(tag, len(WAYS) + 1)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running

    assert tagged(tag) == []


async def test_a_keeper_that_is_killed_takes_everybody_along(crib: Spawner, tag: str) -> None:
    async with started(crib, bash(f"{hiding(tag)}\n{sleeper(tag)}")) as child:
        await all_there(tag, len(WAYS) + 1)
        os.kill(keeper_of(child), signal.SIGKILL)

        assert await child.wait() == ExitStatus(128 + signal.SIGKILL)
        await until(lambda: tagged(tag) == [])
        await until(lambda: zombies_below(resident_of(crib)) == [])


async def test_a_spawner_that_is_killed_leaves_the_keepers_at_work(crib: Spawner, tag: str) -> None:
    async with started(crib, bash(f"{hiding(tag)}\n{sleeper(tag)}")) as child:
        await all_there(tag, len(WAYS) + 1)
        os.kill(spawner_of(child), signal.SIGKILL)
        await child.end(0)

        assert tagged(tag) == []


async def test_spawner_and_keeper_killed_together_leave_nobody_who_can_be_told(crib: Spawner, tag: str) -> None:
    told = [way for name, way in WAYS.items() if "environment" not in name]
    script = "\n".join(way.format(it=sleeper(tag)) for way in told)
    async with started(crib, bash(f"{script}\n{sleeper(tag)}")) as child:
        await all_there(tag, len(told) + 1)
        victims = spawner_of(child), keeper_of(child)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

        assert await child.wait() == ExitStatus(128 + signal.SIGKILL)
        assert tagged(tag) == []


async def test_a_closed_spawner_leaves_nobody(tag: str) -> None:
    crib = Spawner()
    spawned = await crib.start(bash(f"{hiding(tag)}\n{sleeper(tag)}"))
    await all_there(tag, len(WAYS) + 1)
    spawned.ends.close()
    spawned.link.end()
    crib.close()
    await spawned.link.ended

    assert tagged(tag) == []


def serve(owner: str, script: str) -> tuple["subprocess.Popen[str]", list[int]]:
    """A service of its own that runs this script; itself, and its spawner, keeper and first process."""
    command = [sys.executable, "-m", "tests.sandbox.spawning_service", owner, script]
    service = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    with service.stdout:
        return service, [int(word) for word in service.stdout.readline().split()]


async def test_a_service_that_is_killed_leaves_nobody(tag: str) -> None:
    service, (resident, *_) = await asyncio.to_thread(serve, tag, f"{hiding(tag)}\nsleep 600")
    await until(lambda: len([pid for pid in tagged(tag) if pid != service.pid]) >= len(WAYS))

    service.kill()
    service.wait()

    await until(lambda: tagged(tag) == [])
    await until(lambda: not Path(f"/proc/{resident}").exists())


async def test_what_was_killed_all_at_once_is_swept_up_by_the_next(tag: str) -> None:
    told = [way for name, way in WAYS.items() if "environment" not in name]
    script = "\n".join(way.format(it=sleeper(tag)) for way in told)
    service, (resident, keeper, first) = await asyncio.to_thread(serve, tag, f"{script}\nsleep 600")
    await until(lambda: len([pid for pid in tagged(tag) if pid != service.pid]) >= len(told))
    for pid in (service.pid, resident, keeper, first):
        os.kill(pid, signal.SIGKILL)
    service.wait()
    assert tagged(tag) != []

    Spawner("of somebody else").sweep()
    assert tagged(tag) != []
    Spawner(tag).sweep()
    assert tagged(tag) == []


async def test_a_sweep_leaves_alone_what_it_belongs_to(crib: Spawner, tag: str) -> None:
    async with started(crib, order("cat"), has_stdin=True) as child:
        resident = resident_of(crib)
        await asyncio.to_thread(crib.sweep)

        assert resident_of(crib) == resident
        await child.write(b"still here")
        await said_until(child, b"still here")


async def storm(crib: Spawner, tag: str, rounds: int) -> None:
    """Calls of all kinds, ended in all ways, at once."""
    ways = list(WAYS.values())

    async def one(number: int) -> None:
        script = hiding(tag, ways[number % len(ways)])
        async with started(crib, bash(f"{script}\n{sleeper(tag) if number % 4 else 'true'}")) as child:
            if number % 4 == 0:
                await child.wait()
            elif number % 4 == 1:
                await child.end(0.05)
            elif number % 4 == 2:
                os.kill(keeper_of(child), signal.SIGKILL)
                await child.wait()

    for start in range(0, rounds, 8):
        async with asyncio.TaskGroup() as group:
            for number in range(start, min(rounds, start + 8)):
                group.create_task(one(number))
    await until(lambda: tagged(tag) == [])
    await until(lambda: zombies_below(resident_of(crib)) == [])


@pytest.mark.sampled
async def test_nobody_is_left_after_a_storm(crib: Spawner, tag: str) -> None:
    await storm(crib, tag, rounds(16, 200))


async def test_one_that_forks_without_end_is_caught(crib: Spawner, tag: str) -> None:
    """Each forks the next and ends, so that nobody is there for longer than a moment."""
    script = f"import os\nwhile True:\n  if os.fork(): os._exit(0)\n  {tag!r}"
    chain = f'{sys.executable} -I -S -c "{script}" {tag}'
    async with started(crib, bash(f"(setsid {chain} &); sleep 0.3; exit 3")) as child, asyncio.timeout(2 * HANG):
        assert await child.wait() == ExitStatus(3)

    assert tagged(tag) == []


WITHOUT = """
import errno, os, subprocess, sys
from app.sandbox import syscalls
from app.sandbox.process import process_tree
from app.sandbox.process.supervisor import reap
def refuse(pid):
    raise OSError(errno.ENOSYS, "there are none")
os.pidfd_open = refuse
process_tree._has_children_files = lambda: False
syscalls.prctl(syscalls.SET_CHILD_SUBREAPER, 1)
subprocess.Popen(["bash", "-c", sys.argv[1] + "; echo ready; wait"], stdout=subprocess.PIPE).stdout.readline()
print(len(process_tree.descendants_of_self()) > 1, process_tree.kill_all(reap), process_tree.descendants_of_self())
"""


def test_a_tree_is_killed_also_without_process_descriptors_and_lists_of_children(tag: str) -> None:
    command = [sys.executable, "-c", WITHOUT, hiding(tag)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG * 4)

    assert said.stdout == "True True []\n"
    assert tagged(tag) == []
