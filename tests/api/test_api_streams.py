"""Event streams over HTTP: connected, resumed, filtered, kept alive, ended."""

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from app.api.http.sse import EventStream
from app.dispatch.events.subscriptions import PIECE_BYTES
from tests.support.services import HANG, KEY, RunningService, frames_of, kinds, listening, until
from tests.support.toy_tools import ToyHook, Toys

PAGE = {"Accept": "application/json"}
STREAM = {"Accept": "text/event-stream"}


async def create(client: httpx.AsyncClient, tool: str, arguments: Any = None, wait: float = 5, **more: Any) -> Any:
    body = {"tool": tool} | ({} if arguments is None else {"arguments": arguments}) | more
    return (await client.post("/v1/calls", params={"wait": wait}, json=body)).json()


def assert_problem(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_a_stream_starts_now_and_tells_what_is_committed(client: httpx.AsyncClient) -> None:
    await create(client, "echo", {"text": "before"})

    async with listening(client, "/v1/events") as stream:
        call = await create(client, "echo", {"text": "hi"}, call_id="c", message_id="m")
        pending, running, completed = await stream.until("call.completed")

    assert stream.response.headers["cache-control"] == "no-store"
    assert [frame.id for frame in (pending, running, completed)] == [4, 5, 6]
    base = {"tool": "echo", "call_id": "c", "message_id": "m"}
    assert pending.data == {
        "seq": 4,
        "type": "call.pending",
        "call": call["id"],
        "session": "default",
        "at": pending.data["at"],
        "data": base | {"parent": None, "arguments": {"text": "hi"}, "input": None},
    }
    assert running.data["data"] == base
    assert completed.data["data"] == base | {
        "result": call["result"],
        "error": None,
        "duration_ms": call["duration_ms"],
    }


@pytest.mark.parametrize("way", ["after", "Last-Event-ID", "both"])
async def test_a_stream_resumes_behind_the_event_it_is_told(client: httpx.AsyncClient, way: str) -> None:
    for _ in range(3):
        await create(client, "echo")
    path, headers = {
        "after": ("/v1/events?after=4", {}),
        "Last-Event-ID": ("/v1/events", {"Last-Event-ID": "4"}),
        "both": ("/v1/events?after=4", {"Last-Event-ID": "1"}),
    }[way]

    async with listening(client, path, headers=headers) as stream:
        frames = [await stream.must() for _ in range(5)]
        await create(client, "echo")
        frames += await stream.until("call.completed")

    assert [frame.id for frame in frames] == [5, 6, 7, 8, 9, 10, 11, 12]


async def test_a_stream_resumes_after_a_restart_without_gap_or_repeat(service: RunningService) -> None:
    frames = []
    async with listening(service.client, "/v1/events?after=0") as stream:
        await create(service.client, "echo")
        frames += await stream.until("call.completed")
    await create(service.client, "echo")
    await service.restart()
    await create(service.client, "echo")

    async with listening(service.client, "/v1/events", headers={"Last-Event-ID": str(frames[-1].id)}) as stream:
        await create(service.client, "echo")
        while frames[-1].id != 12:
            frames.append(await stream.must())

    assert [frame.id for frame in frames] == list(range(1, 13))


async def test_cuts_and_resumes_while_calls_are_made_lose_and_repeat_nothing(service: RunningService) -> None:
    dice = random.Random(7)
    is_over = asyncio.Event()

    async def work() -> None:
        while not is_over.is_set():
            await asyncio.gather(*(create(service.client, "tell", {"steps": 3}) for _ in range(dice.randrange(1, 5))))

    working = asyncio.create_task(work())
    seen: list[int] = []
    async with asyncio.timeout(HANG * 6):
        for _ in range(25):
            headers = {"Last-Event-ID": str(seen[-1] if seen else 0)}
            async with listening(service.client, "/v1/events", headers=headers) as stream:
                seen += [(await stream.must()).id or -1 for _ in range(dice.randrange(1, 20))]
        is_over.set()
        await working

    assert seen == list(range(1, len(seen) + 1))


async def test_a_stream_can_be_narrowed_to_types_and_a_session(service: RunningService) -> None:
    service.change("INSERT INTO sessions (principal, id, created_at) VALUES ('admin', 's1', 0)")
    client = service.client
    async with (
        listening(client, "/v1/events?types=call.error,%20call.progress") as by_type,
        listening(client, "/v1/events?session=s1") as by_session,
        listening(client, "/v1/events?session=s1&types=call.completed") as by_both,
    ):
        await create(client, "tell", {"steps": 1})
        await create(client, "fail", session="s1")
        await create(client, "echo", session="s1")
        one = [await by_type.must(), await by_type.must()]
        two = await by_session.until("call.completed")
        three = await by_both.must()

    assert kinds(one) == ["call.progress", "call.error"]
    assert kinds(two) == [
        "call.pending",
        "call.running",
        "call.error",
        "call.pending",
        "call.running",
        "call.completed",
    ]
    assert {frame.data["session"] for frame in two} == {"s1"}
    assert three == two[-1]


async def test_output_comes_on_the_common_stream_only_when_named(client: httpx.AsyncClient) -> None:
    async with (
        listening(client, "/v1/events") as without,
        listening(client, "/v1/events?types=call.output,call.completed") as named,
    ):
        call = await create(client, "say", {"texts": ["héllo"]})
        quiet = await without.until("call.completed")
        output, completed = await named.until("call.completed")

    assert kinds(quiet) == ["call.pending", "call.running", "call.completed"]
    assert (output.event, output.id) == ("call.output", None)
    assert output.raw.split("\n")[0] == "event: call.output"
    assert output.data["data"] == {"offset": 0, "text": "héllo", "stream": "stdout"}
    assert completed.data["call"] == output.data["call"] == call["id"]


async def test_output_on_the_common_stream_is_live_only(client: httpx.AsyncClient) -> None:
    await create(client, "say", {"texts": ["past"]})

    async with listening(client, "/v1/events?after=0&types=call.output,call.completed") as stream:
        first = await stream.must()

    assert first.event == "call.completed"


async def test_a_post_that_accepts_a_stream_gets_the_calls_own_from_pending_to_the_end(
    service: RunningService, toys: Toys
) -> None:
    body = {"tool": "wait", "arguments": {"say": "so far"}}
    async with listening(service.client, "/v1/calls", method="POST", json=body, headers=STREAM) as stream:
        first = await stream.until("call.running")
        await create(service.client, "echo")
        output = await stream.must()
        toys.go["wait"].set()
        rest = await stream.rest()

    assert kinds([*first, output, *rest]) == ["call.pending", "call.running", "call.output", "call.completed"]
    assert rest[-1].data["data"]["result"]["output"] == "wait"
    assert len({frame.data["call"] for frame in [*first, output, *rest]}) == 1


@pytest.mark.parametrize("tool", ["echo", "none", "bug"])
async def test_a_post_that_accepts_a_stream_gets_short_lives_whole(client: httpx.AsyncClient, tool: str) -> None:
    answer = await client.post("/v1/calls", json={"tool": tool}, headers=STREAM)

    frames = frames_of(answer.content)
    assert answer.status_code == 200
    assert kinds(frames)[0] == "call.pending"
    assert kinds(frames)[-1] == ("call.completed" if tool == "echo" else "call.error")
    assert [frame.id for frame in frames] == list(range(1, len(frames) + 1))


async def test_a_post_that_does_not_fit_is_a_problem_even_as_a_stream(client: httpx.AsyncClient) -> None:
    assert_problem(await client.post("/v1/calls", json={}, headers=STREAM), 422, "InvalidRequest")


async def test_the_stream_of_a_call_that_ended_replays_and_closes(client: httpx.AsyncClient) -> None:
    call = await create(client, "say", {"texts": ["a"]})
    await create(client, "echo")

    async with listening(client, f"/v1/calls/{call['id']}/events") as stream:
        frames = await stream.rest()
    async with listening(client, f"/v1/calls/{call['id']}/events", headers={"Last-Event-ID": "2"}) as stream:
        resumed = await stream.rest()

    assert kinds(frames) == ["call.pending", "call.running", "call.completed"]
    assert resumed == frames[2:]


async def test_a_calls_stream_replays_output_from_an_offset_without_repeat(service: RunningService, toys: Toys) -> None:
    call = await create(service.client, "wait", {"say": "0123456789"}, wait=0)
    await until(lambda: service.rows("SELECT * FROM outputs"))
    path = f"/v1/calls/{call['id']}/events?after=2&output_after=4"

    async with listening(service.client, path) as stream:
        replayed = await stream.must()
        await toys.contexts[0].output("more", "stderr")
        toys.go["wait"].set()
        rest = await stream.rest()

    assert replayed.data["data"] == {"offset": 4, "text": "456789", "stream": "stdout"}
    assert kinds(rest) == ["call.output", "call.completed"]
    assert rest[0].data["data"] == {"offset": 10, "text": "more", "stream": "stderr"}


async def test_a_live_frame_is_the_replayed_frame_byte_for_byte(client: httpx.AsyncClient) -> None:
    async with listening(client, "/v1/events") as stream:
        call = await create(client, "echo", {"text": "größer 😀 \u2028"})
        live = await stream.until("call.completed")

    async with listening(client, f"/v1/calls/{call['id']}/events") as stream:
        own = await stream.rest()
    async with listening(client, "/v1/events?after=0") as stream:
        replayed = await stream.until("call.completed")
    page = (await client.get("/v1/events", headers=PAGE)).json()

    assert [frame.raw for frame in live] == [frame.raw for frame in replayed] == [frame.raw for frame in own]
    assert [frame.data for frame in live] == page["data"]


async def test_stored_events_can_be_read_page_by_page(client: httpx.AsyncClient) -> None:
    for _ in range(3):
        last = await create(client, "echo")

    async def page(path: str, **params: Any) -> tuple[list[int], str | None]:
        answer = await client.get(path, params=params, headers=PAGE)
        assert answer.headers["content-type"] == "application/json"
        return [event["seq"] for event in answer.json()["data"]], answer.json()["next_cursor"]

    assert await page("/v1/events", limit=4) == ([1, 2, 3, 4], "4")
    assert await page("/v1/events", limit=4, after=4) == ([5, 6, 7, 8], "8")
    assert await page("/v1/events", limit=4, after=8) == ([9], None)
    assert await page("/v1/events", after=100) == ([], None)
    assert await page("/v1/events", types="call.completed") == ([3, 6, 9], None)
    assert await page("/v1/events", types="call.output") == ([], None)
    assert await page(f"/v1/calls/{last['id']}/events", limit=2) == ([7, 8], "8")
    assert await page(f"/v1/calls/{last['id']}/events", after=8) == ([9], None)


async def test_a_stream_asked_for_badly_is_refused(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, dict[str, str]]] = [
        ("/v1/events?types=call.finished", {}),
        ("/v1/events?types=", {}),
        ("/v1/events?types=call.completed,,call.error", {}),
        ("/v1/events?after=-1", {}),
        ("/v1/events?after=x", {}),
        ("/v1/events?limit=0", {}),
        ("/v1/events", {"Last-Event-ID": "abc"}),
    ]
    for path, headers in cases:
        with subtests.test(path=path, headers=headers):
            assert_problem(await client.get(path, headers=headers), 422, "InvalidRequest")


