"""Retention: what is too old or too much goes whole; what is left is complete, and asking for what is gone is told."""

import asyncio
from typing import Any

import pytest

from app.dispatch import retention as sweeping
from app.dispatch.retention import DAY, Limits, Retention
from app.store import retention
from app.store.events import EventFilter
from tests.support.services import HANG, Crib, RunningService, listening
from tests.support.toy_tools import Toys

HOUR = 3600 * 1_000_000


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "PAUSE", 0)


def keeper(crib: Crib, days: float | None = None, bytes: int | None = None) -> Retention:
    services = crib.services
    return Retention(services.engine, services.writer, services.hub, services.clock, Limits(days, bytes))


def age(crib: Crib, ids: list[str], hours: float) -> None:
    for id in ids:
        crib.change("UPDATE calls SET ended_at = ended_at - ? WHERE id = ?", int(hours * HOUR), id)


async def ended_calls(crib: Crib, count: int, **arguments: Any) -> list[str]:
    views = [await crib.run("echo", {"text": arguments.get("text", "x")}) for _ in range(count)]
    return [view["id"] for view in views]


def left(crib: Crib) -> list[str]:
    return [row["id"] for row in crib.rows("SELECT id FROM calls ORDER BY id")]


async def test_calls_older_than_the_limit_go_with_all_that_belongs_to_them(crib: Crib) -> None:
    await crib.open()
    old = await ended_calls(crib, 3)
    spoken = (await crib.run("say", {"texts": ["out"]}))["id"]
    young = await ended_calls(crib, 2)
    age(crib, [*old, spoken], hours=49)

    assert await keeper(crib, days=2).sweep() == 4

    assert left(crib) == young
    assert {event["call"] for event in crib.events()} == set(young)
    assert crib.rows("SELECT * FROM outputs") == []
    assert await keeper(crib, days=2).sweep() == 0


async def test_what_is_not_at_its_end_stays_however_old_it_is(crib: Crib, toys: Toys) -> None:
    await crib.open()
    live = crib.submit("wait")
    await crib.started("wait")
    crib.change("UPDATE calls SET created_at = 1, started_at = 1")
    old = await ended_calls(crib, 1)
    age(crib, old, hours=99)

    assert await keeper(crib, days=1).sweep() == 1

    toys.go["wait"].set()
    await crib.ended(live)
    assert crib.end(live.call.id) == ("completed", None)
    assert crib.story(live.call.id) == ["call.pending", "call.running", "call.completed"]


async def test_a_call_that_began_long_ago_but_just_ended_stays(crib: Crib) -> None:
    await crib.open()
    [id] = await ended_calls(crib, 1)
    crib.change("UPDATE calls SET created_at = 1, started_at = 1")

    assert await keeper(crib, days=1).sweep() == 0
    assert left(crib) == [id]


async def test_the_oldest_go_while_the_records_take_too_much(crib: Crib, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 4)
    await crib.open()
    ids = await ended_calls(crib, 40, text="x" * 20_000)
    used = await retention.used_bytes(crib.services.engine)
    limit = used // 2

    removed = await keeper(crib, bytes=limit).sweep()

    assert 0 < removed < 40
    assert left(crib) == ids[removed:]
    assert await retention.used_bytes(crib.services.engine) <= limit


async def test_records_that_cannot_become_small_enough_are_emptied_and_no_more(crib: Crib) -> None:
    await crib.open()
    await ended_calls(crib, 3)

    assert await keeper(crib, bytes=1).sweep() == 3
    assert left(crib) == []


async def test_the_asks_of_a_call_go_with_it(crib: Crib) -> None:
    await crib.open()
    await crib.run("need", {"path": ".env"}, ask_timeout=0.01)
    assert len(crib.rows("SELECT * FROM asks")) == 1

    assert await keeper(crib, bytes=1).sweep() == 1

    assert crib.rows("SELECT * FROM asks") == []


