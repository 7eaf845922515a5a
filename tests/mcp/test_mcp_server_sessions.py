"""Sessions at the door: whose they are, what they hear of, and how they end."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.core.principals import Scope
from tests.mcp.server_clients import ERAS, AttendedToys, Waiting, mcp_client
from tests.support.ask_calls import key_with
from tests.support.mcp_wire import VERSION, Session2025, called, messages, spoken
from tests.support.raw_http import connected
from tests.support.services import HANG, KEY, RunningService, until
from tests.support.toy_tools import Toys

MODES = pytest.mark.parametrize("mode", ERAS)
WEATHER: dict[str, Any] = {
    "kind": "client",
    "name": "get_weather",
    "description": "x",
    "parameters": {"type": "object"},
}


@pytest.fixture
def toys() -> Toys:
    return AttendedToys()


@pytest.fixture
async def service(data_dir: Path, toys: Toys) -> AsyncIterator[RunningService]:
    service = RunningService(data_dir, toys)
    await service.open()
    yield service
    await service.close()


class Ears:
    """Hears what a client is told besides its answers, in the way of its era."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def __call__(self, message: Any) -> None:
        self.heard.append(message.method)

    async def listen(self, client: Any, mode: str, service: RunningService, number: int) -> None:
        """From when it comes back on, as the stream of this number, nothing is missed."""
        if mode == "auto":
            self._listening = asyncio.create_task(self._follow(client))
        await until(lambda: service.services.stream_slots.taken.total() == number)
        await asyncio.sleep(0.05)

    async def _follow(self, client: Any) -> None:
        async with client.listen(tools_list_changed=True) as events:
            async for event in events:
                self.heard.append(type(event).__name__)

    def end(self) -> None:
        if hasattr(self, "_listening"):
            self._listening.cancel()


@MODES
async def test_those_who_see_a_tool_hear_that_it_came(service: RunningService, mode: str) -> None:
    anns = {"Authorization": f"Bearer {await key_with(service, Scope.CALLS_RUN, Scope.TOOLS_WRITE)}"}
    bobs = {"Authorization": f"Bearer {await key_with(service, Scope.CALLS_RUN, principal='bob')}"}
    ann, bob = Ears(), Ears()

    async with (
        mcp_client(service, mode, anns, message_handler=ann) as first,
        mcp_client(service, mode, bobs, message_handler=bob) as second,
    ):
        await bob.listen(second, mode, service, {"legacy": 2, "auto": 1}[mode])
        await ann.listen(first, mode, service, 2)
        made = await service.client.post("/v1/tools", json=WEATHER, headers=anns)
        assert made.status_code == 201, made.text
        await until(lambda: ann.heard)
        names = {tool.name for tool in (await first.list_tools()).tools}
        ann.end()
        bob.end()

    assert (
        set(ann.heard)
        == {
            "legacy": {"notifications/tools/list_changed"},
            "auto": {"ToolsListChanged", "notifications/tools/list_changed"},
        }[mode]
    )
    assert bob.heard == []
    assert "get_weather" in names


async def test_a_session_is_its_keys_alone(service: RunningService) -> None:
    session = Session2025(service.client)
    await session.begin()
    list_tools = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}

    async with service.client_of(await key_with(service, Scope.ADMIN, principal="admin")) as other:
        stolen = await other.post("/mcp", json=list_tools, headers=session.headers)
        ended = await other.delete("/mcp", headers=session.headers)
        stream = await other.get("/mcp", headers=session.headers)
    own = await session.post(list_tools)

    assert [answer.status_code for answer in (stolen, ended, stream, own)] == [404, 404, 404, 200]


async def test_another_key_takes_back_nothing(service: RunningService, toys: Toys) -> None:
    session = Session2025(service.client)
    await session.begin()
    calling = Waiting(session.ask(7, "tools/call", name="wait_free", arguments={}))
    await service.started("wait")
    taken = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}

    async with service.client_of(await key_with(service, Scope.ADMIN, principal="admin")) as other:
        refused = await other.post("/mcp", json=taken, headers=session.headers)
        await other.delete("/mcp", headers=session.headers)
    toys.go["wait"].set()
    answer = await calling.result()

    assert refused.status_code == 404
    assert answer["result"]["isError"] is False


async def test_a_revoked_key_loses_its_session_and_its_streams(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sse_starlette.sse.EventSourceResponse.DEFAULT_PING_INTERVAL", 0.05)
    made = (await service.client.post("/v1/keys", json={"principal": "ann"})).json()
    async with service.client_of(made["token"]) as ann:
        session = Session2025(ann)
        await session.begin()
        async with ann.stream("GET", "/mcp", headers=session.headers) as stream:
            assert stream.status_code == 200
            await service.client.delete(f"/v1/keys/{made['id']}")
            async with asyncio.timeout(HANG):
                async for _ in stream.aiter_bytes():
                    pass
        refused = await session.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})

    assert refused.status_code == 401
    await until(lambda: not service.services.stream_slots.taken)


