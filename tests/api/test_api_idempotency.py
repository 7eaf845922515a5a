"""The same key and body give the same call, however often and whenever they are sent."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.services import HANG, RunningService
from tests.support.toy_tools import ToyHook, Toys

NOTE = {"tool": "note", "arguments": {"text": "once"}}


def post(client: httpx.AsyncClient, key: str, body: Any = NOTE, **more: Any) -> Any:
    return client.post("/v1/calls", json=body, headers={"Idempotency-Key": key}, **more)


async def test_fifty_posts_at_once_are_one_call_with_one_answer(
    client: httpx.AsyncClient, service: RunningService, toys: Toys
) -> None:
    async with asyncio.timeout(HANG * 2):
        answers = await asyncio.gather(*(post(client, "k") for _ in range(50)))

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert toys.notes == ["once"]
    assert len(service.rows("SELECT * FROM calls")) == 1
    assert len(service.events()) == 3


async def test_posts_while_the_first_still_runs_wait_for_its_end(
    client: httpx.AsyncClient, service: RunningService, toys: Toys
) -> None:
    body = {"tool": "wait", "arguments": {"effect": "write"}}
    first = asyncio.create_task(post(client, "k", body))
    await service.started("wait")
    others = [asyncio.create_task(post(client, "k", body)) for _ in range(5)]
    at_once = await post(client, "k", body, params={"wait": 0})

    toys.go["wait"].set()
    answers = [await first, *[await other for other in others]]

    assert (at_once.status_code, at_once.json()["status"]) == (202, "running")
    assert {answer.json()["id"] for answer in answers} == {at_once.json()["id"]}
    assert len({answer.content for answer in answers}) == 1
    assert toys.log == ["wait in", "wait out"]


async def test_a_repeat_long_after_is_answered_from_the_store_and_leaves_no_trace(
    client: httpx.AsyncClient, service: RunningService, toys: Toys
) -> None:
    first = await post(client, "k")
    for _ in range(3):
        again = await post(client, "k")
        assert (again.status_code, again.content) == (200, first.content)

    other = await client.post("/v1/calls", json=NOTE)
    assert other.json()["status"] == "completed"
    assert toys.notes == ["once", "once"]
    assert len(service.services.dispatcher.live_calls) == 0


async def test_a_repeat_after_a_restart_and_after_a_crash_is_the_same_call(service: RunningService, toys: Toys) -> None:
    first = await post(service.client, "k")
    await service.restart()
    second = await post(service.client, "k")
    await service.crash()
    await service.open()
    third = await post(service.client, "k")

    assert first.content == second.content == third.content
    assert toys.notes == ["once"]


async def test_a_repeat_of_a_call_that_a_crash_interrupted_tells_so(service: RunningService, toys: Toys) -> None:
    body = {"tool": "wait"}
    first = await post(service.client, "k", body, params={"wait": 0})
    await service.started("wait")
    await service.crash()
    await service.open()

    again = await post(service.client, "k", body)

    assert again.json()["id"] == first.json()["id"]
    assert again.json()["error"]["code"] == "Interrupted"
    assert toys.log == ["wait in", "wait out"]


async def test_a_repeat_waits_for_a_call_that_was_kept_over_a_restart(service: RunningService, toys: Toys) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    service.hooks = [hook]
    await service.restart()
    first = asyncio.create_task(post(service.client, "k"))
    async with asyncio.timeout(HANG):
        await hook.met.wait()
    await service.house.drain()
    kept = await first
    assert (kept.status_code, kept.json()["status"]) == (202, "pending")
    await service.restart()

    again = asyncio.create_task(post(service.client, "k"))
    await asyncio.sleep(0)
    hook.go.set()
    ended = await again

    assert (ended.json()["id"], ended.json()["status"]) == (kept.json()["id"], "completed")
    assert toys.notes == ["once"]


@pytest.mark.parametrize(
    "body",
    [
        {"tool": "note", "arguments": {"text": "other"}},
        {"tool": "echo", "arguments": {"text": "once"}},
        {"tool": "note", "arguments": {"text": "once"}, "timeout": 5},
        {"tool": "note", "arguments": {"text": "once"}, "metadata": {}},
    ],
)
async def test_another_body_with_the_same_key_is_a_conflict(
    client: httpx.AsyncClient, toys: Toys, body: dict[str, Any]
) -> None:
    first = await post(client, "k")

    answer = await post(client, "k", body)

    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {
        "type": "about:blank",
        "title": "Conflict",
        "status": 409,
        "detail": f"This Idempotency-Key was used with another body, for {first.json()['id']}.",
        "code": "IdempotencyConflict",
    }
    assert toys.notes == ["once"]


async def test_a_conflict_is_seen_after_a_restart_too(service: RunningService, toys: Toys) -> None:
    await post(service.client, "k")
    await service.restart()

    answer = await post(service.client, "k", {"tool": "note", "arguments": {"text": "other"}})

    assert (answer.status_code, toys.notes) == (409, ["once"])


async def test_the_same_body_said_otherwise_is_the_same_body(client: httpx.AsyncClient, toys: Toys) -> None:
    said = [
        b'{"tool":"echo","arguments":{"text":[1,2],"a":1}}',
        b'{ "arguments" : {"a": 1, "text": [1, 2]}, "tool": "echo", "input": null, "session": "default" }',
        b'{"tool":"ec\\u0068o","arguments":{"a":1,"text":[1,2]},"on_ask":null,"cancel_on_disconnect":false}',
    ]
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}

    answers = [await client.post("/v1/calls", content=body, headers=headers) for body in said]

    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_huge_numbers_that_differ_are_another_body(client: httpx.AsyncClient) -> None:
    one = await post(client, "k", {"tool": "echo", "arguments": {"text": 2**100}})
    other = await post(client, "k", {"tool": "echo", "arguments": {"text": 2**100 + 1}})

    assert (one.json()["arguments"]["text"], other.status_code) == (2**100, 409)


async def test_keys_belong_to_their_principal(service: RunningService, toys: Toys) -> None:
    made = await service.client.post("/v1/keys", json={"principal": "ann"})
    async with service.client_of(made.json()["token"]) as ann:
        hers = await post(ann, "k")
    his = await post(service.client, "k", {"tool": "note", "arguments": {"text": "other"}})

    assert (hers.status_code, his.status_code) == (200, 200)
    assert toys.notes == ["once", "other"]


async def test_a_failed_call_keeps_its_key(client: httpx.AsyncClient) -> None:
    first = await post(client, "k", {"tool": "none"})
    again = await post(client, "k", {"tool": "none"})

    assert first.json()["error"]["code"] == "UnknownTool"
    assert again.content == first.content


async def test_a_request_that_was_refused_keeps_no_key(client: httpx.AsyncClient, toys: Toys) -> None:
    refused = await post(client, "k", {"tool": "note", "session": "nowhere"})
    taken = await post(client, "k")

    assert (refused.status_code, taken.status_code, toys.notes) == (404, 200, ["once"])


async def test_a_call_that_could_not_be_recorded_keeps_no_key(service: RunningService, toys: Toys) -> None:
    service.change("CREATE TRIGGER no_calls BEFORE INSERT ON calls BEGIN SELECT RAISE(ABORT, 'full'); END")
    refused = await post(service.client, "k")
    service.change("DROP TRIGGER no_calls")

    again = await post(service.client, "k")

    assert (refused.status_code, again.status_code, toys.notes) == (503, 200, ["once"])


@pytest.mark.parametrize("key", ["", "x" * 257])
async def test_a_key_has_a_length(client: httpx.AsyncClient, key: str) -> None:
    answer = await post(client, key)

    assert answer.status_code == 422
    assert answer.json()["detail"] == "Idempotency-Key: 1 to 256 characters are needed."


async def test_a_repeat_may_ask_for_the_stream(client: httpx.AsyncClient) -> None:
    first = await post(client, "k")
    headers = {"Idempotency-Key": "k", "Accept": "text/event-stream"}

    streamed = await client.post("/v1/calls", json=NOTE, headers=headers)

    assert streamed.text.count("event: call.") == 3
    assert first.json()["id"] in streamed.text
