"""Another process holds the database for longer than anybody waits: a bounded wait, a refusal, and nothing lost."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.faults.data_checks import CHUNK, FINAL, Acknowledged, broken_promises
from tests.faults.fault_service import EFFECTS
from tests.faults.raw_sockets import Answer, Body, Wire, wired
from tests.faults.service_processes import HANG, Started, runner

pytestmark = pytest.mark.faults

BUSY = 0.5
CHUNKS = 10


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Started]:
    service = Started(runner(tmp_path / "data"), TOOLCRIB_GRACE="1", FAULT_BUSY_SECONDS=f"{BUSY}")
    yield service
    service.close()


@contextmanager
def locked(database: Path) -> Iterator[None]:
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


async def test_a_locked_database_refuses_in_bounded_time_and_nothing_is_lost(service: Started, tmp_path: Path) -> None:
    data_dir, told = tmp_path / "data", Acknowledged()
    asked = {
        "streams": {"tool": "slow", "arguments": {"token": "streams", "chunks": CHUNKS, "seconds": 0.1}},
        "stopped": {"tool": "slow", "arguments": {"token": "stopped", "chunks": 10_000, "seconds": 0.05}},
        "holds": {"tool": "turn", "arguments": {"token": "holds", "seconds": 0.5}},
        "waits": {"tool": "turn", "arguments": {"token": "waits"}},
    }
    async with wired(service.port) as wire:
        ids = {token: (await wire.call(body, 0)).body["id"] for token, body in asked.items()}

        with locked(data_dir / "toolcrib.db"):
            refused = await asyncio.gather(*(post(service.port, mark(f"refused-{n}"), f"key-{n}") for n in range(20)))
            one_more = await wire.call(mark("refused-0"), 1, "key-0")
            stopped = await wire.ask("POST", f"/v1/calls/{ids['stopped']}/cancel", None, {})
            listed = await wire.get("/v1/calls")
        ends = {token: await ended(wire, id) for token, id in ids.items()}
        again = [await wire.call(mark(f"refused-{n}"), 10, f"key-{n}") for n in range(20)]

    for answer in (*refused, one_more):
        assert (answer.status, answer.body["code"]) == (503, "StoreUnavailable"), answer.content
        assert answer.body["detail"] == "The database cannot be written: database is locked."
        assert answer.headers["retry-after"] == "5"
    assert (stopped.status, stopped.body["status"], listed.status) == (200, "running", 200)
    assert {token: state(call) for token, call in ends.items()} == {
        "streams": ("completed", None),
        "stopped": ("error", "Canceled"),
        "holds": ("completed", None),
        "waits": ("completed", None),
    }
    assert ends["streams"]["result"]["output"] == "".join(CHUNK.format(number) for number in range(CHUNKS))
    for token, call in ends.items():
        told.note(call, token)
    for number, answer in enumerate(again):
        assert state(answer.body) == ("completed", None)
        told.note(answer.body, f"refused-{number}", f"key-{number}")
    assert service.end()[0] == 0
    effects = (data_dir / EFFECTS).read_text().splitlines()
    assert broken_promises(data_dir / "toolcrib.db", effects, told) == []


async def test_a_service_can_be_stopped_while_its_database_is_locked(service: Started, tmp_path: Path) -> None:
    body = {"tool": "turn", "arguments": {"token": "holds", "seconds": 60}}
    async with wired(service.port) as wire:
        id = (await wire.call(body, 0)).body["id"]

    with locked(tmp_path / "data" / "toolcrib.db"):
        code, said = await asyncio.to_thread(service.end)

    assert code == 0, said
    after = Started(runner(tmp_path / "data"))
    try:
        async with wired(after.port) as wire:
            assert state(await ended(wire, id)) == ("error", "Interrupted")
    finally:
        after.close()


async def post(port: int, body: Body, key: str) -> Answer:
    async with wired(port) as wire:
        return await wire.call(body, 5, key)


async def ended(wire: Wire, id: str) -> Body:
    async with asyncio.timeout(HANG):
        while (answer := await wire.get(f"/v1/calls/{id}?wait=5")).body["status"] not in FINAL:
            pass
    return answer.body


def mark(token: str) -> Body:
    return {"tool": "append", "arguments": {"token": token}}


def state(call: Body) -> tuple[str, str | None]:
    return call["status"], call["error"] and call["error"]["code"]
