"""Servers of which each session has its own: started when it needs one, in its workspace, and ended with it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from app.core.errors import Overloaded, ToolUnavailable
from app.core.mcp_servers import AnyServer, ServerState
from app.core.redaction import Redactor
from app.core.sessions import Session
from app.core.util.clocks import SystemClock
from app.mcp.client import per_session
from app.mcp.client.catalog import Catalog
from app.mcp.client.interfaces import CannotConnect, ServerRequestHandler, Upstream
from app.mcp.client.upstream import UpstreamDeps, UpstreamServer
from tests.support.fake_mcp_connections import FakeServers, Nobody, listing, never, stdio
from tests.support.services import HANG, until

LISTS = {"tools/list": listing("echo"), "tools/call": {"content": []}}
ANN, BOB = Session("ann", "default", workspace="/a"), Session("bob", "default")
IDLE = 100.0


class Clock(SystemClock):
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class House:
    """A server with a connection for each session, and what became of it."""

    def __init__(self, remote: FakeServers) -> None:
        self.remote = remote
        self.clock = Clock()
        self.lists: list[Catalog] = []
        self.guests: list[Session | None] = []
        around = UpstreamDeps(
            open_connection=remote,
            handler_for=self.guest,
            clock=self.clock,
            redactor=Redactor(),
            idle_seconds=IDLE,
            backoff=never,
        )
        self.server = self.serve(stdio(per_session=True), around)

    def serve(self, definition: AnyServer, around: UpstreamDeps) -> UpstreamServer:
        async def listed(server: UpstreamServer, catalogue: Catalog) -> None:
            self.lists.append(catalogue)

        return UpstreamServer(definition, None, "config", around, on_tools=listed, on_status=lambda server: None)

    def guest(self, upstream: Upstream, session: Session | None) -> ServerRequestHandler:
        self.guests.append(session)
        return Nobody()

    async def sweep(self) -> None:
        await self.server._per_session.close_idle()

    @property
    def sessions(self) -> list[Session | None]:
        return [session for _, _, session in self.remote.opened]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House(FakeServers(LISTS))
    house.server.start()
    await until(lambda: house.server.status.state is ServerState.CONNECTED)
    yield house
    async with asyncio.timeout(HANG):
        await house.server.stop()
    assert house.remote.open == 0


async def test_a_scout_lists_the_tools_and_leaves(house: House) -> None:
    assert (house.sessions, house.remote.open) == ([None], 0)
    assert [tool["name"] for tool in house.lists[0].tools] == ["echo"]


async def test_each_session_has_its_own_and_keeps_it(house: House) -> None:
    links = [await house.server.get_connection(session) for session in (ANN, BOB, ANN)]

    for link in links:
        await link.request("tools/call", {"name": "echo"})

    assert house.sessions == [None, ANN, BOB]
    assert house.guests == [None, ANN, BOB]
    assert [method for method, _ in house.remote.links[1].asked] == ["tools/call"] * 2
    assert [method for method, _ in house.remote.links[2].asked] == ["tools/call"]
    assert links[0].server_info is house.remote.links[1].server_info


async def test_a_session_that_is_deleted_takes_its_own_along(house: House) -> None:
    for session in (ANN, BOB):
        await house.server.get_connection(session)

    await house.server.end_session("ann", "default")
    await house.server.end_session("ann", "another")

    assert [link.lost.done() for link in house.remote.links[1:]] == [True, False]


async def test_what_nobody_uses_is_ended_but_not_what_is_busy(house: House) -> None:
    ann, bob = await house.server.get_connection(ANN), await house.server.get_connection(BOB)
    house.remote.links[2].held.clear()
    calling = asyncio.create_task(bob.request("tools/call", {}))
    await until(lambda: house.remote.links[2].asked)
    house.clock.seconds += IDLE
    await house.sweep()
    assert (ann.lost.done(), bob.lost.done()) == (True, False)

    house.remote.links[2].held.set()
    await calling
    await house.sweep()
    assert not bob.lost.done()  # it was used just now
    house.clock.seconds += IDLE
    await house.sweep()

    assert bob.lost.done()
    assert await house.server.get_connection(ANN) is not ann


async def test_a_session_that_works_elsewhere_now_gets_another(house: House) -> None:
    await house.server.get_connection(ANN)
    moved = replace(ANN, workspace="/b")

    await house.server.get_connection(moved)

    assert house.sessions == [None, ANN, moved]
    await until(lambda: house.remote.links[1].lost.done())


async def test_there_are_not_too_many(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_session, "MAX_SESSIONS", 1)
    await house.server.get_connection(ANN)

    with pytest.raises(Overloaded, match="already runs for 1 sessions"):
        await house.server.get_connection(BOB)
    await house.server.end_session("ann", "default")

    await house.server.get_connection(BOB)


async def test_one_that_does_not_start_says_why_to_its_own_session(house: House) -> None:
    house.remote.next[0] = CannotConnect("no room in /a")

    with pytest.raises(ToolUnavailable, match="no room in /a"):
        await house.server.get_connection(ANN)

    assert house.server.status.state is ServerState.CONNECTED


async def test_reconnect_ends_them_all(house: House) -> None:
    await house.server.get_connection(ANN)

    house.server.reconnect()
    await until(lambda: len(house.lists) == 2)

    await until(lambda: house.remote.links[1].lost.done())
    await house.server.get_connection(ANN)


async def test_what_one_of_them_lists_anew_is_taken_for_all(house: House) -> None:
    await house.server.get_connection(ANN)
    house.remote.link.answers["tools/list"] = listing("echo", "more")

    house.remote.handlers[-1].on_notification("notifications/tools/list_changed", {}, None)
    await until(lambda: len(house.lists) == 2)

    assert [tool["name"] for tool in house.lists[-1].tools] == ["echo", "more"]


async def test_a_stopped_server_starts_none(house: House) -> None:
    await house.server.stop()

    with pytest.raises(ToolUnavailable, match="stopped"):
        await house.server.get_connection(ANN)