async def test_a_silent_stream_shows_signs_of_life(service: RunningService) -> None:
    service.settings["heartbeat"] = 0.01
    await service.restart()

    async with listening(service.client, "/v1/events") as stream:
        assert [await stream.block() for _ in range(3)] == [": keep-alive"] * 3
        await create(service.client, "echo")
        assert (await stream.must()).event == "call.pending"


async def test_streams_end_when_the_service_stops(service: RunningService) -> None:
    call = await create(service.client, "wait", wait=0)
    async with (
        listening(service.client, "/v1/events") as everything,
        listening(service.client, f"/v1/calls/{call['id']}/events?after=2") as own,
    ):
        await service.house.drain()
        assert kinds(await everything.rest()) == ["call.error"]
        assert kinds(await own.rest()) == ["call.error"]


async def test_the_stream_of_a_call_kept_for_the_next_start_ends_and_goes_on_there(service: RunningService) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    service.hooks = [hook]
    await service.restart()
    call = await create(service.client, "note", {"text": "x"}, wait=0)
    async with listening(service.client, f"/v1/calls/{call['id']}/events") as stream:
        assert kinds([await stream.must()]) == ["call.pending"]
        await service.house.drain()
        assert await stream.rest() == []
    hook.go.set()
    await service.restart()

    async with listening(service.client, f"/v1/calls/{call['id']}/events", headers={"Last-Event-ID": "1"}) as stream:
        told = ["call.hook", "call.running", "call.hook", "call.completed"]
        assert kinds(await stream.rest()) == told


