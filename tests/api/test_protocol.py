"""HTTP on the wire: what is too large, too slow or no HTTP ends with an answer, and costs nobody else anything."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.api.http.protocol import LINGER_BYTES, MAX_PIPELINED, MAX_URL_BYTES, LimitedProtocol
from tests.support.raw_http import Line, connected, door, head, post
from tests.support.services import HANG, RunningService, listening, until
from tests.support.toy_tools import Toys

HEALTH = head("GET /healthz")
ECHO = b'{"tool":"echo","arguments":{"text":"hi"}}'
SOON = 0.2


@pytest.fixture
async def hasty(data_dir: Path, toys: Toys) -> AsyncIterator[RunningService]:
    """A service that waits a moment only."""
    service = RunningService(data_dir, toys, read_timeout=SOON, heartbeat=0.05)
    await service.open()
    yield service
    await service.close()


def connection_of(service: RunningService) -> LimitedProtocol:
    [connection] = service._server.server_state.connections
    assert isinstance(connection, LimitedProtocol)
    return connection


async def echo_app(scope: Any, receive: Any, send: Any) -> None:
    """Says how many bytes of body came, and what headers."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    names = [[name.decode(), value.decode("latin-1")] for name, value in scope["headers"]]
    said = json.dumps({"size": size, "headers": names}).encode()
    length = (b"content-length", str(len(said)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": said})


async def test_spaces_and_tabs_around_header_values_are_nothing() -> None:
    async with door(echo_app) as at, connected(at.port) as line:
        await line.send(b"GET / HTTP/1.1\r\nHost:\t localhost \t\r\nX:a \t b\t \r\nEmpty: \t\r\n\r\n")
        answer = await line.answer()

    assert json.loads(answer.content)["headers"] == [["host", "localhost"], ["x", "a \t b"], ["empty", ""]]


async def test_as_many_headers_as_allowed_and_not_one_more() -> None:
    async with door(echo_app, header_count=10) as at:
        async with connected(at.port) as line:
            await line.send(head("GET /", *(f"X-{n}: {n}" for n in range(8))))
            assert len(json.loads((await line.answer()).content)["headers"]) == 10
        async with connected(at.port) as line:
            await line.send(head("GET /", *(f"X-{n}: {n}" for n in range(9))))
            refused = await line.last_answer()

    assert (refused.status, refused.code) == (431, "HeadersTooLarge")


async def test_as_many_bytes_of_headers_as_allowed_and_no_more() -> None:
    async with door(echo_app, header_limit=1000) as at:
        for size, status in [(800, 200), (1000, 431), (100_000, 431)]:
            async with connected(at.port) as line:
                await line.send(head("GET /", f"X: {'x' * size}"))
                assert (await line.answer()).status == status


@pytest.mark.parametrize(
    ("begin", "piece", "status"),
    [
        (b"GET / HTTP/1.1\r\nX: ", b"x" * 1000, 431),
        (b"GET / HTTP/1.1\r\n", b"x" * 1000, 431),
        (b"GET / HTTP/1.1\r\n", b"X: y\r\n", 431),
        (b"GET /", b"x" * 1000, 414),
        (b"", b"\r\n" * 500, 431),
        (b"", b"A" * 1000, 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * 1000, 431),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ", b"x" * 1000, 431),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1;" + b"x" * 1000 + b"\r\na\r\n", 400),
    ],
    ids=["value", "name", "headers", "url", "empty lines", "method", "extension", "trailer", "framing"],
)
async def test_what_never_ends_is_refused_while_it_comes(begin: bytes, piece: bytes, status: int) -> None:
    async with door(echo_app, header_limit=20_000) as at, connected(at.port) as line:
        await line.send(begin)
        flooding = asyncio.create_task(line.flood(piece))
        answer = await line.answer()
        await flooding
        await until(lambda: not at.connections)

    assert answer.status == status
    assert answer.code


async def test_a_url_has_a_length(service: RunningService) -> None:
    for size, status in [(MAX_URL_BYTES - 10, 404), (MAX_URL_BYTES, 414), (10 * MAX_URL_BYTES, 414)]:
        async with connected(service.port) as line:
            await line.send(head(f"GET /{'x' * size}"))
            answer = await line.answer()
            assert (answer.status, answer.code) == (status, "NotFound" if status == 404 else "UriTooLong")


async def test_a_connection_that_says_nothing_is_closed_without_a_word(hasty: RunningService) -> None:
    async with connected(hasty.port) as line:
        assert await line.rest() == b""


@pytest.mark.parametrize("begun", [b"G", HEALTH[:-2], b"GET /healthz HTTP/1.1\r\nHost: loc"])
async def test_a_head_that_stays_unfinished_is_answered_and_closed(hasty: RunningService, begun: bytes) -> None:
    async with connected(hasty.port) as line:
        await line.send(begun)
        answer = await line.last_answer()

    assert (answer.status, answer.code) == (408, "RequestTimeout")


async def test_a_head_that_drips_gets_no_more_time(hasty: RunningService) -> None:
    async with connected(hasty.port) as line:
        await line.send(b"GET / HTTP/1.1\r\n")
        dripping = asyncio.create_task(drip(line, b"X: y\r\n"))
        answer = await line.last_answer()
        await dripping

    assert (answer.status, answer.code) == (408, "RequestTimeout")


async def test_the_next_request_of_a_connection_has_a_deadline_too(hasty: RunningService) -> None:
    async with connected(hasty.port) as line:
        await line.send(HEALTH)
        assert (await line.answer()).status == 200
        await line.send(b"GET /")

        assert (await line.last_answer()).status == 408


async def test_empty_lines_do_not_keep_a_connection_open(hasty: RunningService) -> None:
    async with connected(hasty.port) as line:
        await line.send(HEALTH)
        assert (await line.answer()).status == 200
        dripping = asyncio.create_task(drip(line, b"\r\n"))

        assert await line.rest() == b""
        await dripping


async def test_a_body_that_stays_unfinished_is_answered_and_is_no_call(hasty: RunningService) -> None:
    async with connected(hasty.port) as line:
        await line.send(post(ECHO)[:-1])
        answer = await line.last_answer()

    assert (answer.status, answer.code) == (408, "RequestTimeout")
    assert hasty.rows("SELECT * FROM calls") == []


async def test_a_body_that_drips_is_too_slow(hasty: RunningService) -> None:
    async with connected(hasty.port) as line:
        await line.send(head("POST /v1/calls", "Content-Length: 100000"))
        dripping = asyncio.create_task(drip(line, b" "))
        answer = await line.last_answer()
        await dripping

    assert (answer.status, answer.code) == (408, "RequestTimeout")


async def test_a_body_that_makes_headway_may_take_long() -> None:
    async with door(echo_app, read_timeout=SOON) as at, connected(at.port) as line:
        await line.send(head("POST /", f"Content-Length: {12 * 16_384}"))
        for _ in range(12):
            await asyncio.sleep(SOON / 4)
            await line.send(b"x" * 16_384)

        assert json.loads((await line.answer()).content)["size"] == 12 * 16_384


async def test_time_in_which_we_do_not_read_is_not_counted() -> None:
    go = asyncio.Event()

    async def late_app(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await echo_app(scope, receive, send)

    async with door(late_app, read_timeout=SOON / 4) as at, connected(at.port) as line:
        await line.send(head("POST /", "Content-Length: 200000") + b"x" * 150_000)
        await until(lambda: at.connections and at.connections[0].flow.read_paused)
        await asyncio.sleep(SOON)
        go.set()
        await line.send(b"x" * 50_000)

        assert json.loads((await line.answer()).content)["size"] == 200_000


async def test_a_request_that_comes_whole_meets_no_timer(service: RunningService, toys: Toys) -> None:
    async with connected(service.port) as line:
        await line.send(HEALTH)
        await line.answer()
        await line.send(post(b'{"tool":"wait"}'))
        await service.started("wait")
        assert connection_of(service)._timer is None
        toys.go["wait"].set()
        assert (await line.answer()).status == 200
        assert connection_of(service)._timer is None


async def test_a_request_that_comes_in_two_pieces_keeps_its_connection(service: RunningService) -> None:
    request = post(ECHO)
    async with connected(service.port) as line:
        for cut in (10, len(request) - len(ECHO), len(request) - 1):
            await line.send(request[:cut])
            await until(lambda: service._server.server_state.connections and connection_of(service)._timer)
            await line.send(request[cut:])
            answer = await line.answer()
            assert answer.status == 200
            assert "connection" not in answer.headers
            assert connection_of(service)._timer is None


async def test_a_call_may_take_longer_than_its_request(hasty: RunningService, toys: Toys) -> None:
    async with connected(hasty.port) as line:
        await line.send(post(b'{"tool":"wait"}')[:-1])
        await until(lambda: hasty._server.server_state.connections and connection_of(hasty)._timer)
        await line.send(b"}")
        await hasty.started("wait")
        await asyncio.sleep(SOON * 2)
        toys.go["wait"].set()

        assert (await line.answer()).status == 200


async def test_a_stream_lives_on(hasty: RunningService) -> None:
    async with listening(hasty.client, "/v1/events") as stream:
        for _ in range(10):
            assert await stream.block() == ": keep-alive"


async def test_a_stream_lives_on_even_if_its_request_never_ends(hasty: RunningService) -> None:
    async with connected(hasty.port) as line:
        await line.send(head("GET /v1/events", "Content-Length: 5") + b"x")
        assert (await line.answer()).status == 200
        async with asyncio.timeout(HANG):
            for _ in range(10):
                await line.reader.readuntil(b": keep-alive")
        assert not connection_of(hasty).flow.read_paused  # or nobody would see the client go


async def test_what_is_no_http_is_a_problem_like_any_other(service: RunningService, subtests: pytest.Subtests) -> None:
    cases: list[bytes] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nNo colon\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        head("POST /v1/calls", "Content-Length: -1"),
        head("POST /v1/calls", "Content-Length: 1", "Content-Length: 2"),
        head("POST /v1/calls", "Content-Length: 1", "Transfer-Encoding: chunked"),
        head("POST /v1/calls", "Content-Length: 99999999999999999999999"),
        head("POST /v1/calls", "Transfer-Encoding: chunked") + b"no size\r\n",
        head("POST /v1/calls", "Transfer-Encoding: gzip") + b"x",
    ]
    for request_ in cases:
        with subtests.test(request_=request_):
            async with connected(service.port) as line:
                await line.send(request_)
                answer = await line.last_answer()

            assert answer.status == 400
            assert answer.code in ("MalformedRequest", "UpgradeNotSupported")
            assert service.rows("SELECT * FROM calls") == []


async def test_a_websocket_is_refused(service: RunningService) -> None:
    wish = (
        "Connection: keep-alive, Upgrade",
        "Upgrade: WebSocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: x",
    )
    async with connected(service.port) as line:
        await line.send(head("GET /v1/events", *wish))
        answer = await line.last_answer()

    assert (answer.status, answer.code) == (400, "UpgradeNotSupported")


async def test_the_wish_for_another_protocol_is_ignored_and_the_body_is_read(service: RunningService) -> None:
    wish = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP")
    async with connected(service.port) as line:
        for cut in (None, -5):
            request = post(ECHO, *wish)
            await line.send(request[:cut])
            if cut:
                await until(lambda: connection_of(service)._timer)
                await line.send(request[cut:])
            answer = await line.answer()
            assert (answer.status, json.loads(answer.content)["result"]["output"]) == (200, "hi")
        await line.send(head("GET /healthz", *wish) + b"what\r\n\r\n")
        assert (await line.answer()).status == 200
        assert (await line.answer()).status == 400


async def test_wishes_for_other_protocols_in_a_row_break_nothing(service: RunningService) -> None:
    wish = head("GET /healthz", "Connection: Upgrade", "Upgrade: h2c")
    async with connected(service.port) as line:
        await line.send(wish * 100)
        assert (await line.answer()).status == 200
        assert (await line.last_answer()).status == 400


async def test_a_trailer_is_not_a_header(service: RunningService) -> None:
    async with connected(service.port) as line:
        chunks = b"%x\r\n%s\r\n0\r\nToolcrib-Session: nowhere\r\n\r\n" % (len(ECHO), ECHO)
        await line.send(head("POST /v1/calls", "Transfer-Encoding: chunked") + chunks + HEALTH)

        assert (await line.answer()).status == 200
        assert (await line.answer()).status == 200


async def test_requests_in_a_row_are_answered_in_a_row(service: RunningService) -> None:
    async with connected(service.port) as line:
        await line.send(post(ECHO) + HEALTH + post(ECHO) + head("GET /nowhere"))

        assert [(await line.answer()).status for _ in range(4)] == [200, 200, 200, 404]


async def test_only_so_many_requests_wait_on_one_connection(service: RunningService) -> None:
    async with connected(service.port) as line:
        await line.send(HEALTH * 1000)
        answered = [(await line.answer()).status for _ in range(MAX_PIPELINED + 1)]
        refused = await line.last_answer()

    assert answered == [200] * (MAX_PIPELINED + 1)
    assert (refused.status, refused.code) == (400, "MalformedRequest")


async def test_small_chunks_of_a_request_are_not_held_against_the_next(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.http.protocol.MAX_FRAMING_BYTES", 10)
    request = head("POST /v1/calls", "Transfer-Encoding: chunked")
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in ECHO) + b"0\r\n\r\n"
    async with connected(service.port) as line:
        await line.send(request)
        await until(lambda: service._server.server_state.connections and connection_of(service).cycle)
        await line.send(chunks + HEALTH[:10])
        assert (await line.answer()).status == 200
        await line.send(HEALTH[10:])
        assert (await line.answer()).status == 200


async def test_what_is_no_http_behind_a_request_is_answered_behind_it(service: RunningService, toys: Toys) -> None:
    async with connected(service.port) as line:
        await line.send(post(b'{"tool":"wait"}') + HEALTH + b"what\r\n\r\n")
        await service.started("wait")
        toys.go["wait"].set()

        assert [(await line.answer()).status for _ in range(2)] == [200, 200]
        assert (await line.last_answer()).status == 400


async def test_a_slow_body_behind_a_request_is_answered_behind_it(hasty: RunningService, toys: Toys) -> None:
    async with connected(hasty.port) as line:
        await line.send(post(b'{"tool":"wait"}') + post(ECHO)[:-1])
        await hasty.started("wait")
        connection = connection_of(hasty)
        connection.flow.resume_reading()
        connection.flow.was_paused = False
        await until(lambda: connection._queued_problem)
        toys.go["wait"].set()

        assert (await line.answer()).status == 200
        assert (await line.last_answer()).status == 408
    assert len(hasty.rows("SELECT * FROM calls")) == 1


async def test_a_stream_ends_with_its_client_even_if_requests_wait_behind_it(service: RunningService) -> None:
    async with connected(service.port) as line:
        await line.send(head("GET /v1/events") + HEALTH)
        assert (await line.answer()).status == 200
        await until(lambda: service.services.hub._all_calls)
        connection_of(service).flow.resume_reading()

    await until(lambda: not service.services.hub._all_calls)
    await until(lambda: not service.services.stream_slots.taken)


@pytest.mark.parametrize("framing", ["Content-Length: 8000000", "Transfer-Encoding: chunked"])
async def test_an_answer_before_the_end_of_a_request_closes_the_connection(
    service: RunningService, framing: str
) -> None:
    async with connected(service.port) as line:
        await line.send(head("POST /v1/calls", framing, key=None))
        flooding = asyncio.create_task(line.flood(b"10000\r\n" + b"x" * 65_536 + b"\r\n"))
        answer = await line.answer()
        await flooding
        await until(lambda: not service._server.server_state.connections)

    assert (answer.status, answer.headers["connection"]) == (401, "close")


def send_all_then_read(port: int, head: bytes, size: int) -> tuple[int, bytes]:
    """What a simple client does: it does not look for the answer before it has sent everything it can."""
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=HANG * 4) as client:
        client.sendall(head)
        with suppress(OSError):
            while sent < size:
                client.sendall(b"x" * 65_536)
                sent += 65_536
        return sent, read_all(client)


