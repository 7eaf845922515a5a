"""A call does not belong to its connection, unless it was asked to."""

import asyncio
import json
from typing import Any

from tests.support.services import HANG, KEY, RunningService, until
from tests.support.toy_tools import Toys


class Caller:
    """A client on a bare socket, so that it can hang up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def hang_up(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    def break_off(self) -> None:
        """Reset the connection, with nothing said."""
        self._writer.transport.abort()


async def call(service: RunningService, body: dict[str, Any], accept: str = "*/*", cut: int | None = None) -> Caller:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/calls HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\nAccept: {accept}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content[:cut])
    await writer.drain()
    return Caller(reader, writer)


async def the_call(service: RunningService) -> str:
    await until(lambda: service.rows("SELECT id FROM calls"))
    id: str = service.rows("SELECT id FROM calls")[0]["id"]
    return id


async def test_a_client_that_goes_away_stops_nothing(service: RunningService, toys: Toys) -> None:
    caller = await call(service, {"tool": "wait"})
    await service.started("wait")
    id = await the_call(service)

    await caller.hang_up()
    await until(lambda: not service._server.server_state.connections)
    assert service.row(id)["status"] == "running"
    toys.go["wait"].set()
    view = (await service.client.get(f"/v1/calls/{id}", params={"wait": 5})).json()

    assert view["status"] == "completed"


async def test_a_client_that_goes_away_stops_a_call_that_was_asked_to(service: RunningService, toys: Toys) -> None:
    caller = await call(service, {"tool": "wait", "arguments": {"say": "so far"}, "cancel_on_disconnect": True})
    await service.started("wait")
    id = await the_call(service)

    await caller.hang_up()
    view = (await service.client.get(f"/v1/calls/{id}", params={"wait": 5})).json()

    assert view["error"] == {
        "code": "Canceled",
        "message": "The client that requested this call disconnected.",
        "retryable": False,
    }
    assert view["result"]["output"] == "so far"
    assert service.end(id) == ("error", "Canceled")
    assert toys.log == ["wait in", "wait out"]


async def test_a_client_that_stays_gets_its_answer_and_nothing_is_stopped(service: RunningService, toys: Toys) -> None:
    body = {"tool": "wait", "cancel_on_disconnect": True}
    posting = asyncio.create_task(service.client.post("/v1/calls", json=body))
    await service.started("wait")
    toys.go["wait"].set()

    assert (await posting).json()["status"] == "completed"


async def test_a_client_that_leaves_its_stream_stops_a_call_that_was_asked_to(
    service: RunningService, toys: Toys
) -> None:
    caller = await call(service, {"tool": "wait", "cancel_on_disconnect": True}, "text/event-stream")
    async with asyncio.timeout(HANG):
        await caller.reader.readuntil(b"event: call.running")
    await service.started("wait")
    id = await the_call(service)

    caller.break_off()
    view = (await service.client.get(f"/v1/calls/{id}", params={"wait": 5})).json()

    assert view["error"]["code"] == "Canceled"
    await until(lambda: not service.services.hub._by_call)


async def test_a_client_that_leaves_its_stream_otherwise_stops_nothing(service: RunningService, toys: Toys) -> None:
    caller = await call(service, {"tool": "wait"}, "text/event-stream")
    async with asyncio.timeout(HANG):
        await caller.reader.readuntil(b"event: call.running")
    id = await the_call(service)

    caller.break_off()
    await until(lambda: not service.services.hub._by_call)
    assert service.row(id)["status"] == "running"
    toys.go["wait"].set()

    assert (await service.client.get(f"/v1/calls/{id}", params={"wait": 5})).json()["status"] == "completed"


async def test_many_clients_that_go_away_each_stop_their_own_call(service: RunningService, toys: Toys) -> None:
    callers = [
        await call(service, {"tool": "wait", "arguments": {"name": f"{n}"}, "cancel_on_disconnect": n % 2 == 0})
        for n in range(10)
    ]
    for n in range(10):
        await service.started(f"{n}")

    for caller in callers:
        caller.break_off()
    await until(lambda: len(service.services.dispatcher.live_calls) == 5)
    for n in range(10):
        toys.go[f"{n}"].set()
    await until(lambda: len(service.services.dispatcher.live_calls) == 0)

    ends = sorted(service.end(row["id"]) for row in service.rows("SELECT id FROM calls"))
    assert ends == [("completed", None)] * 5 + [("error", "Canceled")] * 5


async def test_a_body_that_ends_early_is_no_call(service: RunningService) -> None:
    caller = await call(service, {"tool": "note"}, cut=5)
    await until(lambda: service._server.server_state.tasks)

    await caller.hang_up()
    await until(lambda: not service._server.server_state.tasks)

    assert service.rows("SELECT * FROM calls") == []
