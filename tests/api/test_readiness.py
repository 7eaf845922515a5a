"""Ready or not, and why: a real service whose database is taken away from it and given back."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.api import readiness
from app.api.readiness import SharedProbe
from app.core.errors import StoreUnavailable
from app.store import db
from tests.api.test_api_access import new_key
from tests.support.services import HANG, KEY, RunningService, until
from tests.support.toy_tools import Toys

Answer = tuple[int, str, dict[str, tuple[bool, str]]]


@pytest.fixture
async def impatient(data_dir: Path, toys: Toys, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningService]:
    """A service whose writer soon gives up on a locked database."""
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.05)
    service = RunningService(data_dir, toys)
    await service.open()
    yield service
    await service.close()


async def ready(service: RunningService, token: str | None = KEY) -> Answer:
    async with service.client_of(token) as client:
        answer = await client.get("/readyz")
    body: dict[str, Any] = answer.json()
    checks = {check["name"]: (check["ok"], check["message"]) for check in body.get("checks", [])}
    return answer.status_code, body["status"], checks


async def ask_until(service: RunningService, status: str) -> Answer:
    """Ask again and again, as a load balancer does."""
    async with asyncio.timeout(HANG * 4):
        while (answer := await ready(service))[1] != status:
            pass
    return answer


async def fail_a_call(service: RunningService) -> None:
    answer = await service.client.post("/v1/calls", json={"tool": "echo"})
    assert answer.status_code == 503


@contextmanager
def unreadable(service: RunningService) -> Iterator[None]:
    """The table that is looked at is not there."""
    service.change("ALTER TABLE counters RENAME TO gone")
    yield
    service.change("ALTER TABLE gone RENAME TO counters")


async def test_a_ready_service_tells_those_with_a_key_what_it_looked_at(service: RunningService) -> None:
    status, said, checks = await ready(service)

    assert (status, said) == (200, "ok")
    assert {name: ok for name, (ok, _) in checks.items() if name != "disk_space"} == {
        "serving": True,
        "store_writable": True,
        "store_readable": True,
        "room_for_calls": True,
        "sandbox": True,
    }
    assert checks["room_for_calls"][1] == "0 of at most 4096 calls are under way."
    assert "disk_space" in checks


@pytest.mark.parametrize(("scope", "is_told"), [("calls:read", True), ("metrics", True), ("calls:run", False)])
async def test_the_reasons_are_for_keys_that_may_read_calls_or_metrics(
    service: RunningService, scope: str, is_told: bool
) -> None:
    key = await new_key(service, "ann", [scope])

    status, said, checks = await ready(service, key["token"])

    assert (status, said, bool(checks)) == (200, "ok", is_told)


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_a_stranger_learns_the_status_and_nothing_else(service: RunningService, token: str | None) -> None:
    async with service.client_of(token) as stranger:
        answer = await stranger.get("/readyz")

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_a_locked_database_makes_it_unready_and_it_recovers_by_itself(impatient: RunningService) -> None:
    with impatient.stalled_writer():
        await fail_a_call(impatient)
        locked = await ready(impatient)
        stranger = await ready(impatient, None)
    recovered = await ask_until(impatient, "ok")

    assert locked[:2] == stranger[:2] == (503, "unready")
    assert locked[2]["store_writable"] == (False, "The database cannot be written: database is locked.")
    assert locked[2]["store_readable"][0]
    assert stranger[2] == {}
    assert recovered[2]["store_writable"] == (True, "Records are written.")
    assert [row["status"] for row in impatient.rows("SELECT status FROM calls")] == []
    answer = await impatient.client.post("/v1/calls", json={"tool": "echo"})
    assert answer.json()["status"] == "completed"


async def test_a_full_database_makes_it_unready_until_there_is_room_again(service: RunningService) -> None:
    writing = service.services.writer._db
    service.change("CREATE TABLE filler (x)")
    (pages,) = service.rows("PRAGMA page_count")
    writing.execute(f"PRAGMA max_page_count={pages['page_count']}").close()
    body = {"tool": "flood", "arguments": {"times": 2_000_000}}

    call = (await service.client.post("/v1/calls?wait=0", json=body)).json()
    await until(lambda: service.services.writer.failing is not None)
    failing = service.services.writer.failing
    writing.execute("PRAGMA max_page_count=1000000").close()
    recovered = await ask_until(service, "ok")
    ended = (await service.client.get(f"/v1/calls/{call['id']}?wait=5")).json()

    assert failing == "The database cannot be written: database or disk is full."
    assert recovered[0] == 200
    assert ended["status"] == "completed"


async def test_any_commit_that_succeeds_makes_it_ready_again(impatient: RunningService) -> None:
    with impatient.stalled_writer():
        await fail_a_call(impatient)

    await impatient.client.post("/v1/calls", json={"tool": "echo"})

    assert impatient.services.writer.failing is None
    assert (await ready(impatient))[0] == 200


async def test_looking_writes_nothing_and_does_not_move_the_sequence(impatient: RunningService) -> None:
    with impatient.stalled_writer():
        await fail_a_call(impatient)
    before = impatient.rows("SELECT * FROM counters"), impatient.events()

    await ask_until(impatient, "ok")

    assert (impatient.rows("SELECT * FROM counters"), impatient.events()) == before


async def test_nobody_who_asks_waits_for_a_writer_that_hangs(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.close()
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.3)
    monkeypatch.setattr(readiness, "CHECK_SECONDS", 0.01)
    await service.open()

    with service.stalled_writer():
        await fail_a_call(service)
        answers = await asyncio.gather(*(ready(service) for _ in range(10)))
        waiting = service.services.writer.queue
    assert {answer[:2] for answer in answers} == {(503, "unready")}
    assert waiting <= 1  # one look, shared by all of them
    await ask_until(service, "ok")


async def test_a_change_that_fails_for_a_reason_of_its_own_does_not_make_it_unready(service: RunningService) -> None:
    service.change("CREATE TRIGGER no_calls BEFORE INSERT ON calls BEGIN SELECT RAISE(ABORT, 'no'); END")

    answer = await service.client.post("/v1/calls", json={"tool": "echo"})

    assert answer.status_code == 503
    assert service.services.writer.failing is None
    assert (await ready(service))[0] == 200


async def test_a_database_that_cannot_be_read_makes_it_unready(service: RunningService) -> None:
    with unreadable(service):
        broken = await ready(service)
    mended = await ready(service)

    assert broken[:2] == (503, "unready")
    assert broken[2]["store_readable"] == (False, "The database cannot be read: no such table: counters.")
    assert mended[:2] == (200, "ok")


async def test_without_room_for_calls_it_is_unready_until_there_is(service: RunningService) -> None:
    await service.close()
    service.settings["calls_limit"] = 1
    await service.open()
    live = service.submit("wait", {"name": "x"})
    await service.started("x")

    full = await ready(service)
    service.toys.go["x"].set()
    await service.ended(live)
    empty = await ready(service)

    assert full[:2] == (503, "unready")
    assert full[2]["room_for_calls"] == (False, "1 of at most 1 calls are under way.")
    assert empty[:2] == (200, "ok")


async def test_little_disk_space_is_a_warning_and_it_stays_ready(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "LOW_DISK_BYTES", 1 << 62)

    status, said, checks = await ready(service)

    assert (status, said) == (200, "ok")
    assert checks["disk_space"][0] is False
    assert checks["disk_space"][1].endswith(" MB are free where the records are kept.")


async def test_a_stopping_service_says_so_before_anything_else(impatient: RunningService) -> None:
    with impatient.stalled_writer():
        await fail_a_call(impatient)
        await impatient.house.drain()
        status, said, checks = await ready(impatient)

    assert (status, said) == (503, "stopping")
    assert checks["serving"] == (False, "The service is stopping and takes no more calls.")


async def test_a_service_closes_while_somebody_looks(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    await service.close()
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.3)
    await service.open()
    with closing(sqlite3.connect(service.data_dir / "toolcrib.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await fail_a_call(service)
        asking = asyncio.create_task(service.services.readiness.check())
        await until(lambda: service.services.writer.queue)

        async with asyncio.timeout(HANG * 4):
            await service.close()
            status, _ = await asking

    assert status == "stopping"


async def test_a_look_that_fails_is_told_and_the_next_one_looks_again() -> None:
    outcomes = iter([StoreUnavailable("It is gone."), None])

    async def look() -> None:
        if error := next(outcomes):
            raise error

    looking = SharedProbe(look)

    assert [await looking.error(), await looking.error()] == ["It is gone.", None]
