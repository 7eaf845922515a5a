"""The access log, as the service writes it: JSON lines, one for each request."""

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from app import logs
from app.api.http.sse import EventStream
from app.core.redaction import Redactor
from tests.api.test_api_access import new_key
from tests.support.mcp_wire import called
from tests.support.services import HANG, KEY, RunningService, listening, until

LOGGER = "app.access"
EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Everything the process logs, in the form a service under systemd or in a container writes it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure("info", "json", Redactor(), stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def lines_of(written: io.StringIO) -> list[dict[str, Any]]:
    every = (json.loads(line) for line in written.getvalue().splitlines())
    return [line for line in every if line["logger"] == LOGGER]


async def last_line(written: io.StringIO, count: int = 1) -> dict[str, Any]:
    """The newest line, once there are so many; a line may come a moment after its answer."""
    await until(lambda: len(lines_of(written)) >= count)
    lines = lines_of(written)
    assert len(lines) == count
    return lines[-1]


async def test_a_request_is_one_line_with_what_came_of_it(service: RunningService, written: io.StringIO) -> None:
    answer = await service.client.get("/v1/tools")

    line = await last_line(written)
    ms = line.pop("ms")
    assert isinstance(ms, float)
    assert line.pop("at").endswith("Z")
    assert line == {
        "level": "info",
        "logger": LOGGER,
        "message": f"127.0.0.1 GET /v1/tools 200 {len(answer.content)} B {ms} ms",
        "method": "GET",
        "path": "/v1/tools",
        "status": 200,
        "bytes": len(answer.content),
        "client": "127.0.0.1",
    }


async def test_a_new_call_is_named_by_the_request_that_made_it(service: RunningService, written: io.StringIO) -> None:
    call = (await service.client.post("/v1/calls", json={"tool": "echo"})).json()

    line = await last_line(written)
    assert (line["method"], line["path"], line["status"], line["call"]) == ("POST", "/v1/calls", 200, call["id"])


async def test_a_repeat_names_the_call_that_came_first(service: RunningService, written: io.StringIO) -> None:
    for _ in range(2):
        answer = await service.client.post("/v1/calls", json={"tool": "echo"}, headers={"Idempotency-Key": "one"})

    assert (await last_line(written, 2))["call"] == answer.json()["id"]


async def test_a_batch_names_all_its_calls(service: RunningService, written: io.StringIO) -> None:
    answer = await service.client.post("/v1/calls/batch", json={"calls": [{"tool": "echo"}, {"tool": "fail"}]})

    assert (await last_line(written))["call"] == [call["id"] for call in answer.json()["data"]]


@pytest.mark.parametrize("path", ["", "/output", "/cancel"])
async def test_a_request_about_a_call_names_it(service: RunningService, written: io.StringIO, path: str) -> None:
    call = (await service.client.post("/v1/calls", json={"tool": "echo"})).json()["id"]

    await service.client.request("POST" if path == "/cancel" else "GET", f"/v1/calls/{call}{path}")

    line = await last_line(written, 2)
    assert (line["path"], line["call"]) == (f"/v1/calls/{call}{path}", call)


async def test_a_call_over_mcp_is_named(service: RunningService, written: io.StringIO) -> None:
    answer = await service.client.post("/mcp", **called("echo"))

    assert answer.status_code == 200, answer.text
    [call] = service.rows("SELECT id FROM calls")
    assert (await last_line(written))["call"] == call["id"]


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        pytest.param(lambda client: client.get("/v1/calls", headers={"Authorization": "Bearer no"}), 401, id="no key"),
        pytest.param(lambda client: client.post("/v1/calls", content=b"{"), 400, id="no JSON on the hot route"),
        pytest.param(lambda client: client.post("/v1/calls", json={"tool": ""}), 422, id="does not fit"),
        pytest.param(lambda client: client.get("/nowhere"), 404, id="no route"),
        pytest.param(lambda client: client.get("/v1/tools", headers={"Host": "evil.example"}), 403, id="host"),
    ],
)
async def test_a_request_that_is_refused_is_logged_too(
    service: RunningService, written: io.StringIO, ask: Callable[[httpx.AsyncClient], Any], status: int
) -> None:
    answer = await ask(service.client)

    line = await last_line(written)
    assert (answer.status_code, line["status"], line["bytes"]) == (status, status, len(answer.content))
    assert "call" not in line


