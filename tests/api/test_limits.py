"""How much the door takes in: bytes of a body, calls and streams of a key."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.http.problems import Problem
from app.api.http.sse import EventStream, StreamSlots
from app.core.principals import Key
from tests.api.test_api_calls import assert_problem, create
from tests.mcp.server_clients import mcp_client
from tests.support.mcp_wire import spoken
from tests.support.raw_http import connected, head
from tests.support.services import HANG, RunningService, listening, until
from tests.support.toy_tools import Toys

LIMIT = 5000
KEY = Key("key", "ann", "", frozenset(), "", 0)
STREAM = {"Accept": "text/event-stream"}


@pytest.fixture
async def small(data_dir: Path, toys: Toys) -> AsyncIterator[RunningService]:
    """A service that takes little."""
    service = RunningService(data_dir, toys, body_limit=LIMIT, calls_per_key=3, calls_limit=5, streams_per_key=2)
    await service.open()
    yield service
    await service.close()


@pytest.fixture
async def other(small: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """A client with another key."""
    made = await small.client.post("/v1/keys", json={"principal": "ci"})
    async with small.client_of(made.json()["token"]) as client:
        yield client


def call_of(size: int) -> bytes:
    """A call whose body has exactly this many bytes."""
    body = b'{"tool":"echo","arguments":{"text":"%s"}}'
    return body % (b"x" * (size - len(body) + 2))


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    """Sent in chunks, so that no length is told."""
    for start in range(0, len(content), 1000):
        yield content[start : start + 1000]


async def test_a_body_is_taken_up_to_the_limit(small: RunningService, subtests: pytest.Subtests) -> None:
    for is_chunked in [False, True]:
        for path in ["/v1/calls", "/v1/calls/batch", "/v1/keys", "/mcp"]:
            with subtests.test(is_chunked=is_chunked, path=path):
                headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
                for size in (LIMIT, LIMIT + 1):
                    content = call_of(size)
                    answer = await small.client.post(
                        path, content=pieces(content) if is_chunked else content, headers=headers
                    )
                    if size > LIMIT:
                        assert assert_problem(answer, 413, "BodyTooLarge") == f"A body may have {LIMIT} bytes at most."
                    else:
                        assert answer.status_code == {"/v1/calls": 200, "/mcp": 400}.get(path, 422)


async def test_a_body_that_nobody_reads_has_the_limit_too(small: RunningService, subtests: pytest.Subtests) -> None:
    for path in ["/v1/tools", "/healthz", "/v1/events", "/nowhere", "/docs", "/mcp"]:
        with subtests.test(path=path):
            answer = await small.client.request("GET", path, content=b"x" * (LIMIT + 1))

            assert_problem(answer, 413, "BodyTooLarge")


async def test_a_length_that_is_too_much_is_refused_before_a_byte_of_it_is_sent(small: RunningService) -> None:
    async with connected(small.port) as line:
        await line.send(head("POST /v1/calls", "Content-Length: 999999999999"))
        answer = await line.last_answer()

    assert (answer.status, answer.code) == (413, "BodyTooLarge")


async def test_who_sends_without_end_instead_of_listening_is_let_go(small: RunningService) -> None:
    async with connected(small.port) as line:
        await line.send(head("GET /v1/events", "Transfer-Encoding: chunked"))
        assert (await line.answer()).status == 200
        await line.flood(b"1000\r\n" + b"x" * 4096 + b"\r\n")

    await until(lambda: not small.services.stream_slots.taken and not small.services.hub._all_calls)


async def test_a_packed_body_is_not_unpacked(small: RunningService) -> None:
    content = gzip.compress(b'{"tool":"echo"}')

    for path in ("/v1/calls", "/v1/keys", "/mcp"):
        answer = await small.client.post(path, content=content, headers={"Content-Encoding": "gzip"})
        assert_problem(answer, 415, "UnsupportedEncoding")
    plain = await small.client.post("/v1/calls", json={"tool": "echo"}, headers={"Content-Encoding": "identity"})
    assert plain.status_code == 200
    assert (await small.client.get("/v1/tools", headers={"Content-Encoding": "gzip"})).status_code == 200


async def test_a_key_has_room_for_so_many_calls(small: RunningService, other: httpx.AsyncClient, toys: Toys) -> None:
    for _ in range(3):
        await create(small.client, "wait_free", wait=0)

    answer = await small.client.post("/v1/calls", json={"tool": "echo"})
    others = await other.post("/v1/calls", json={"tool": "echo"})

    assert assert_problem(answer, 429, "TooManyCalls").startswith("A key may have 3 calls under way")
    assert answer.headers["retry-after"] == "1"
    assert others.status_code == 200
    assert len(small.rows("SELECT * FROM calls")) == 4
    toys.go["wait"].set()
    await until(lambda: not len(small.services.dispatcher.live_calls))
    assert (await small.client.post("/v1/calls", json={"tool": "echo"})).status_code == 200


async def test_the_service_has_room_for_so_many_calls(
    small: RunningService, other: httpx.AsyncClient, toys: Toys
) -> None:
    for client in (small.client, small.client, small.client, other, other):
        await create(client, "wait_free", wait=0)

    answer = await other.post("/v1/calls", json={"tool": "echo"}, headers=STREAM)

    assert_problem(answer, 503, "Overloaded")
    assert answer.headers["retry-after"] == "1"
    assert not small.services.stream_slots.taken
    toys.go["wait"].set()


async def test_a_batch_is_let_in_whole_or_not_at_all(small: RunningService) -> None:
    answer = await small.client.post("/v1/calls/batch", json={"calls": [{"tool": "echo"}] * 4})
    fits = await small.client.post("/v1/calls/batch", json={"calls": [{"tool": "echo"}] * 3})

    assert_problem(answer, 429, "TooManyCalls")
    assert answer.headers["retry-after"] == "1"
    assert fits.status_code == 200
    assert len(small.rows("SELECT * FROM calls")) == 3


async def test_a_model_is_told_that_there_is_no_room(small: RunningService, toys: Toys) -> None:
    for _ in range(3):
        await create(small.client, "wait_free", wait=0)

    async with mcp_client(small, "auto") as client:
        refused = await client.call_tool("echo", {"text": "hi"})
        toys.go["wait"].set()
        await until(lambda: not len(small.services.dispatcher.live_calls))
        answer = await client.call_tool("echo", {"text": "hi"})

    assert (refused.is_error, answer.is_error) == (True, False)
    [block] = refused.content
    assert block.type == "text"
    assert block.text.startswith("Overloaded: A key may have 3 calls under way")
    assert len(small.rows("SELECT * FROM calls")) == 4


async def test_repeats_beyond_the_limit_run_nothing_twice(small: RunningService, toys: Toys) -> None:
    headers = {"Idempotency-Key": "once"}
    posts = [
        small.client.post("/v1/calls", json={"tool": "wait_free"}, headers=headers, params={"wait": 5})
        for _ in range(30)
    ]
    waiting = asyncio.gather(*posts)
    await small.started("wait")
    toys.go["wait"].set()
    answers = await waiting
    again = await small.client.post("/v1/calls", json={"tool": "wait_free"}, headers=headers)

    assert {answer.status_code for answer in answers} <= {200, 429}
    assert {answer.json()["id"] for answer in answers if answer.status_code == 200} == {again.json()["id"]}
    assert toys.log == ["wait in", "wait out"]
    assert len(small.rows("SELECT * FROM calls")) == 1


async def test_a_key_has_room_for_so_many_streams(small: RunningService, other: httpx.AsyncClient, toys: Toys) -> None:
    call = await create(small.client, "wait_free", wait=0)
    own = f"/v1/calls/{call['id']}/events"
    async with listening(small.client, "/v1/events"), listening(small.client, own):
        for method, path in [("GET", "/v1/events"), ("GET", own), ("POST", "/v1/calls"), ("GET", "/mcp")]:
            answer = await small.client.request(method, path, json={"tool": "echo"}, headers=STREAM)
            assert_problem(answer, 429, "TooManyStreams")
            assert answer.headers["retry-after"] == "1"
        assert (await small.client.get("/v1/events", headers={"Accept": "application/json"})).status_code == 200
        async with listening(other, "/v1/events"):
            pass
    await until(lambda: not small.services.stream_slots.taken)

    assert len(small.rows("SELECT * FROM calls")) == 1
    toys.go["wait"].set()


async def test_the_stream_of_a_post_and_of_mcp_take_room_too(small: RunningService, toys: Toys) -> None:
    async with (
        listening(small.client, "/v1/calls", method="POST", json={"tool": "wait_free"}, headers=STREAM) as stream,
        small.client.stream("POST", "/mcp", **spoken("subscriptions/listen", {"notifications": {}})) as silent,
    ):
        assert silent.status_code == 200
        assert sum(small.services.stream_slots.taken.values()) == 2
        assert_problem(await small.client.get("/v1/events"), 429, "TooManyStreams")
        toys.go["wait"].set()
        await stream.rest()
        await until(lambda: sum(small.services.stream_slots.taken.values()) == 1)
    await until(lambda: not small.services.stream_slots.taken)


async def test_a_stream_that_came_to_nothing_gives_its_room_back(small: RunningService) -> None:
    for _ in range(5):
        refused = await small.client.post("/v1/calls", json={"tool": 1}, headers=STREAM)
        assert_problem(refused, 422, "InvalidRequest")
    headers = STREAM | {"Idempotency-Key": "k"}
    await small.client.post("/v1/calls", json={"tool": "echo"}, headers={"Idempotency-Key": "k"})
    for _ in range(5):
        assert_problem(
            await small.client.post("/v1/calls", json={"tool": "note"}, headers=headers), 409, "IdempotencyConflict"
        )
    small.change("CREATE TRIGGER no_calls BEFORE INSERT ON calls BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    for _ in range(5):
        refused = await small.client.post("/v1/calls", json={"tool": "echo"}, headers=STREAM)
        assert refused.status_code == 503

    assert not small.services.stream_slots.taken


async def test_clients_that_break_off_give_their_room_back(small: RunningService) -> None:
    for _ in range(5):
        async with connected(small.port) as line:
            await line.send(head("GET /v1/events"))
            assert (await line.answer()).status == 200
            line.writer.transport.abort()
        await until(lambda: not small.services.stream_slots.taken)


class TestSlots:
    """Without a service around them."""

    @staticmethod
    async def frames() -> Any:
        while True:
            yield b"data: x\n\n"

    @staticmethod
    async def never() -> Any:
        await asyncio.Event().wait()

    async def test_a_stream_that_never_began_takes_no_room(self) -> None:
        slots = StreamSlots(1)

        EventStream(self.frames(), lambda: True, slot=slots.slot(KEY))

        assert not slots.taken

    async def test_room_taken_before_is_kept_and_given_back_once(self) -> None:
        slots = StreamSlots(1)
        slot = slots.slot(KEY).take()

        with pytest.raises(Problem, match="1 event streams open"):
            slots.slot(KEY).take()
        with slot:
            assert slots.taken == {"key": 1}
        slot.release()

        assert not slots.taken

    async def test_a_client_that_takes_nothing_gives_its_room_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("app.api.http.sse.SEND_SECONDS", 0.01)
        slots = StreamSlots(1)

        async def send(message: Any) -> None:
            if message.get("body", b"").startswith(b"data"):
                assert slots.taken == {"key": 1}
                await asyncio.Event().wait()

        async with asyncio.timeout(HANG):
            await EventStream(self.frames(), lambda: True, slot=slots.slot(KEY))({}, self.never, send)

        assert not slots.taken

    @pytest.mark.parametrize("where", ["http.response.start", "http.response.body"])
    async def test_a_stream_that_is_canceled_gives_its_room_back(self, where: str) -> None:
        slots, reached = StreamSlots(1), asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == where:
                reached.set()
                await asyncio.Event().wait()

        stream = EventStream(self.frames(), lambda: True, slot=slots.slot(KEY))
        task = asyncio.create_task(stream({}, self.never, send))
        await reached.wait()
        assert slots.taken == {"key": 1}
        task.cancel()
        await asyncio.wait([task])

        assert not slots.taken


async def test_the_limits_are_told_in_the_document(small: RunningService) -> None:
    paths = (await small.client.get("/openapi.json")).json()["paths"]
    told = {
        (path, method): {status for status in operation["responses"] if status >= "400"}
        for path, operations in paths.items()
        for method, operation in operations.items()
    }

    for statuses in told.values():
        assert {"400", "408", "413", "431"} <= statuses
    for (path, _), statuses in told.items():
        assert path in ("/healthz", "/readyz") or {"401", "503"} <= statuses
    assert {key for key, statuses in told.items() if "429" in statuses} == {
        ("/v1/calls", "post"),
        ("/v1/calls/batch", "post"),
        ("/v1/calls/{id}/events", "get"),
        ("/v1/events", "get"),
        ("/v1/mcp/prompts", "post"),
        ("/v1/mcp/resources/read", "get"),
        ("/v1/run/{name}", "post"),
        ("/v1/sessions/{id}/files", "get"),
        *(("/v1/sessions/{id}/files/{path}", method) for method in ("get", "head", "put", "delete")),
    }
    assert "the last wins" in paths["/v1/calls"]["post"]["description"]
    assert "Retry-After" in json.dumps(paths["/v1/calls"]["post"]["responses"]["429"])