async def test_a_client_that_leaves_is_forgotten(service: RunningService) -> None:
    async with listening(service.client, "/v1/events"):
        assert len(service.services.hub._all_calls) == 1

    await until(lambda: not service.services.hub._all_calls)


async def test_a_client_that_takes_nothing_is_told_that_it_lagged(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.events.subscriptions.MAX_QUEUE_BYTES", 100_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port, limit=1024)
    writer.write(f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
    await until(lambda: service.services.hub._all_calls)
    (subscription,) = service.services.hub._all_calls

    while not subscription.is_lagged:
        await create(service.client, "echo", {"text": "x" * 300_000})
    async with asyncio.timeout(HANG):
        received = await reader.read(1 << 30)
        while b"event: lagged" not in received[-400:]:
            received += await reader.read(1 << 30)
    writer.close()

    assert b"too slow; reconnect with Last-Event-ID to continue" in received
    await until(lambda: not service.services.hub._all_calls)


async def test_a_stream_that_is_given_up_closes_what_feeds_it() -> None:
    closed = asyncio.Event()
    sending = asyncio.Event()

    async def frames() -> Any:
        try:
            while True:
                yield b"data: x\n\n"
        finally:
            closed.set()

    async def receive() -> dict[str, Any]:
        await sending.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body", b"").startswith(b"data"):
            sending.set()
            await asyncio.Event().wait()

    left = []
    async with asyncio.timeout(HANG):
        await EventStream(frames(), lambda: True, on_leave=lambda: left.append(True))({}, receive, send)

    assert closed.is_set()
    assert left == [True]


async def test_what_is_large_is_handed_over_in_small_parts() -> None:
    whole = [b"a" * 10, b"b" * (3 * PIECE_BYTES + 1), b"", b"c" * PIECE_BYTES]
    bodies = list[bytes]()

    async def frames() -> Any:
        for frame in whole:
            yield frame

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        bodies.append(message.get("body", b""))

    async with asyncio.timeout(HANG):
        await EventStream(frames(), lambda: True)({}, receive, send)

    assert b"".join(bodies) == b": connected\n\n" + b"".join(whole)
    assert [len(body) for body in bodies[2:]] == [
        10,
        PIECE_BYTES,
        PIECE_BYTES,
        PIECE_BYTES,
        1,
        PIECE_BYTES,
        0,
    ]


async def test_a_client_that_takes_nothing_for_too_long_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.api.http.sse.SEND_SECONDS", 0.01)

    async def frames() -> Any:
        yield b"data: x\n\n"

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        if message.get("body", b"").startswith(b"data"):
            await asyncio.Event().wait()

    left = []
    async with asyncio.timeout(HANG):
        await EventStream(frames(), lambda: True, on_leave=lambda: left.append(True))({}, receive, send)

    assert left == [True]


async def test_a_stream_that_breaks_is_not_taken_for_one_that_was_left() -> None:
    async def frames() -> Any:
        yield b"data: x\n\n"
        raise RuntimeError("broke")

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None: ...

    left = []
    with pytest.raises(RuntimeError, match="broke"):
        await EventStream(frames(), lambda: True, on_leave=lambda: left.append(True))({}, receive, send)

    assert left == []


async def test_a_store_that_refuses_is_said_instead_of_a_stream(service: RunningService) -> None:
    service.change("CREATE TRIGGER no_calls BEFORE INSERT ON calls BEGIN SELECT RAISE(ABORT, 'disk full'); END")

    answer = await service.client.post("/v1/calls", json={"tool": "note"}, headers=STREAM)

    assert_problem(answer, 503, "NotRecorded")


async def test_many_streams_of_one_call_all_see_its_whole_life(service: RunningService, toys: Toys) -> None:
    call = await create(service.client, "wait", {"say": "x"}, wait=0)

    async def watch() -> list[str]:
        async with listening(service.client, f"/v1/calls/{call['id']}/events") as stream:
            return [frame.raw for frame in await stream.rest() if frame.id]

    watching = [asyncio.create_task(watch()) for _ in range(20)]
    await until(lambda: len(service.services.hub._by_call.get(call["id"], ())) == 20)
    toys.go["wait"].set()
    seen = [await task for task in watching]

    assert all(frames == seen[0] for frames in seen)
    assert json.loads(seen[0][-1].split("data: ")[1])["type"] == "call.completed"