async def test_one_key_has_only_so_many_sessions(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.api.mcp.endpoint.MAX_SESSIONS", 2)
    sessions = [Session2025(service.client) for _ in range(3)]
    for session in sessions[:2]:
        await session.begin()

    refused = await sessions[2].post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}})
    async with service.client_of(await key_with(service, Scope.CALLS_RUN)) as other:
        await Session2025(other).begin()
    await service.client.delete("/mcp", headers=sessions[0].headers)
    await sessions[2].begin()

    assert (refused.status_code, refused.json()["code"]) == (429, "TooManySessions")


async def test_streams_take_room_in_both_eras(service: RunningService) -> None:
    session = Session2025(service.client)
    await session.begin()

    async with (
        service.client.stream("GET", "/mcp", headers=session.headers) as old,
        service.client.stream("POST", "/mcp", **spoken("subscriptions/listen", {"notifications": {}})) as new,
    ):
        assert (old.status_code, new.status_code) == (200, 200)
        assert sum(service.services.stream_slots.taken.values()) == 2
    await until(lambda: not service.services.stream_slots.taken)


async def test_at_the_end_calls_are_answered_then_streams_end(data_dir: Path, toys: Toys) -> None:
    service = RunningService(data_dir, toys, grace=HANG)
    await service.open()
    session = Session2025(service.client)
    await session.begin()
    listen = spoken("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with (
        service.client.stream("GET", "/mcp", headers=session.headers) as old,
        service.client.stream("POST", "/mcp", **listen) as new,
    ):
        earlier = Waiting(session.ask(7, "tools/call", name="wait_free", arguments={}))
        later = Waiting(service.client.post("/mcp", **called("wait_free")))
        await until(lambda: toys.log == ["wait in", "wait in"])
        service._server.handle_exit(signal.SIGTERM, None)
        draining = asyncio.create_task(service.house.drain())
        await until(lambda: service.services.dispatcher.live_calls.is_draining)
        await asyncio.sleep(0.6)  # longer than it takes until somebody has noticed the signal
        toys.go["wait"].set()
        answers = [(await earlier.result())["result"], (await later.result()).json()["result"]]
        async with asyncio.timeout(HANG):
            await draining
            assert [part async for part in old.aiter_text() if "data:" in part] == []
            last = messages("".join([part async for part in new.aiter_text()]))[-1]
    await service.close()

    assert [answer["isError"] for answer in answers] == [False, False]
    assert last["result"]["resultType"] == "complete"
    assert not service.services.stream_slots.taken


async def test_a_service_that_stops_takes_no_more_calls(data_dir: Path, toys: Toys) -> None:
    service = RunningService(data_dir, toys, grace=HANG)
    await service.open()
    session = Session2025(service.client)
    await session.begin()
    first = Waiting(session.ask(1, "tools/call", name="wait_free", arguments={}))
    await service.started("wait")
    draining = asyncio.create_task(service.house.drain())
    await until(lambda: service.services.dispatcher.live_calls.is_draining)

    refused = await session.ask(2, "tools/call", name="echo", arguments={"text": "x"})
    toys.go["wait"].set()
    await first.result()
    await draining
    await service.services.mcp.close()
    late = await session.post({"jsonrpc": "2.0", "id": 3, "method": "tools/list"})
    await service.close()

    assert refused["result"]["isError"] is True
    assert refused["result"]["content"][0]["text"] == "Overloaded: The service is stopping and takes no more calls."
    assert late.status_code == 503


async def test_a_service_to_which_nobody_speaks_mcp_does_not_load_the_sdk(data_dir: Path) -> None:
    script = f"""
import asyncio, sys
from pathlib import Path
from app.config import Settings
from app.service import Service
from app.tools import BUILTINS
async def main():
    house = Service(Settings(data_dir=Path({str(data_dir)!r}), api_key={KEY!r}), BUILTINS)
    await house.open()
    print([name for name in ("mcp", "mcp_types", "aiohttp", "httpx2", "sse_starlette") if name in sys.modules])
    await house.close()
asyncio.run(main())
"""
    command = (sys.executable, "-c", script)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(HANG * 6):
        said, _ = await process.communicate()

    assert (process.returncode, said.decode()) == (0, "[]\n")


async def test_spaces_around_a_header_are_none_of_its_value(service: RunningService) -> None:
    """The parser leaves them where they are; a name with a tab behind it would not be the name of a tool."""
    body = spoken("tools/call", {"name": "echo", "arguments": {"text": "x"}})["json"]
    content = json.dumps(body)
    head = [
        "POST /mcp HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization:  \t Bearer {KEY} \t",
        "Accept: application/json, text/event-stream\t ",
        "Content-Type: \tapplication/json ",
        f"MCP-Protocol-Version: {VERSION}  \t",
        "Mcp-Method:\t\ttools/call ",
        "Mcp-Name:   echo\t \t",
        f"Content-Length: {len(content)}",
    ]

    async with connected(service.port) as line:
        await line.send("\r\n".join([*head, "", content]).encode())
        answer = await line.answer()

    assert answer.status == 200
    [row] = service.rows("SELECT tool FROM calls")
    assert row["tool"] == "echo"