async def test_a_bug_in_a_route_is_logged_as_the_500_it_became(
    service: RunningService, written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.services.dispatcher.registry, "all", lambda principal: 1 / 0)

    answer = await service.client.get("/v1/tools")

    assert (answer.status_code, (await last_line(written))["status"]) == (500, 500)


async def test_neither_a_query_nor_a_key_comes_into_the_log(service: RunningService, written: io.StringIO) -> None:
    await service.client.get("/v1/calls", params={"ticket": "very-secret", "limit": 1})
    await service.client.get("/v1/calls?ticket=very-secret%zz")
    await last_line(written, 2)

    assert [line["path"] for line in lines_of(written)] == ["/v1/calls", "/v1/calls"]
    assert "very-secret" not in written.getvalue()
    assert KEY not in written.getvalue()


async def test_a_path_can_neither_break_the_line_nor_fill_the_log(
    service: RunningService, written: io.StringIO
) -> None:
    paths = ["/a%0Ab%1B[31m", "/" + "x" * 5000, "/é"]
    for path in paths:
        await service.client.get(path)
    await last_line(written, 3)

    told = [line["path"] for line in lines_of(written)]
    assert told == ["/a%0Ab%1B[31m", "/" + "x" * 511 + "...", "/%C3%A9"]
    assert all(path.isascii() and path.isprintable() for path in told)


async def test_bytes_that_do_not_belong_in_a_path_are_escaped(service: RunningService, written: io.StringIO) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(b"GET /a\xff\x80 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(HANG):
        answer = await reader.read()
    writer.close()

    if b" 404 " in answer.partition(b"\r\n")[0]:  # a stricter parser refuses it before there is a request
        assert (await last_line(written))["path"] == "/a%FF%80"
    else:
        assert b" 400 " in answer.partition(b"\r\n")[0]


async def test_a_stream_is_logged_when_it_ends(service: RunningService, written: io.StringIO) -> None:
    body = {"tool": "wait", "arguments": {"name": "x"}}
    async with listening(service.client, "/v1/calls", method="POST", json=body, headers=EVENTS) as stream:
        await service.started("x")
        before = lines_of(written)
        service.toys.go["x"].set()
        [*_, end] = await stream.rest()

    line = await last_line(written)
    assert before == []
    assert (line["status"], line["call"]) == (200, end.data["call"])
    assert line["bytes"] > 100


async def test_a_stream_whose_client_went_away_is_logged_then(service: RunningService, written: io.StringIO) -> None:
    call = service.submit("wait", {"name": "x"})
    await service.started("x")
    async with listening(service.client, f"/v1/calls/{call.call.id}/events"):
        assert lines_of(written) == []

    line = await last_line(written)
    assert (line["status"], line["call"]) == (200, call.call.id)


async def test_a_request_that_broke_before_any_answer_is_logged_as_a_500(
    service: RunningService, written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: EventStream, scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(EventStream, "__call__", broken)

    answer = await service.client.get("/v1/events")

    line = await last_line(written)
    assert (answer.status_code, line["status"]) == (500, 500)


async def test_nothing_is_logged_when_it_is_switched_off(service: RunningService, written: io.StringIO) -> None:
    await service.close()
    service.settings["access_log"] = False
    await service.open()

    await service.client.post("/v1/calls", json={"tool": "echo"})

    assert lines_of(written) == []


async def test_nothing_is_logged_below_the_level(service: RunningService, written: io.StringIO) -> None:
    logging.getLogger().setLevel("WARNING")

    await service.client.post("/v1/calls", json={"tool": "echo"})

    assert lines_of(written) == []


async def test_every_request_of_many_at_once_has_its_own_line(service: RunningService, written: io.StringIO) -> None:
    ann = await new_key(service)
    async with service.client_of(ann["token"]) as client:
        answers = await asyncio.gather(*(client.post("/v1/calls", json={"tool": "echo"}) for _ in range(50)))
    await last_line(written, 51)

    named = [line["call"] for line in lines_of(written) if line["path"] == "/v1/calls"]
    assert sorted(named) == sorted(answer.json()["id"] for answer in answers)
