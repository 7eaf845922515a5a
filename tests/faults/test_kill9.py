"""kill -9 at any moment: nothing that was acknowledged is lost, nothing runs twice, the log has no hole."""

import asyncio
import json
import os
import secrets
import sqlite3
from collections import Counter
from contextlib import closing
from random import Random

import pytest

from tests.faults.data_checks import FINAL, Acknowledged, broken_promises, left_running
from tests.faults.load import Load
from tests.faults.raw_sockets import wired
from tests.faults.service_processes import HANG, Service
from tests.support.scale import rounds

KILLS = rounds(15, 50)
FEW = 5
CLIENTS = 16


@pytest.mark.parametrize("kills", [FEW, pytest.param(KILLS, marks=pytest.mark.faults)])
async def test_nothing_acknowledged_is_lost_and_nothing_runs_twice_over_many_kills(
    service: Service, kills: int
) -> None:
    seed = int(os.environ.get("FAULT_SEED", secrets.randbits(32)))
    where = f"FAULT_SEED={seed}"
    random = Random(seed)
    load = Load(random)

    for number in range(kills):
        where = f"FAULT_SEED={seed}, kill {number + 1}"
        await load_until_killed(service, load, random.randint(2, 60))
        service.start()
        assert left_running(service.database) == [], where
        await service.settle()
        await load.repeat(service.port)
        await service.settle()
        assert broken_promises(service.database, service.effects, load.told) == [], where

    await read_all_back(service, load.told)
    assert service.terminate() == 0, where
    assert broken_promises(service.database, service.effects, load.told) == [], where
    assert kills == FEW or was_hard(service, load, kills), where


async def test_a_service_killed_while_it_recovers_recovers_at_the_next_start(service: Service) -> None:
    load = Load(Random(1))

    for delay in (0.005, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05, 0.06, 0.08, 0.1):
        await load_until_killed(service, load, 20)
        service.attempt(delay)
        service.start()

    await service.settle()
    assert broken_promises(service.database, service.effects, load.told) == []


async def load_until_killed(service: Service, load: Load, answers: int) -> None:
    """Let clients ask until so many more answers have come, on a fast machine as on a slow one."""
    enough = load.answers + answers
    loading = asyncio.create_task(load.run(service.port, CLIENTS))
    async with asyncio.timeout(HANG):
        while load.answers < enough and not loading.done():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    service.kill()
    async with asyncio.timeout(HANG):
        await loading


async def read_all_back(service: Service, told: Acknowledged) -> None:
    """Over HTTP as a client would; an end that was told is told again word for word."""
    async with wired(service.port) as wire:
        for id, call in told.calls.items():
            now = (await wire.get(f"/v1/calls/{id}")).body
            assert now["status"] in FINAL
            assert now == call or call["status"] not in FINAL


def was_hard(service: Service, load: Load, kills: int) -> bool:
    """The test is worth something only if kills met calls in every state."""
    with closing(sqlite3.connect(service.database)) as db:
        rows = db.execute("SELECT status, attempt, error FROM calls").fetchall()
    codes = Counter(json.loads(error)["code"] for _, _, error in rows if error)
    resumed = sum(attempt > 1 for _, attempt, _ in rows)
    return load.answers > 10 * kills and set(codes) == {"Interrupted"} and codes["Interrupted"] > kills and resumed > 0
