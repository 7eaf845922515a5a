"""Calls that their client runs, over kills and restarts: none is lost, each has one end, and it is the one posted."""

import asyncio
import os
import secrets
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from random import Random
from typing import Any

import pytest

from tests.faults.data_checks import Acknowledged, broken_promises
from tests.faults.raw_sockets import GONE, Answer, Body, wired
from tests.faults.service_processes import Service

KILLS = 6
MANY = 40
POINTS = [
    *("accept.before", "accept.after", "accept.told", "claim.unanswered", "submit", "run", "answer"),
    *("finish", "end.before", "end.after", "end.told", "wish.before", "wish.after", "cancel", "cancel.stop"),
    *("recover", "recover.resume", "recover.done", "adopt.before", "adopt.after"),
    *("drain", "drain.interrupt", "drain.done", "close"),
]


def elsewhere(token: str, **more: Any) -> Body:
    return {"tool": "elsewhere", "arguments": {"token": token}} | more


async def call(service: Service, token: str, wait: float = 0, **more: Any) -> Answer:
    async with wired(service.port) as wire:
        return await wire.call(elsewhere(token, **more), wait, key=f"key-{token}")


async def post(service: Service, id: str, output: str) -> Answer:
    async with wired(service.port) as wire:
        return await wire.ask("POST", f"/v1/calls/{id}/result", {"output": output}, {})


async def read(service: Service, id: str, wait: float = 0) -> Body:
    async with wired(service.port) as wire:
        return (await wire.get(f"/v1/calls/{id}?wait={wait:g}")).body