async def test_an_idempotency_key_keeps_its_call_for_a_day(service: RunningService) -> None:
    headers = {"Idempotency-Key": "mine"}
    body = {"tool": "echo", "arguments": {"text": "x"}}
    first = (await service.client.post("/v1/calls", json=body, headers=headers)).json()
    plain = await ended_calls(service, 1)

    assert await keeper(service, bytes=1).sweep() == 1
    assert left(service) == [first["id"]]
    assert (await service.client.post("/v1/calls", json=body, headers=headers)).json() == first

    service.change("UPDATE idempotency_keys SET created_at = created_at - ?", (DAY + 1) * 1_000_000)
    assert await keeper(service, bytes=1).sweep() == 1
    assert service.rows("SELECT * FROM idempotency_keys") == []
    assert plain != left(service) == []


async def test_large_outputs_go_in_batches_of_their_own(crib: Crib, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "BATCH_BYTES", 1500)
    await crib.open()
    for _ in range(4):
        await crib.run("say", {"texts": ["x" * 1000]})
    batches: list[int] = []
    keeping = keeper(crib, bytes=1)
    remove = keeping._remove

    async def noted(ids: list[str]) -> None:
        batches.append(len(ids))
        await remove(ids)

    monkeypatch.setattr(keeping, "_remove", noted)
    assert await keeping.sweep() == 4
    assert batches == [1, 1, 1, 1]


async def test_calls_go_on_while_old_ones_are_removed(crib: Crib) -> None:
    await crib.open()
    age(crib, await ended_calls(crib, 120), hours=99)

    async with asyncio.timeout(HANG), asyncio.TaskGroup() as group:
        sweep = group.create_task(keeper(crib, days=1).sweep())
        fresh = group.create_task(ended_calls(crib, 50))

    assert sweep.result() == 120
    assert left(crib) == fresh.result()
    seqs = [event["seq"] for event in crib.events()]
    assert seqs[-1] == crib.services.hub.last_seq
    assert crib.rows("PRAGMA integrity_check") == [{"integrity_check": "ok"}]


async def test_resuming_before_what_is_left_is_gone_with_the_oldest(service: RunningService) -> None:
    old = await ended_calls(service, 2)
    await ended_calls(service, 1)
    age(service, old, hours=99)
    await keeper(service, days=1).sweep()
    json = {"Accept": "application/json"}

    for headers in ({"Last-Event-ID": "3"} | json, {"Last-Event-ID": "3"}):
        gone = await service.client.get("/v1/events", headers=headers)
        assert gone.status_code == 410
        assert gone.headers["content-type"] == "application/problem+json"
        assert (gone.json()["code"], gone.json()["oldest"]) == ("EventsGone", 7)
    page = (await service.client.get("/v1/events?after=6", headers=json)).json()["data"]
    assert [event["seq"] for event in page] == [7, 8, 9]
    everything = (await service.client.get("/v1/events?after=0", headers=json)).json()["data"]
    assert everything == page


async def test_the_window_is_remembered_over_a_restart(service: RunningService) -> None:
    age(service, await ended_calls(service, 2), hours=99)
    await keeper(service, days=1).sweep()
    await service.restart()

    assert service.services.hub.floor == 6
    assert (await service.client.get("/v1/events?after=5")).status_code == 410
    async with listening(service.client, "/v1/events?after=6") as stream:
        [id] = await ended_calls(service, 1)
        assert (await stream.must()).data["call"] == id


async def test_a_stream_that_retention_overtakes_is_told_so(crib: Crib, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.dispatch.events.hub.PAGE_SIZE", 3)
    await crib.open()
    age(crib, await ended_calls(crib, 4), hours=99)
    frames = crib.services.hub.follow(crib.services.engine, EventFilter(principal=None), 0)

    assert (await anext(frames)).startswith(b"id: 1\n")
    await keeper(crib, days=1).sweep()

    assert (await anext(frames)).startswith(b"event: lagged\n")
    with pytest.raises(StopAsyncIteration):
        await anext(frames)


async def test_the_service_sweeps_by_itself(crib: Crib) -> None:
    await crib.open()
    age(crib, await ended_calls(crib, 2), hours=99)
    await crib.close()
    crib.settings["retention_days"] = 1
    await crib.open()

    async with asyncio.timeout(HANG):
        while left(crib):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_nothing_goes_when_no_limit_is_set(crib: Crib) -> None:
    await crib.open()
    age(crib, await ended_calls(crib, 2), hours=24 * 365 * 40)

    assert await keeper(crib).sweep() == 0
    assert len(left(crib)) == 2