def read_all(client: socket.socket) -> bytes:
    got = b""
    with suppress(OSError):
        while piece := client.recv(65_536):
            got += piece
    return got


@pytest.mark.parametrize(("size", "status"), [(1 << 20, 401), (10 << 20, 413), (100 << 20, 413)])
async def test_a_client_that_only_sends_can_still_read_its_answer(
    service: RunningService, size: int, status: int
) -> None:
    request = head("POST /v1/calls", f"Content-Length: {size}", key=None)

    sent, answer = await asyncio.to_thread(send_all_then_read, service.port, request, size)

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.endswith(b"}")
    assert sent == size or size > LINGER_BYTES
    assert sent < LINGER_BYTES * 2


async def test_a_client_that_waits_for_a_go_is_told_no_at_once(service: RunningService) -> None:
    async with connected(service.port) as line:
        await line.send(head("POST /v1/calls", "Content-Length: 1000000000", "Expect: 100-continue"))

        assert (await line.last_answer()).status == 413


async def test_a_body_that_was_waited_for_runs_the_call(service: RunningService) -> None:
    async with connected(service.port) as line:
        await line.send(post(ECHO, "Expect: 100-continue")[: -len(ECHO)])
        assert (await line.answer()).status == 100
        await line.send(ECHO)

        assert (await line.answer()).status == 200


async def test_a_service_that_stops_closes_what_is_only_begun(service: RunningService) -> None:
    async with connected(service.port) as begun, connected(service.port) as silent:
        await begun.send(HEALTH[:-2])
        await until(lambda: len(service._server.server_state.connections) == 2)
        await until(lambda: any(getattr(one, "scope", None) for one in service._server.server_state.connections))
        await service.close()

        assert await begun.rest() == await silent.rest() == b""


async def test_slow_clients_are_let_go_while_others_are_served(hasty: RunningService) -> None:
    async with asyncio.TaskGroup() as group:
        slow = [group.create_task(slow_client(hasty.port, number)) for number in range(60)]
        for _ in range(20):
            assert (await hasty.client.post("/v1/calls", content=ECHO)).status_code == 200

    assert [task.result() for task in slow] == [408] * 60


async def slow_client(port: int, number: int) -> int:
    async with connected(port) as line:
        await line.send(HEALTH[:-1] if number % 2 else post(ECHO)[:-1])
        return (await line.last_answer()).status


async def drip(line: Line, piece: bytes) -> None:
    with suppress(OSError):
        async with asyncio.timeout(HANG):
            while not line.reader.at_eof():
                await line.send(piece)
                await asyncio.sleep(SOON / 10)
