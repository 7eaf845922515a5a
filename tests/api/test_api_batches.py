"""Batches: the same key and bodies give the same calls; who goes away stops what asked for it."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.support.client_tools import OSLO, ClientToys
from tests.support.services import HANG, KEY, RunningService, until
from tests.support.toy_tools import ToyHook, Toys

Body = dict[str, Any]


@pytest.fixture
def toys() -> Toys:
    return ClientToys()


def note(text: str) -> Body:
    return {"tool": "note", "arguments": {"text": text}}


def wait(name: str, **more: Any) -> Body:
    return {"tool": "wait", "arguments": {"name": name}} | more


async def post(client: httpx.AsyncClient, key: str | None, *calls: Body, **params: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.post("/v1/calls/batch", json={"calls": list(calls)}, headers=headers, params=params)


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [call["id"] for call in answer.json()["data"]]


def assert_conflict(answer: httpx.Response, call: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (409, "IdempotencyConflict")
    assert answer.json()["detail"] == f"This Idempotency-Key was used with another body, for {call}."


async def test_a_batch_sent_again_is_answered_with_the_same_calls(
    client: httpx.AsyncClient, service: RunningService, toys: Toys
) -> None:
    calls = [note("1"), {"tool": "echo", "arguments": {"text": "x"}}, {"tool": "none"}, note("2")]

    first = await post(client, "k", *calls)
    again = [await post(client, "k", *calls) for _ in range(3)]

    assert [answer.content for answer in again] == [first.content] * 3
    assert [call["status"] for call in first.json()["data"]] == ["completed", "completed", "error", "completed"]
    assert toys.notes == ["1", "2"]
    assert len(service.rows("SELECT * FROM calls")) == 4
    assert len(service.services.runs._locks) == 0


async def test_many_at_once_are_one_batch(client: httpx.AsyncClient, service: RunningService, toys: Toys) -> None:
    async with asyncio.timeout(HANG * 2):
        answers = await asyncio.gather(*(post(client, "k", note("1"), note("2")) for _ in range(20)))

    assert len({answer.content for answer in answers}) == 1
    assert (toys.notes, len(service.rows("SELECT * FROM calls"))) == (["1", "2"], 2)


async def test_a_repeat_waits_for_the_calls_that_still_run(
    client: httpx.AsyncClient, service: RunningService, toys: Toys
) -> None:
    calls = [wait("a"), note("after"), {"tool": "get_weather", "arguments": OSLO}]
    first = asyncio.create_task(post(client, "k", *calls))
    await service.started("a")
    again = asyncio.create_task(post(client, "k", *calls))
    at_once = await post(client, "k", *calls, wait=0)

    toys.go["a"].set()
    weather = at_once.json()["data"][2]["id"]
    await client.post(f"/v1/calls/{weather}/result", json={"output": "rain"})
    answers = [await first, await again]

    assert [call["status"] for call in at_once.json()["data"]] == ["running", "pending", "running"]
    assert answers[0].content == answers[1].content
    assert ids(answers[0]) == ids(at_once)
    assert [call["result"]["output"] for call in answers[0].json()["data"]] == ["a", "after", "rain"]


async def test_each_call_has_a_key_of_its_own(client: httpx.AsyncClient, toys: Toys) -> None:
    batch = await post(client, "k", note("1"), note("2"))
    alone = await client.post("/v1/calls", json=note("2"), headers={"Idempotency-Key": "k/1"})
    other = await client.post("/v1/calls", json=note("2"), headers={"Idempotency-Key": "k"})

    assert alone.json()["id"] == ids(batch)[1]
    assert other.json()["id"] not in ids(batch)
    assert toys.notes == ["1", "2", "2"]


async def test_another_body_of_one_call_is_a_conflict_and_runs_nothing(
    client: httpx.AsyncClient, service: RunningService, toys: Toys, subtests: pytest.Subtests
) -> None:
    cases: list[list[Body]] = [
        [note("other"), note("2")],
        [note("1"), note("other")],
        [note("2"), note("1")],
        [note("1"), note("2") | {"timeout": 5}],
        [note("new"), note("new"), note("new")],
    ]
    for calls in cases:
        with subtests.test(calls=calls):
            made = ids(await post(client, "k", note("1"), note("2")))
            same = calls[0] == note("1")

            answer = await post(client, "k", *calls, note("3"))

            assert_conflict(answer, made[1 if same else 0])
            assert (toys.notes, len(service.rows("SELECT * FROM calls"))) == (["1", "2"], 2)


async def test_a_longer_batch_with_the_same_beginning_makes_only_what_is_new(
    client: httpx.AsyncClient, toys: Toys
) -> None:
    short = ids(await post(client, "k", note("1"), note("2")))
    long = ids(await post(client, "k", note("1"), note("2"), note("3")))

    assert (long[:2], len(set(long)), toys.notes) == (short, 3, ["1", "2", "3"])


async def test_of_two_different_batches_at_once_one_runs_and_the_other_runs_nothing(
    client: httpx.AsyncClient, service: RunningService, toys: Toys
) -> None:
    async with asyncio.timeout(HANG * 2):
        answers = await asyncio.gather(
            *(post(client, "k", *(note(f"{size}.{n}") for n in range(size))) for size in (2, 3, 4, 5))
        )

    [taken] = [answer for answer in answers if answer.status_code == 200]
    for answer in answers:
        if answer is not taken:
            assert_conflict(answer, ids(taken)[0])
    assert toys.notes == [call["result"]["output"] for call in taken.json()["data"]]
    assert len(service.rows("SELECT * FROM calls")) == len(toys.notes)


async def test_a_repeat_after_a_restart_and_after_a_crash_is_the_same_batch(
    service: RunningService, toys: Toys
) -> None:
    calls = [note("1"), {"tool": "get_weather", "arguments": OSLO}]
    first = ids(await post(service.client, "k", *calls, wait=0))
    await service.restart()
    second = ids(await post(service.client, "k", *calls, wait=0))
    await service.crash()
    await service.open()
    third = await post(service.client, "k", *calls, wait=0)

    assert first == second == ids(third)
    assert [call["status"] for call in third.json()["data"]] == ["completed", "running"]
    assert toys.notes == ["1"]


async def test_keys_belong_to_their_principal(service: RunningService, toys: Toys) -> None:
    made = await service.client.post("/v1/keys", json={"principal": "ann"})
    async with service.client_of(made.json()["token"]) as ann:
        hers = await post(ann, "k", note("hers"))
    his = await post(service.client, "k", note("his"))

    assert ids(hers) != ids(his)
    assert toys.notes == ["hers", "his"]


async def test_a_batch_without_room_keeps_no_key_and_a_repeat_needs_no_room(
    service: RunningService, toys: Toys
) -> None:
    service.settings |= {"calls_per_key": 2}
    await service.restart()
    refused = await post(service.client, "k", wait("a"), wait("b"), wait("c"))
    taken = await post(service.client, "k", wait("a"), wait("b"), wait=0)
    again = await post(service.client, "k", wait("a"), wait("b"), wait=0)

    assert (refused.status_code, refused.json()["code"]) == (429, "TooManyCalls")
    assert ids(taken) == ids(again)
    assert len(service.rows("SELECT * FROM idempotency_keys")) == 2


@pytest.mark.parametrize("key", ["", "x" * 257])
async def test_a_key_has_a_length(service: RunningService, key: str) -> None:
    answer = await post(service.client, key, note("1"))

    assert (answer.status_code, answer.json()["code"]) == (422, "InvalidRequest")
    assert service.rows("SELECT * FROM calls") == []


async def test_a_stopping_service_makes_no_more_batches(service: RunningService, toys: Toys) -> None:
    await service.house.drain()

    answers = [await post(service.client, key, note("1")) for key in (None, "k")]

    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(503, "Stopping")] * 2
    assert toys.notes == []


class Caller:
    """A client on a bare socket, so that it can hang up."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    @classmethod
    async def ask(cls, service: RunningService, *calls: Body, key: str | None = None) -> "Caller":
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        content = json.dumps({"calls": calls}).encode()
        lines = ["POST /v1/calls/batch HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {KEY}"]
        lines += [f"Idempotency-Key: {key}"] if key else []
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}", "", ""]
        writer.write("\r\n".join(lines).encode() + content)
        await writer.drain()
        return cls(writer)

    async def hang_up(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_client_that_goes_away_stops_the_calls_that_asked_for_it(
    service: RunningService, toys: Toys, key: str | None
) -> None:
    leave = {"cancel_on_disconnect": True}
    writer = {"tool": "note", "arguments": {"text": "never"}} | leave
    weather = {"tool": "get_weather", "arguments": OSLO} | leave
    caller = await Caller.ask(service, wait("stay"), wait("go", **leave), weather, writer, note("kept"), key=key)
    await service.started("stay")
    await service.started("go")
    await until(lambda: len(service.rows("SELECT * FROM calls WHERE waiting = 'gate'")) == 2)

    await caller.hang_up()
    await until(lambda: len(service.services.dispatcher.live_calls) == 2)
    toys.go["stay"].set()
    await until(lambda: len(service.services.dispatcher.live_calls) == 0)

    ends = [service.end(row["id"]) for row in service.rows("SELECT id FROM calls ORDER BY id")]
    gone = ("error", "Canceled")
    assert ends == [("completed", None), gone, gone, gone, ("completed", None)]
    assert toys.notes == ["kept"]


async def test_a_client_that_goes_away_stops_nothing_otherwise(service: RunningService, toys: Toys) -> None:
    caller = await Caller.ask(service, wait("a"), wait("b"))
    await service.started("a")
    await service.started("b")

    await caller.hang_up()
    await until(lambda: not service._server.server_state.connections)
    toys.go["a"].set()
    toys.go["b"].set()
    await until(lambda: len(service.services.dispatcher.live_calls) == 0)

    assert [service.end(row["id"]) for row in service.rows("SELECT id FROM calls")] == [("completed", None)] * 2


async def test_a_client_that_stays_gets_its_answer_and_nothing_is_stopped(service: RunningService, toys: Toys) -> None:
    asking = asyncio.create_task(post(service.client, None, wait("a", cancel_on_disconnect=True), note("1")))
    await service.started("a")
    toys.go["a"].set()

    assert [call["status"] for call in (await asking).json()["data"]] == ["completed", "completed"]


async def test_a_batch_that_is_not_waited_for_is_not_stopped(service: RunningService, toys: Toys) -> None:
    answer = await post(service.client, None, wait("a", cancel_on_disconnect=True), wait=0)
    await service.started("a")
    await service.client.aclose()
    await until(lambda: not service._server.server_state.connections)
    toys.go["a"].set()
    await until(lambda: len(service.services.dispatcher.live_calls) == 0)

    assert service.end(ids(answer)[0]) == ("completed", None)


async def test_a_call_made_alone_with_the_key_of_an_item_is_that_item(service: RunningService, toys: Toys) -> None:
    """Also when it is being made at the same moment: there is one call, or a conflict, never two."""
    hook = ToyHook("h")
    service.hooks = [hook]
    await service.restart()
    headers = {"Idempotency-Key": "k/1"}

    alone, batch = await asyncio.gather(
        service.client.post("/v1/calls", json=note("2"), headers=headers),
        post(service.client, "k", note("1"), note("2")),
    )

    assert alone.json()["id"] == ids(batch)[1]
    assert sorted(toys.notes) == ["1", "2"]
