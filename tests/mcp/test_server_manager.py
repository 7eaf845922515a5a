"""The book of MCP servers: what is kept, what is seen, and what is told of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from app import mcp_setup
from app.core.asks import Answer, Decision
from app.core.custom_tools import ClientDefinition
from app.core.mcp_servers import InvalidServer, ServerState
from app.core.principals import Key, Scope, make_key
from app.core.sessions import Session
from app.core.util.clocks import SystemClock
from app.dispatch.tools.registry import NameTaken
from app.mcp.client import connection
from app.mcp.client import manager as books
from app.mcp.client.interfaces import CannotConnect, Change
from app.mcp.client.manager import ServerManager
from app.mcp.client.upstream import UpstreamDeps
from app.store import asks
from app.store import mcp as stored
from tests.support.fake_mcp_connections import FakeServers, at_once, http, listing, stdio
from tests.support.services import HANG, KEY, Crib, until
from tests.support.toy_tools import Toys

RULES = [{"permission": "mcp", "action": "allow"}]
TEXT = {"tools/list": listing("echo"), "tools/call": {"content": [{"type": "text", "text": "hi"}]}}


class Clock(SystemClock):
    added = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.added


class Town:
    """A house whose servers are up to the test."""

    def __init__(self, crib: Crib, remote: FakeServers) -> None:
        self.crib = crib
        self.remote = remote

    @property
    def book(self) -> ServerManager:
        return self.crib.services.servers

    async def open(self, *configured: str) -> "Town":
        self.crib.settings["mcp"] = {"servers": {name: {"command": f"{name}-server"} for name in configured}}
        await self.crib.open()
        return self

    async def restart(self) -> None:
        await self.crib.close()
        await self.crib.open()

    async def connected(self, name: str = "toy", owner: str | None = None) -> None:
        await until(lambda: self.state(name, owner) == "connected")

    def state(self, name: str = "toy", owner: str | None = None) -> str:
        views = self.book.views(owner or "admin", is_admin=True)
        return next(str(view["state"]) for view in views if (view["name"], view["owner"]) == (name, owner))

    def tools(self, principal: str = "admin") -> list[str]:
        found = self.crib.services.dispatcher.registry.all(principal)
        return [tool.name for tool in found if tool.origin is not None]

    async def told(self, type: str, principal: str = "admin") -> list[dict[str, Any]]:
        await self.crib.services.writer.submit(lambda batch: None)  # what was handed over before is there
        events = [one for one in self.crib.events() if one["type"] == type and one["principal"] == principal]
        return [{name: value for name, value in json.loads(one["data"]).items() if value} for one in events]

    async def states(self, principal: str = "admin") -> list[str]:
        return [data["state"] for data in await self.told("mcp.status", principal)]

    async def tells(self, count: int) -> None:
        async with asyncio.timeout(HANG):
            while len(await self.states()) < count:
                pass

    async def call(self, tool: str, principal: str = "admin", session: str = "default") -> dict[str, Any]:
        live = self.crib.services.dispatcher.submit(self.crib.request(tool, {}), Session(principal, session))
        return await self.crib.ended(live)

    @property
    def key(self) -> Key:
        found = self.crib.services.keyring.find(KEY)
        assert found is not None
        return found

    def add_principal(self, name: str) -> None:
        key, _ = make_key(self.crib.services.ids, name, "", [Scope.CALLS_RUN])
        self.crib.services.keyring.put(key)


@pytest.fixture
async def town(crib: Crib, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    remote = FakeServers(TEXT)
    crib.settings["rules"] = RULES
    monkeypatch.setattr(connection, "Connector", lambda means: SimpleNamespace(open=remote))
    monkeypatch.setattr(mcp_setup, "UpstreamDeps", partial(UpstreamDeps, backoff=at_once))
    yield Town(crib, remote)
    remote.may_leave.set()
    await crib.close()
    assert remote.open == 0


async def test_a_configured_server_is_connected_to_and_its_tools_are_called(town: Town) -> None:
    await town.open("toy")
    await town.connected()

    call = await town.call("mcp__toy__echo")

    assert town.tools() == ["mcp__toy__echo"]
    assert (call["status"], call["result"]["output"]) == ("completed", "hi")
    assert (await town.call("toy__echo"))["status"] == "completed"
    assert (await town.told("tools.changed")) == [{"added": ["mcp__toy__echo"]}]
    assert (await town.told("mcp.status")) == [
        {"server": "toy", "state": "starting"},
        {"server": "toy", "state": "connected", "tools": 1},
    ]
    types = [event["type"] for event in town.crib.events()]
    assert types.index("tools.changed") < types.index("mcp.status", types.index("mcp.status") + 1)


async def test_a_service_starts_without_waiting_for_its_servers(town: Town) -> None:
    town.remote.may_enter.clear()

    async with asyncio.timeout(HANG):
        await town.open("toy")

    assert (town.state(), town.tools()) == ("starting", [])


async def test_a_view_says_how_a_server_is_and_to_its_own_people_what_it_is(town: Town) -> None:
    await town.open("toy")
    await town.connected()

    view = town.book.view("toy", "admin", is_admin=True)
    other = town.book.view("toy", "ann", is_admin=False)

    assert view is not None
    assert other is not None
    shown = {name: view[name] for name in ("name", "owner", "kind", "state", "error", "next_retry_at", "source")}
    assert shown == {
        "name": "toy",
        "owner": None,
        "kind": "stdio",
        "state": "connected",
        "error": None,
        "next_retry_at": None,
        "source": "config",
    }
    assert (view["protocol_version"], view["server_info"], view["instructions"]) == (
        "2025-11-25",
        {"name": "toy"},
        None,
    )
    assert (view["tools"], view["invalid_tools"], view["per_session"], view["enabled"]) == (1, [], False, True)
    assert view["definition"]["command"] == "toy-server"
    assert other == view | {"definition": None}
    assert town.book.view("none", "admin", is_admin=True) is None


async def test_an_added_server_is_there_again_after_a_restart(town: Town) -> None:
    await town.open()

    assert await town.book.add(stdio(), None, replace=False) is True
    await town.connected()
    await town.restart()
    await town.connected()

    assert town.tools() == ["mcp__toy__echo"]
    assert (await town.told("tools.changed")) == [{"added": ["mcp__toy__echo"]}]


async def test_what_a_server_listed_stays_listed_while_it_is_down_also_after_a_restart(town: Town) -> None:
    await town.open("toy")
    await town.connected()
    await town.crib.close()
    town.remote.next.appendleft(CannotConnect("there is no such program"))
    town.remote.next.pop()
    await town.crib.open()
    await until(lambda: town.state() == "failed")

    call = await town.call("mcp__toy__echo")

    assert town.tools() == ["mcp__toy__echo"]
    assert (call["status"], call["error"]["code"]) == ("error", "ToolUnavailable")
    assert "there is no such program" in call["error"]["message"]
    view = town.book.view("toy", "admin", is_admin=True)
    assert view is not None
    assert (view["error"], view["protocol_version"], view["tools"]) == ("there is no such program", "2025-11-25", 1)


async def test_a_call_that_waited_over_a_restart_finds_its_tool_before_the_server_is_up(town: Town) -> None:
    town.crib.settings["rules"] = [{"permission": "mcp", "action": "ask"}]
    await town.open("toy")
    await town.connected()
    live = town.crib.submit("mcp__toy__echo", {})
    await until(lambda: town.crib.rows("SELECT * FROM asks WHERE call = ?", live.call.id))
    await town.crib.crash()
    town.remote.may_enter.clear()

    await town.crib.open()
    [again] = list(town.crib.services.dispatcher.live_calls)
    assert (town.state(), again.call.id) == ("starting", live.call.id)
    ask = (await asks.open_by_call(town.crib.services.engine))[live.call.id]
    await town.crib.services.asks.answer(ask, Answer(decision=Decision.ALLOW_ONCE), town.key)
    town.remote.may_enter.set()

    assert (await town.crib.ended(again))["status"] == "completed"


async def test_a_removed_server_is_gone_with_everything(town: Town) -> None:
    await town.open()
    await town.book.add(stdio(), None, replace=False)
    await town.connected()

    assert await town.book.remove("toy", None) is True
    await until(lambda: town.remote.open == 0)

    assert (town.tools(), town.book.views("admin", is_admin=True)) == ([], [])
    assert (await town.told("tools.changed"))[-1] == {"removed": ["mcp__toy__echo"]}
    assert (await town.states())[-1] == "stopped"
    assert town.crib.rows("SELECT * FROM mcp_servers") == town.crib.rows("SELECT * FROM mcp_catalogues") == []
    assert (await town.call("mcp__toy__echo"))["error"]["code"] == "UnknownTool"
    assert await town.book.remove("toy", None) is False


async def test_a_server_of_the_configuration_is_changed_only_there(town: Town) -> None:
    await town.open("toy")

    assert await town.book.remove("toy", None) is False
    for name in ("toy", "TOY"):
        with pytest.raises(NameTaken):
            await town.book.add(stdio(name), None, replace=True)
    with pytest.raises(NameTaken):
        await town.book.add(stdio("Toy"), "ann", replace=True)


async def test_a_name_is_taken_once_unless_it_is_to_be_replaced(town: Town) -> None:
    await town.open()
    await town.book.add(stdio(), "ann", replace=False)

    with pytest.raises(NameTaken):
        await town.book.add(stdio(), "ann", replace=False)
    assert await town.book.add(stdio(), "bob", replace=False) is True
    assert await town.book.add(stdio(call_timeout=5), "ann", replace=True) is False
    assert [(one.owner, one.definition.call_timeout) for one in town.book.visible_to("ann")] == [("ann", 5)]


async def test_the_same_server_once_more_is_not_connected_to_anew(town: Town) -> None:
    await town.open()
    await town.book.add(stdio(), None, replace=False)
    await town.connected()

    assert await town.book.add(stdio(), None, replace=True) is False

    assert len(town.remote.opened) == 1


async def test_a_replaced_server_keeps_its_tools_if_it_is_the_same_program(town: Town) -> None:
    await town.open()
    await town.book.add(stdio(), None, replace=False)
    await town.connected()
    town.remote.may_enter.clear()

    await town.book.add(stdio(call_timeout=7), None, replace=True)
    assert town.tools() == ["mcp__toy__echo"]
    tool = town.crib.services.dispatcher.registry.find("mcp__toy__echo", None)
    assert tool.timeout == 7
    await town.book.add(stdio(command="another"), None, replace=True)

    assert town.tools() == []
    assert town.crib.rows("SELECT * FROM mcp_catalogues") == []
    assert [list(data) for data in (await town.told("tools.changed"))] == [["added"], ["changed"], ["removed"]]


async def test_the_old_connection_ends_before_the_new_one_begins(town: Town) -> None:
    await town.open()
    await town.book.add(stdio(), None, replace=False)
    await town.connected()
    town.remote.may_leave.clear()

    await town.book.add(stdio(call_timeout=7), None, replace=True)
    await until(lambda: town.remote.link.lost.done())
    for _ in range(10):
        await asyncio.sleep(0)
    assert (len(town.remote.opened), town.state()) == (1, "starting")
    town.remote.may_leave.set()

    await town.connected()
    assert (await town.states()) == ["starting", "connected", "starting", "connected"]


async def test_servers_whose_names_differ_only_here_lose_no_tool(town: Town) -> None:
    await town.open("my-srv")
    await town.connected("my-srv")
    await town.book.add(stdio("my_srv"), None, replace=False)
    await town.connected("my_srv")

    tools = [town.crib.services.dispatcher.registry.find(name, None) for name in town.tools()]

    assert sorted(tool.origin.server for tool in tools if tool.origin) == ["my-srv", "my_srv"]
    assert all(tool.name.startswith("mcp__my_srv__echo_") for tool in tools)
    assert [tool.aliases for tool in tools] == [(), ()]
    added = [tool.name for tool in tools]
    assert (await town.told("tools.changed"))[-1] == {"added": added, "removed": ["mcp__my_srv__echo"]}
    await town.book.remove("my_srv", None)
    assert town.tools() == ["mcp__my_srv__echo"]


async def test_a_name_that_another_tool_has_is_left_to_it(town: Town) -> None:
    await town.open()
    for name in ("mcp__toy__echo", "toy__more"):
        definition = ClientDefinition(name=name, description="Mine.", kind="client")
        await town.crib.services.runtime_tools.register(definition, None, replace=False)
    town.remote.next[0] = {"tools/list": listing("echo", "more")}

    await town.book.add(stdio(), None, replace=False)
    await town.connected()

    registry = town.crib.services.dispatcher.registry
    assert registry.find("mcp__toy__echo", None).source == "client"
    assert registry.find("toy__more", None).source == "client"
    assert len(town.tools()) == 2
    assert registry.find("toy__echo", None).name in town.tools()
    with pytest.raises(NameTaken):
        await town.crib.services.runtime_tools.register(
            ClientDefinition(name="mcp__toy__more", description="Mine.", kind="client"), None, replace=True
        )


async def test_everybodys_tool_that_comes_later_hides_no_tool_of_a_server(town: Town) -> None:
    await town.open()
    await town.book.add(stdio(), "ann", replace=False)
    await town.connected("toy", "ann")
    definition = ClientDefinition(name="mcp__toy__echo", description="Everybody's.", kind="client")

    await town.crib.services.runtime_tools.register(definition, None, replace=False)
    await until(lambda: town.tools("ann") not in ([], ["mcp__toy__echo"]))

    [name] = town.tools("ann")
    assert name.startswith("mcp__toy__echo_")
    assert (await town.call(name, "ann"))["status"] == "completed"
    assert (await town.told("tools.changed", "ann"))[-1] == {"added": [name], "removed": ["mcp__toy__echo"]}
    await town.crib.services.runtime_tools.remove("mcp__toy__echo", None)
    await until(lambda: town.tools("ann") == ["mcp__toy__echo"])


async def test_a_name_that_is_taken_in_the_last_moment_costs_no_tool(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    await town.open()
    registry = town.crib.services.dispatcher.registry
    serve, rival = registry.replace_server_tools, replace(Toys().tools[0], name="mcp__toy__echo")

    def late(tools: Any, owner: str | None) -> list[str]:
        monkeypatch.setattr(registry, "replace_server_tools", serve)
        registry.add(rival)
        return serve(tools, owner)

    town.remote.may_enter.clear()
    await town.book.add(stdio(), None, replace=False)
    monkeypatch.setattr(registry, "replace_server_tools", late)
    town.remote.may_enter.set()

    await until(lambda: len(town.tools()) == 1 and town.tools()[0].startswith("mcp__toy__echo_"))
    assert registry.find("mcp__toy__echo", None) is rival


async def test_what_is_a_principals_own_nobody_else_sees(town: Town) -> None:
    await town.open("toy")
    await town.connected()
    town.add_principal("ann")
    await town.book.add(http("hers"), "ann", replace=False)
    await town.connected("hers", "ann")

    assert town.tools("ann") == ["mcp__hers__echo", "mcp__toy__echo"]
    assert town.tools("bob") == town.tools("admin") == ["mcp__toy__echo"]
    assert [one.definition.name for one in town.book.visible_to("ann")] == ["hers", "toy"]
    assert town.book.get("hers", "bob") is None
    assert town.book.get("hers", "ann") is not None
    assert [view["name"] for view in town.book.views("ann", is_admin=False)] == ["hers", "toy"]
    assert [view["name"] for view in town.book.views("bob", is_admin=False)] == ["toy"]
    assert [view["name"] for view in town.book.views("admin", is_admin=True)] == ["hers", "toy"]
    assert {data["server"] for data in (await town.told("mcp.status"))} == {"toy"}
    assert [data["state"] for data in (await town.told("mcp.status", "ann"))] == ["starting", "connected"]
    assert (await town.call("mcp__hers__echo", "bob"))["error"]["code"] == "UnknownTool"
    assert (await town.call("mcp__hers__echo", "ann"))["status"] == "completed"


async def test_everybodys_server_that_comes_later_takes_no_tool_from_anybody(town: Town) -> None:
    await town.open()
    await town.book.add(stdio(), "ann", replace=False)
    await town.connected("toy", "ann")
    assert town.tools("ann") == ["mcp__toy__echo"]

    await town.book.add(stdio(command="everybodys"), None, replace=False)
    await town.connected()

    assert len(town.tools("ann")) == 2
    assert town.tools("bob") == ["mcp__toy__echo"]
    owners = {town.crib.services.dispatcher.registry.find(name, "ann").owner for name in town.tools("ann")}
    assert owners == {None, "ann"}
    found = town.book.get("toy", "ann")
    assert found is not None
    assert found.owner is None


async def test_tools_follow_what_the_server_says(town: Town) -> None:
    heard: list[Change] = []
    await town.open("toy")
    await town.connected()
    town.book.changes.subscribe(heard.append)
    town.remote.link.answers["tools/list"] = listing("echo", "more")

    town.remote.handlers[-1].on_notification("notifications/tools/list_changed", {}, None)
    await until(lambda: town.tools() == ["mcp__toy__echo", "mcp__toy__more"])

    assert (await town.told("tools.changed"))[-1] == {"added": ["mcp__toy__more"]}
    assert heard == [Change("tools", "toy", None)]
    [row] = town.crib.rows("SELECT * FROM mcp_catalogues")
    assert [tool["name"] for tool in json.loads(row["body"])["tools"]] == ["echo", "more"]
    town.remote.handlers[-1].on_notification("notifications/resources/list_changed", {}, None)
    town.remote.handlers[-1].on_notification("notifications/prompts/list_changed", {}, None)
    assert heard[1:] == [Change("resources", "toy", None), Change("prompts", "toy", None)]


async def test_a_tool_that_cannot_be_made_costs_only_itself(town: Town) -> None:
    schema = {"type": "object", "properties": {"a": 5}}
    bad = {"name": "bad", "inputSchema": schema}
    town.remote.next[0] = {"tools/list": {"tools": [bad, None, *listing("good")["tools"]]}}
    await town.open("toy")
    await town.connected()

    view = town.book.view("toy", "admin", is_admin=True)

    assert view is not None
    assert "mcp__toy__good" in town.tools()
    assert view["invalid_tools"][0] == {"name": "#2", "reason": "It is not an object."}
    assert view["tools"] + len(view["invalid_tools"]) == 3


async def test_what_fails_and_fails_in_the_same_way_is_told_once_a_minute(town: Town) -> None:
    clock = town.crib.clock = Clock()
    town.remote.next[0] = CannotConnect("the same as ever")
    await town.open("toy")
    await until(lambda: len(town.remote.opened) > 20)
    assert (await town.states()) == ["starting", "failed"]

    clock.added += 61
    await town.tells(3)
    await until(lambda: len(town.remote.opened) > 60)

    assert (await town.states()) == ["starting", "failed", "failed"]
    town.remote.next[0] = CannotConnect("something else")
    await town.tells(4)
    town.remote.next[0] = TEXT
    await town.connected()
    assert (await town.states())[4:] == ["connected"]


async def test_an_error_is_told_without_secrets(town: Town) -> None:
    town.remote.next[0] = CannotConnect("it says: sk-1234567890abcdefghijklm is no key")
    await town.open("toy")
    await until(lambda: town.state() == "failed")

    view = town.book.view("toy", "admin", is_admin=True)

    assert view is not None
    assert view["error"] == "it says: [redacted] is no key"
    assert (await town.told("mcp.status"))[-1]["error"] == "it says: [redacted] is no key"


@pytest.mark.parametrize(
    "more",
    [
        {"auth": {"type": "bearer", "token": "whatever it is"}},
        {"headers": {"X-Key": "sk-1234567890abcdefghijklm"}},
        {"headers": {"Authorization": "Bearer abcdefghijklmnop1"}},
    ],
    ids=["token", "key", "bearer"],
)
async def test_a_secret_in_clear_is_not_kept(town: Town, more: dict[str, Any]) -> None:
    await town.open()

    with pytest.raises(InvalidServer, match="secret"):
        await town.book.add(http(**more), None, replace=False)

    assert town.crib.rows("SELECT * FROM mcp_servers") == []


async def test_there_are_not_too_many_and_none_too_large(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    await town.open()
    monkeypatch.setattr(books, "MAX_SERVERS_PER_OWNER", 2)
    for name in ("one", "two"):
        await town.book.add(stdio(name), "ann", replace=False)

    with pytest.raises(InvalidServer, match="at most 2"):
        await town.book.add(stdio("three"), "ann", replace=False)
    with pytest.raises(InvalidServer, match="larger than"):
        await town.book.add(stdio("big", args=["x" * 300_000]), None, replace=False)
    assert await town.book.add(stdio("two", call_timeout=3), "ann", replace=True) is False


async def test_what_is_switched_off_is_not_connected_to_and_knows_its_tools_when_it_is_on_again(town: Town) -> None:
    await town.open()
    await town.book.add(stdio(), None, replace=False)
    await town.connected()

    await town.book.add(stdio(enabled=False), None, replace=True)
    await until(lambda: town.remote.open == 0)
    assert (town.state(), town.tools(), town.book.visible_to("admin")) == ("disabled", [], [])
    assert (await town.states())[-1] == "disabled"
    with pytest.raises(InvalidServer):
        await town.book.reconnect("toy", None)
    await town.restart()
    assert (town.state(), town.tools(), len(town.remote.opened)) == ("disabled", [], 1)
    town.remote.may_enter.clear()
    await town.book.add(stdio(), None, replace=True)

    assert (town.state(), town.tools()) == ("starting", ["mcp__toy__echo"])


async def test_reconnect_connects_anew(town: Town) -> None:
    await town.open("toy")
    await town.connected()

    await town.book.reconnect("toy", None)
    await until(lambda: len(town.remote.links) == 2)
    await town.connected()

    assert town.remote.links[0].lost.done()
    with pytest.raises(InvalidServer):
        await town.book.reconnect("toy", "ann")


async def test_another_configuration_changes_only_what_is_another(town: Town) -> None:
    await town.open("same", "other", "gone")
    for name in ("same", "other", "gone"):
        await town.connected(name)
    opened = len(town.remote.opened)
    same = stdio("same", command="same-server")

    await town.book.configure([same, stdio("other", command="now-another"), stdio("new")])
    for name in ("same", "other", "new"):
        await town.connected(name)

    assert town.tools() == ["mcp__new__echo", "mcp__other__echo", "mcp__same__echo"]
    assert sorted(name for name, _, _ in town.remote.opened[opened:]) == ["new", "other"]
    await until(lambda: town.remote.open == 3)
    assert ("gone", "stopped") in [(data["server"], data["state"]) for data in (await town.told("mcp.status"))]


async def test_a_server_that_cannot_be_had_here_says_why(town: Town) -> None:
    await town.open()

    await town.book.configure([stdio(enabled=False)], {"toy": "its variable TOKEN is not set."})

    view = town.book.view("toy", "admin", is_admin=True)
    assert view is not None
    assert (view["state"], view["error"]) == ("disabled", "its variable TOKEN is not set.")


async def test_what_a_program_writes_besides_is_kept_without_secrets(town: Town) -> None:
    await town.open("toy")
    await town.connected()

    town.remote.logs[-1].write("warming up\nkey sk-1234567890abcdefghijklm\n")

    assert town.book.log_of("toy", "admin", is_admin=True) == "warming up\nkey [redacted]\n"
    assert town.book.log_of("none", "admin", is_admin=True) is None
    for number in range(20_000):
        town.remote.logs[-1].write(f"line {number}\n")
    text = town.book.log_of("toy", "admin", is_admin=True) or ""
    assert len(text) <= 65_536
    assert text.endswith("line 19999\n")
    assert text.startswith("line ")


async def test_a_list_that_cannot_be_kept_is_not_shown_before_it_is(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    await town.open("toy")
    await town.connected()
    kept = stored.put_catalog

    def full(*args: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(stored, "put_catalog", full)
    town.remote.link.answers["tools/list"] = listing("echo", "more")
    town.remote.handlers[-1].on_notification("notifications/tools/list_changed", {}, None)
    await until(lambda: len(town.remote.link.asked) == 2)
    for _ in range(50):
        await asyncio.sleep(0)
    assert town.tools() == ["mcp__toy__echo"]
    monkeypatch.setattr(stored, "put_catalog", kept)

    await until(lambda: len(town.tools()) == 2)
    assert (town.state(), len(town.remote.links)) == ("connected", 1)


async def test_what_was_begun_is_done_also_when_nobody_waits_for_it(town: Town) -> None:
    await town.open()
    adding = asyncio.create_task(town.book.add(stdio(), None, replace=False))
    await asyncio.sleep(0)

    adding.cancel()
    await asyncio.wait([adding])

    await until(lambda: town.book.views("admin", is_admin=True))
    await town.connected()
    assert len(town.crib.rows("SELECT * FROM mcp_servers")) == 1


async def test_many_changes_at_once_take_turns(town: Town) -> None:
    await town.open()
    names = [f"toy{number}" for number in range(12)]

    await asyncio.gather(*(town.book.add(stdio(name), None, replace=False) for name in names))
    for name in names:
        await town.connected(name)
    await asyncio.gather(*(town.book.remove(name, None) for name in names[::2]))

    assert town.tools() == sorted(f"mcp__{name}__echo" for name in names[1::2])
    assert set(town.book.states()) == {ServerState.CONNECTED}


async def test_a_stored_server_that_cannot_be_used_any_more_costs_only_itself(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    await town.open()
    await town.book.add(stdio(), None, replace=False)
    await town.book.add(stdio("second"), None, replace=False)
    await town.crib.close()
    town.crib.change("UPDATE mcp_servers SET definition = '{}' WHERE name = 'toy'")
    town.crib.change(
        "INSERT INTO mcp_catalogues VALUES ('*', 'second', 'no json', 1) ON CONFLICT DO UPDATE SET body = 'x'"
    )

    await town.crib.open()
    await town.connected("second")

    assert "the MCP server toy of all principals cannot be used" in caplog.text
    assert town.tools() == ["mcp__second__echo"]


async def test_what_a_server_listed_is_forgotten_with_it_also_when_it_went_unseen(town: Town) -> None:
    await town.open("toy", "second")
    await town.connected()
    await town.connected("second")
    await town.crib.close()

    await town.open("second")

    assert [row["server"] for row in town.crib.rows("SELECT * FROM mcp_catalogues")] == ["second"]
    assert town.tools() == ["mcp__second__echo"]
