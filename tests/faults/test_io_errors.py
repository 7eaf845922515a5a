"""I/O errors at every single write and sync of the database: an error where one is due, and never a lie.

Each test lets the n-th operation fail, in strides from 1 until a run has none left to fail (TOOLCRIB_TEST_FULL=1 takes
smaller strides): what was acknowledged is there at the next start, what was refused is not, and nothing ran twice.
"""

import errno
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product

import pytest

from tests.faults.data_checks import Acknowledged, broken_promises
from tests.faults.io_shim import ALL, LASTING, SYNC, WRITE, Shim, has_compiler
from tests.faults.raw_sockets import Answer, Wire, wired
from tests.faults.service_processes import Service, Zygote
from tests.support.scale import rounds

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not has_compiler(), reason="gcc is needed to build the disk that fails"),
]

STRIDE = rounds(29, 11)
MOST = 1000
WAIT = 0.1
UNSURE = "unknown whether this was stored"


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shim]:
    shim = Shim(tmp_path_factory.mktemp("shim"))
    yield shim
    shim.close()


@pytest.fixture(scope="module")
def zygote(shim: Shim) -> Iterator[Zygote]:
    """Forks services whose disk obeys the shim, and that checkpoint so often that it is met there too."""
    zygote = Zygote(FAULT_CHECKPOINT_PAGES="40", **shim.environment)
    yield zygote
    zygote.close()


@dataclass(slots=True)
class Clients:
    """What was asked, and what the service said to it."""

    told: Acknowledged = field(default_factory=Acknowledged)
    refused: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    ended: int = 0

    async def ask(self, wire: Wire, tool: str, token: str, wait: float, **more: float) -> None:
        answer = await wire.call({"tool": tool, "arguments": {"token": token, **more}}, wait, f"key-{token}")
        if answer.status == 503:
            self._note_refusal(token, answer)
            return
        assert answer.status in (200, 202), (answer.status, answer.content)
        self.ended += answer.status == 200
        self.told.note(answer.body, token, f"key-{token}")

    def _note_refusal(self, token: str, answer: Answer) -> None:
        assert answer.body["code"] == "StoreUnavailable", answer.content
        assert answer.headers["retry-after"].isdigit()
        (self.unsure if UNSURE in answer.body["detail"] else self.refused).add(token)

    async def read_all(self, port: int) -> None:
        """Reading goes on whatever the disk does to writers."""
        async with wired(port) as wire:
            assert (await wire.get("/v1/calls?limit=5")).status == 200
            for id in list(self.told.calls)[-2:]:
                assert (await wire.get(f"/v1/calls/{id}")).body["id"] == id

    async def use(self, port: int, run: str) -> None:
        """One of each kind: started at once, streaming, waiting for its turn."""
        async with wired(port) as wire, wired(port) as beside:
            await self.ask(wire, "append", f"{run}-mark", WAIT)
            await self.ask(wire, "slow", f"{run}-slow", WAIT, chunks=3, seconds=0)
            await self.ask(wire, "turn", f"{run}-first", 0, seconds=0.05)
            await self.ask(beside, "turn", f"{run}-second", WAIT)


@pytest.mark.parametrize(
    ("times", "number"),
    [
        pytest.param(1, errno.EIO, id="one EIO"),
        pytest.param(1, errno.ENOSPC, id="one ENOSPC"),
        pytest.param(3, errno.EIO, id="three EIO"),
    ],
)
async def test_a_short_failure_is_told_or_overcome_without_a_restart(
    service: Service, shim: Shim, times: int, number: int
) -> None:
    clients = Clients()

    for n in range(1, MOST, STRIDE):
        shim.arm(ALL, n, times, number)
        await clients.use(service.port, f"n{n}")
        await service.settle()
        shim.release()
        if not shim.failed:
            break
    else:
        pytest.fail(f"after {MOST} operations there were still more")

    assert wrong(service, clients) == []
    assert (times == 1) == (clients.refused == set()), "one failure is overcome, three are not"
    service.kill()
    service.start()
    await service.settle()
    assert wrong(service, clients) == []


@pytest.mark.parametrize(
    ("kinds", "number", "stride"),
    [
        pytest.param(SYNC, errno.EIO, rounds(3, 1), id="nothing can be synced"),
        pytest.param(WRITE, errno.ENOSPC, 2 * STRIDE, id="nothing can be written"),
        pytest.param(ALL, errno.EIO, 2 * STRIDE, id="nothing works"),
    ],
)
async def test_a_lasting_failure_loses_nothing_and_a_crash_brings_back_nothing_that_was_refused(
    service: Service, shim: Shim, kinds: int, number: int, stride: int
) -> None:
    clients = Clients()

    for n, is_killed in product(range(1, MOST, stride), (True, False)):
        shim.arm(kinds, n, LASTING, number)
        await clients.use(service.port, f"n{n}-{is_killed}")
        await clients.read_all(service.port)
        if is_killed:
            service.kill()
            shim.release()
            service.start()
        shim.release()
        await service.settle()
        assert wrong(service, clients) == [], f"n = {n}"
        if not shim.failed:
            break
    else:
        pytest.fail(f"after {MOST} operations there were still more")

    assert clients.refused
    assert clients.unsure == set() or kinds == ALL, "only a disk that neither syncs nor writes leaves a doubt"


async def test_a_failure_while_starting_is_loud_and_the_next_start_goes_on(service: Service, shim: Shim) -> None:
    clients = Clients()
    loud = 0

    for n in range(1, MOST, rounds(8, 3)):
        async with wired(service.port) as wire:
            await clients.ask(wire, "turn", f"n{n}-runs", 0, seconds=60)
            await clients.ask(wire, "turn", f"n{n}-waits", 0)
        service.kill()
        shim.arm(ALL, n, LASTING)
        loud += not has_started(service)
        service.kill()
        shim.release()
        service.start()
        await service.settle()
        assert wrong(service, clients) == [], f"n = {n}"
        if not shim.failed:
            break

    assert loud
    assert "disk I/O error" in service.log()


def has_started(service: Service) -> bool:
    try:
        service.start()
    except RuntimeError:
        return False
    return True


def wrong(service: Service, clients: Clients) -> list[str]:
    """Everything that must not be."""
    with closing(sqlite3.connect(f"file:{service.database}?mode=ro", uri=True)) as db:
        kept = {json.loads(row[0])["token"] for row in db.execute("SELECT arguments FROM calls")}
    return [
        *broken_promises(service.database, service.effects, clients.told),
        *(f"{token} was refused and is there" for token in kept & clients.refused),
        *(f"{token} was refused and has run" for token in clients.refused & set(service.effects)),
    ]
