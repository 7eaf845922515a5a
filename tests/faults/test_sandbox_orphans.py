"""Whatever a command starts, and however its call ends: nothing of it is alive afterwards."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from uuid import uuid4

import httpx
import pytest

from app.sandbox.process.spawner import MAX_IDLE
from tests.faults.resource_usage import settled
from tests.faults.sandboxed_service import BACKENDS, WalledService, alive, kill_all_around, run, walled
from tests.support.scale import rounds

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("sandbox")]  # they share the limit of one user id

ROUNDS = rounds(4, 10)
EACH = 20
CALLS = rounds(200, 500)
WAYS_OUT = (
    "sleep {tag} & echo started",
    "setsid sleep {tag} & echo started",
    "nohup sleep {tag} >/dev/null 2>&1 & echo started",
    "(setsid sh -c 'setsid sleep {tag} & sleep {tag}' &); echo started",
    "(setsid sleep {tag} &); (nohup setsid sleep {tag} >/dev/null 2>&1 &); echo started; exit 3",
    "trap '' TERM HUP INT; sleep {tag} & disown; echo started",
)
"""Commands that end and leave something behind."""
STAYING = "trap '' TERM; setsid sleep {tag} & sleep {tag} & (nohup sleep {tag} &) ; wait"


@pytest.fixture(params=BACKENDS)
def service(request: pytest.FixtureRequest) -> Iterator[WalledService]:
    with walled(request.param) as started:
        yield started


async def until_gone(tag: str) -> list[str]:
    """What is still alive when it had its time."""
    for _ in range(200):
        if not alive(tag):
            return []
        await asyncio.sleep(0.05)
    return alive(tag)


async def leave(client: httpx.AsyncClient, tag: str, number: int) -> None:
    command = numbered(WAYS_OUT[number % len(WAYS_OUT)], tag, number)
    await run(client, command, timeout=30, session=place(number))


async def time_out(client: httpx.AsyncClient, tag: str, number: int) -> None:
    limited = {"timeout_ms": 300}
    command = numbered(STAYING, tag, number)
    ended = await run(client, command, arguments=limited, timeout=30, session=place(number))
    assert ended["error"]["code"] == "Timeout"


async def be_canceled(client: httpx.AsyncClient, tag: str, number: int) -> None:
    arguments = {"command": numbered(STAYING, tag, number)}
    body = {"tool": "shell_command", "arguments": arguments, "session": place(number)}
    call = (await client.post("/v1/calls", params={"wait": 0}, json=body)).json()
    await asyncio.sleep(0.1)
    ended = (await client.post(f"/v1/calls/{call['id']}/cancel")).json()
    assert ended["error"]["code"] == "Canceled"


def numbered(command: str, tag: str, number: int) -> str:
    """No two alike: who does the same again and again is held."""
    return f"{command.format(tag=tag)} # {number}"


def place(number: int) -> str:
    """A session with a workspace of its own: writers of one workspace would wait for each other."""
    return f"place-{number % EACH}"


KINDS: tuple[Callable[[httpx.AsyncClient, str, int], Awaitable[None]], ...] = (leave, leave, time_out, be_canceled)


async def test_calls_of_all_kinds_leave_nothing_behind(service: WalledService) -> None:
    tag = f"31337.{uuid4().int % 10**9}"
    async with service.client() as client:
        for number in range(EACH):
            assert (await client.post("/v1/sessions", json={"id": place(number)})).status_code == 201
        for round in range(ROUNDS):
            numbers = range(round * EACH, (round + 1) * EACH)
            await asyncio.gather(*(KINDS[number % len(KINDS)](client, tag, number) for number in numbers))

        assert await until_gone(tag) == []


async def test_nothing_outlives_a_service_that_is_killed(service: WalledService) -> None:
    tag = f"31338.{uuid4().int % 10**9}"
    async with service.client() as client:
        for number, way in enumerate((STAYING, "setsid sleep {tag} & exec sleep {tag}")):
            body = {"tool": "shell_command", "arguments": {"command": way.format(tag=tag)}, "call_id": str(number)}
            await client.post("/v1/calls", params={"wait": 0}, json=body)
            opened = {"cmd": f"setsid sleep {tag} & sleep {tag}", "tty": bool(number), "yield_time_ms": 250}
            await client.post("/v1/calls", json={"tool": "exec_command", "arguments": opened})
        for _ in range(100):
            if len(alive(tag)) >= 4:
                break
            await asyncio.sleep(0.05)
        assert len(alive(tag)) >= 4

    service.kill()

    assert await until_gone(tag) == []


async def test_nothing_outlives_all_of_the_service_killed_at_once(service: WalledService) -> None:
    """Not even whoever watches over processes is left; the next start sees to it."""
    tag = f"31339.{uuid4().int % 10**9}"
    async with service.client() as client:
        body = {"tool": "shell_command", "arguments": {"command": STAYING.format(tag=tag)}}
        await client.post("/v1/calls", params={"wait": 0}, json=body)
        for _ in range(100):
            if len(alive(tag)) >= 3:
                break
            await asyncio.sleep(0.05)

    kill_all_around(service.pid, tag)
    service.kill()
    service.start()
    async with service.client() as client:
        await run(client, "true")

    assert await until_gone(tag) == []


async def test_hundreds_of_calls_leave_no_descriptors_threads_or_zombies(service: WalledService) -> None:
    async with service.client() as client:
        await calls(client, 60)
        before = await settled(service.pid)
        await calls(client, CALLS)
        after = await settled(service.pid)

    assert after["zombies"] == 0
    assert after["spares"] <= MAX_IDLE
    assert {name: after[name] - before[name] for name in ("descriptors", "threads")} == pytest.approx(
        {"descriptors": 0, "threads": 0}, abs=5
    )


async def calls(client: httpx.AsyncClient, count: int) -> None:
    for start in range(0, count, 10):
        await asyncio.gather(*(run(client, f"echo {number}") for number in range(start, min(start + 10, count))))