def row(service: Service, id: str) -> dict[str, Any]:
    with closing(sqlite3.connect(f"file:{service.database}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        return dict(db.execute("SELECT * FROM calls WHERE id = ?", (id,)).fetchone())


def life(service: Service, id: str) -> list[str]:
    with closing(sqlite3.connect(f"file:{service.database}?mode=ro", uri=True)) as db:
        return [type for (type,) in db.execute("SELECT type FROM events WHERE call = ? ORDER BY seq", (id,))]


def stop(service: Service, how: str) -> None:
    if how == "killed":
        service.kill()
    else:
        assert service.terminate() == 0, service.log()


ways = pytest.mark.parametrize("how", ["killed", "terminated"])


@ways
async def test_a_call_at_its_client_survives_and_its_result_ends_it_exactly_once(service: Service, how: str) -> None:
    made = (await call(service, "a")).body
    before = row(service, made["id"])

    for _ in range(2):
        stop(service, how)
        assert row(service, made["id"])["status"] == "running"
        service.start()
        now = row(service, made["id"])
        assert now == before | {"owner": now["owner"]}
    posted = await post(service, made["id"], "rain")
    again = await post(service, made["id"], "snow")
    stop(service, how)
    service.start()
    late = await post(service, made["id"], "snow")

    assert (posted.status, posted.body["status"], posted.body["result"]["output"]) == (200, "completed", "rain")
    assert (again.status, late.status) == (409, 409)
    assert await read(service, made["id"]) == posted.body
    assert (await call(service, "a")).body == posted.body
    assert life(service, made["id"]) == ["call.pending", "call.running", "call.completed"]
    told = Acknowledged()
    told.note(posted.body, "a")
    assert broken_promises(service.database, service.effects, told) == []


@ways
async def test_it_can_be_canceled_after_the_restart(service: Service, how: str) -> None:
    made = (await call(service, "a")).body
    stop(service, how)
    service.start()

    async with wired(service.port) as wire:
        canceled = (await wire.ask("POST", f"/v1/calls/{made['id']}/cancel", None, {})).body

    assert canceled["error"]["code"] == "Canceled"
    assert (await post(service, made["id"], "rain")).status == 409
    assert life(service, made["id"]) == ["call.pending", "call.running", "call.error"]


@ways
async def test_its_deadline_comes_after_the_restart_as_it_was_stored(service: Service, how: str) -> None:
    made = (await call(service, "a", timeout=0.7)).body
    deadline = row(service, made["id"])["deadline"]
    stop(service, how)
    service.start()

    ended = await read(service, made["id"], wait=30)

    assert ended["error"]["code"] == "Timeout"
    assert row(service, made["id"])["ended_at"] >= deadline
    assert (await post(service, made["id"], "rain")).status == 409


async def test_who_waits_at_an_orderly_end_is_told_that_it_still_runs(service: Service) -> None:
    waiting = asyncio.create_task(call(service, "a", wait=30))
    async with asyncio.timeout(30):
        while not (found := await listed(service)):  # noqa: ASYNC110 - the service is another process
            await asyncio.sleep(0.01)

    code = await asyncio.to_thread(service.terminate)
    answer = await waiting

    assert (code, answer.status, answer.body["status"]) == (0, 202, "running")
    service.start()
    assert (await post(service, found[0]["id"], "rain")).status == 200


async def listed(service: Service) -> list[Body]:
    async with wired(service.port) as wire:
        data: list[Body] = (await wire.get("/v1/calls?status=running")).body["data"]
        return data


async def test_results_posted_while_the_service_is_killed_are_recorded_or_can_be_posted_again(
    service: Service,
) -> None:
    seed = int(os.environ.get("FAULT_SEED", secrets.randbits(32)))
    random, told = Random(seed), Acknowledged()
    made = [(await call(service, f"t{number}")).body["id"] for number in range(MANY)]
    left = dict(zip(made, (f"t{number}" for number in range(MANY)), strict=True))

    for _ in range(KILLS):
        posting = asyncio.create_task(post_all(service, left, told))
        await asyncio.sleep(random.uniform(0, 0.06))
        service.kill()
        await posting
        service.start()
    await post_all(service, left, told)

    assert left == {}, f"FAULT_SEED={seed}"
    for id in made:
        assert life(service, id) == ["call.pending", "call.running", "call.completed"], f"FAULT_SEED={seed}"
    assert Counter(told.tokens.values()) == Counter(f"t{number}" for number in range(MANY))
    assert broken_promises(service.database, service.effects, told) == [], f"FAULT_SEED={seed}"


async def post_all(service: Service, left: dict[str, str], told: Acknowledged) -> None:
    """A client that has run all of these, and posts until it knows that each is recorded."""
    for id, token in list(left.items()):
        try:
            answer = await post(service, id, f"result of {token}")
            ended = answer.body if answer.status == 200 else await read(service, id)
        except GONE:
            return
        assert answer.status in (200, 409), answer.content
        assert (ended["status"], ended["result"]["output"]) == ("completed", f"result of {token}")
        told.note(ended, token)
        del left[id]


@pytest.mark.faults
@pytest.mark.parametrize("point", POINTS)
async def test_wherever_it_is_killed_each_call_has_one_end(service: Service, point: str) -> None:
    kept = (await call(service, "kept")).body["id"]
    service.kill()

    assert await until_killed(service, f"{point}:1", kept) == -signal.SIGKILL
    service.start()

    for token in ("kept", "posted", "canceled", "open"):
        ended = (await call(service, token)).body
        if ended["status"] == "running":
            ended = (await post(service, ended["id"], f"result of {token}")).body
        outcome = ended["result"] and ended["result"]["output"]
        assert outcome == f"result of {token}" or (token == "canceled" and ended["error"]["code"] == "Canceled")
    assert broken_promises(service.database, service.effects, Acknowledged()) == []


async def until_killed(service: Service, fault: str, kept: str) -> int:
    if not await asyncio.to_thread(service.start_armed, fault):
        return service.ended()
    try:
        await play(service, kept)
        return await asyncio.to_thread(service.terminate)
    except GONE:
        return service.ended()


async def play(service: Service, kept: str) -> None:
    """One call is posted, one canceled, one is left open, and one of an earlier service is posted."""
    posted = (await call(service, "posted")).body["id"]
    assert (await post(service, posted, "result of posted")).status == 200
    canceled = (await call(service, "canceled")).body["id"]
    async with wired(service.port) as wire:
        await wire.ask("POST", f"/v1/calls/{canceled}/cancel", None, {})
    await call(service, "open")
    assert (await post(service, kept, "result of kept")).status == 200
