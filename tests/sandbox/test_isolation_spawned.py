"""Enclosures as the service's own spawner builds them."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from app.core.sandbox import Backend, Isolation, Network
from app.core.sessions import Profile
from app.sandbox.process.local_process import LocalProcess
from app.sandbox.process.spawner import NotStarted, Spawner, SpawnRequest
from tests.sandbox.isolation_cases import SECONDS, TIERS, WHO, House, opened

WALLS = Isolation(Backend.NONE, Profile.WORKSPACE_WRITE, Network.NONE)
CATCHES = "trap 'echo caught; exit 3' TERM INT; echo up; while :; do sleep 0.05; done"

every_way = pytest.mark.parametrize("tier", TIERS)


@pytest.fixture
def house() -> Iterator[House]:
    with opened(WHO[0]) as house:
        yield house


@pytest.fixture
async def spawner() -> AsyncIterator[Spawner]:
    spawner = Spawner()
    yield spawner
    spawner.close()


async def start(spawner: Spawner, order: SpawnRequest) -> LocalProcess:
    return LocalProcess(await spawner.start(order), WALLS)


async def all_of(child: LocalProcess) -> str:
    said = ""
    async with asyncio.timeout(SECONDS):
        while (piece := await child.read()) is not None:
            said += piece.data.decode()
    return said


async def until_up(child: LocalProcess) -> None:
    async with asyncio.timeout(SECONDS):
        piece = await child.read()
    assert piece is not None
    assert piece.data == b"up\n"


@every_way
async def test_a_kind_end_is_heard_by_the_program(spawner: Spawner, house: House, tier: str) -> None:
    child = await start(spawner, house.order(tier, "bash", "-c", CATCHES))
    await until_up(child)

    ended = await child.end(SECONDS)

    assert ended.code == 3
    assert "caught" in await all_of(child)
    await child.close()


@every_way
async def test_a_signal_is_for_the_program(spawner: Spawner, house: House, tier: str) -> None:
    child = await start(spawner, house.order(tier, "bash", "-c", CATCHES))
    await until_up(child)

    child.signal(signal.SIGINT)

    async with asyncio.timeout(SECONDS):
        assert (await child.wait()).code == 3
    await child.close()


@every_way
async def test_who_hears_no_kind_word_is_ended_all_the_same(spawner: Spawner, house: House, tier: str) -> None:
    deaf = "trap '' TERM INT HUP; echo up; while :; do sleep 0.05; done"
    child = await start(spawner, house.order(tier, "bash", "-c", deaf))
    await until_up(child)

    ended = await child.end(0.2)

    assert ended.code == 128 + signal.SIGKILL
    await child.close()


@every_way
@pytest.mark.parametrize(("program", "folder", "stage"), [("nope", "", "program"), ("true", "/gone", "cwd")])
async def test_what_failed_is_told_with_its_stage(
    spawner: Spawner, house: House, tier: str, program: str, folder: str, stage: str
) -> None:
    order = house.order(tier, program)

    with pytest.raises(NotStarted) as refused:
        await start(spawner, replace(order, cwd=order.cwd + folder))

    assert (refused.value.stage, refused.value.errno) == (stage, 2)
