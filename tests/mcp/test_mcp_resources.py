"""Resources, templates and prompts of servers: listed, read, watched; and the tools that models do it with."""

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.config import RuleSetting
from app.core.errors import InvalidArgs, McpDisconnected, McpFailed, ToolUnavailable
from app.core.mcp_servers import StdioServer
from app.core.rules import Action
from app.core.sessions import Session
from app.core.tools import ResourceList
from app.core.util.json_codec import Raw
from app.mcp.client import resource_subscriptions, resources, tools
from app.mcp.client.interfaces import MODERN, Change, ConnectionLost, JsonRpcError, ServerInfo, Upstream
from app.mcp.client.resources import Resources
from app.tools import list_mcp_resource_templates, list_mcp_resources, read_mcp_resource
from tests.mcp.toy_connections import Asked, Neighbourhood, ToyUpstream, hello
from tests.support.services import ADMIN, Crib, until


class Shop:
    """A server with answers by method, each a result or what it says instead."""

    def __init__(self, name: str = "shop", **answers: Raw | Exception | list[Raw]) -> None:
        self.answers = {name.replace("__", "/"): answer for name, answer in answers.items()}
        self.upstream = ToyUpstream(self.answer, StdioServer(name=name, kind="stdio", command="shop"))

    async def answer(self, asked: Asked) -> Raw:
        answer = self.answers.get(asked.method, JsonRpcError(-32601, "Method not found"))
        if isinstance(answer, list):
            answer = answer[int(asked.params.get("cursor", 0))]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def asked(self) -> list[tuple[str, Raw]]:
        return [(asked.method, asked.params) for asked in self.upstream.asked]


class Mall:
    """The `Upstreams` port."""

    def __init__(self, *shops: Shop) -> None:
        self.shops = {shop.upstream.definition.name: shop.upstream for shop in shops}

    def visible_to(self, principal: str) -> Sequence[Upstream]:
        return [self.shops[name] for name in sorted(self.shops)]

    def get(self, name: str, principal: str) -> Upstream | None:
        return self.shops.get(name)


def pages(*uris: list[str]) -> list[Raw]:
    made = []
    for number, page in enumerate(uris):
        more = {} if number == len(uris) - 1 else {"nextCursor": str(number + 1)}
        made.append({"resources": [{"uri": uri, "vendor": 1} for uri in page], **more})
    return made


async def test_one_server_is_listed_page_by_page() -> None:
    found = Resources(Mall(Shop(resources__list=pages(["a", "b"], ["c"]))))

    first = await found.resources(ADMIN, "shop")
    second = await found.resources(ADMIN, "shop", first.next_cursor)

    assert first == ResourceList(
        [{"uri": "a", "vendor": 1, "server": "shop"}, {"uri": "b", "vendor": 1, "server": "shop"}], "1"
    )
    assert second == ResourceList([{"uri": "c", "vendor": 1, "server": "shop"}], None)


async def test_all_servers_are_listed_whole_in_the_order_of_their_names_without_those_that_are_down() -> None:
    down = Shop("down", resources__list=pages(["x"]))
    down.upstream.is_down = True
    broken = Shop("broken", resources__list=JsonRpcError(-32603, "broken"))
    shops = [Shop("b", resources__list=pages(["1"], ["2"])), Shop("a", resources__list=pages(["3"])), down, broken]

    found = await Resources(Mall(*shops)).resources(ADMIN, None)

    assert [(item["server"], item["uri"]) for item in found.items] == [("a", "3"), ("b", "1"), ("b", "2")]
    assert found.next_cursor is None


async def test_a_list_that_leads_in_circles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MAX_PAGES", 7)
    shop = Shop(
        resources__list=[{"resources": [{"uri": "a"}], "nextCursor": "1"}, {"resources": [], "nextCursor": "0"}]
    )

    found = await Resources(Mall(shop)).resources(ADMIN, None)

    assert len(shop.asked) == 7
    assert len(found.items) == 4


async def test_what_a_server_does_not_have_is_not_there() -> None:
    """It may have resources and no templates; one that never spoke of prompts is not even asked."""
    shop = Shop(resources__list=pages(["a"]))
    shop.upstream.server_info = ServerInfo(version="2025-11-25", capabilities={"resources": {}}, info={})
    found = Resources(Mall(shop))

    assert await found.templates(ADMIN, "shop") == ResourceList([])
    assert await found.prompts(ADMIN, "shop") == ResourceList([])
    assert shop.asked == [("resources/templates/list", {})]


async def test_templates_and_prompts_are_listed_too() -> None:
    shop = Shop(
        resources__templates__list={"resourceTemplates": [{"uriTemplate": "a/{b}"}, "nonsense"]},
        prompts__list={"prompts": [{"name": "greet"}]},
    )
    found = Resources(Mall(shop))

    assert (await found.templates(ADMIN, "shop")).items == [{"uriTemplate": "a/{b}", "server": "shop"}]
    assert (await found.prompts(ADMIN, None)).items == [{"name": "greet", "server": "shop"}]


async def test_resources_prompts_and_completions_come_as_the_server_says_them() -> None:
    shop = Shop(
        resources__read={"contents": [{"uri": "a", "text": "x", "_meta": {"v": 1}}]},
        prompts__get={"messages": []},
        completion__complete={"completion": {"values": ["ab"]}},
    )
    found = Resources(Mall(shop))

    assert await found.read(ADMIN, "shop", "a") == {"contents": [{"uri": "a", "text": "x", "_meta": {"v": 1}}]}
    assert await found.prompt(ADMIN, "shop", "greet", {"who": "Ada"}) == {"messages": []}
    assert await found.complete(ADMIN, "shop", {"ref": {}}) == {"completion": {"values": ["ab"]}}
    assert shop.asked == [
        ("resources/read", {"uri": "a"}),
        ("prompts/get", {"name": "greet", "arguments": {"who": "Ada"}}),
        ("completion/complete", {"ref": {}}),
    ]


async def test_who_is_not_there_or_says_no_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "RECONNECT_SECONDS", 0.01)
    down = Shop("down")
    down.upstream.is_down = True
    shops = [
        Shop(resources__read=JsonRpcError(-32002, "no such thing")),
        down,
        Shop("gone", resources__read=ConnectionLost("x")),
    ]
    found = Resources(Mall(*shops))

    with pytest.raises(InvalidArgs, match="There is no MCP server shp; there are: down, gone, shop"):
        await found.read(ADMIN, "shp", "a")
    with pytest.raises(McpFailed, match="The MCP server shop answered resources/read with the error -32002: no such"):
        await found.read(ADMIN, "shop", "a")
    with pytest.raises(ToolUnavailable):
        await found.read(ADMIN, "down", "a")
    with pytest.raises(McpDisconnected):
        await found.read(ADMIN, "gone", "a")
    with pytest.raises(InvalidArgs, match="A cursor belongs to one server"):
        await found.resources(ADMIN, None, "1")


async def test_a_read_whose_link_is_lost_is_made_once_more() -> None:
    shop = Shop()

    async def lose_once(asked: Asked) -> Raw:
        if len(shop.upstream.links) == 1:
            asked.link.lose()
            raise ConnectionLost("gone")
        return {"contents": []}

    shop.upstream.answer = lose_once

    assert await Resources(Mall(shop)).read(ADMIN, "shop", "a") == {"contents": []}


async def test_a_resource_is_watched_as_long_as_anybody_does() -> None:
    shop = Shop(resources__subscribe={}, resources__unsubscribe={})
    found = Resources(Mall(shop))

    for _ in range(2):
        await found.watch(ADMIN, "shop", "a")
    await found.watch(Session("ada", "other"), "shop", "b")
    await found.unwatch(ADMIN, "shop", "a")
    before = list(shop.asked)
    await found.unwatch(ADMIN, "shop", "a")
    await found.unwatch(ADMIN, "shop", "a")
    await found.close()

    assert before == [("resources/subscribe", {"uri": "a"}), ("resources/subscribe", {"uri": "b"})]
    assert shop.asked == [*before, ("resources/unsubscribe", {"uri": "a"})]


async def test_what_is_watched_stays_so_on_the_next_link_and_counts_as_changed(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_subscriptions, "MIN_PAUSE_SECONDS", 0.01)
    shop = Shop(resources__subscribe={})
    town = Neighbourhood(crib)
    found = Resources(Mall(shop), town.server_requests)
    seen: list[Change] = []
    town.changes.subscribe(seen.append)

    await found.watch(ADMIN, "shop", "a")
    shop.upstream.is_down = True
    shop.upstream.links[0].lose()
    await until(lambda: shop.upstream.links[0].lost.done())
    shop.upstream.is_down = False
    await until(lambda: seen)
    await found.close()

    assert shop.asked == [("resources/subscribe", {"uri": "a"})] * 2
    assert seen == [Change("resources", "shop", None, "a")]


async def test_a_watch_that_the_server_refuses_does_not_count() -> None:
    shop = Shop(resources__subscribe=JsonRpcError(-32602, "no"))
    found = Resources(Mall(shop))

    for _ in range(2):
        with pytest.raises(McpFailed):
            await found.watch(ADMIN, "shop", "a")
    await found.unwatch(ADMIN, "shop", "a")

    assert len(shop.asked) == 2


async def test_of_two_who_watch_at_once_the_second_does_not_rely_on_the_first_who_fails() -> None:
    shop = Shop(resources__subscribe=JsonRpcError(-32603, "not now"), resources__unsubscribe={})
    found, answer, begun = Resources(Mall(shop)), shop.upstream.answer, asyncio.Event()

    async def slowly(asked: Asked) -> Raw:
        begun.set()
        await asyncio.sleep(0)
        try:
            return await answer(asked)
        finally:
            shop.answers["resources/subscribe"] = {}

    shop.upstream.answer = slowly
    first = asyncio.create_task(found.watch(ADMIN, "shop", "a"))
    await begun.wait()
    await found.watch(Session("ada", "other"), "shop", "a")
    with pytest.raises(McpFailed, match="not now"):
        await first
    await found.unwatch(ADMIN, "shop", "a")
    await found.close()

    assert [method for method, _ in shop.asked] == ["resources/subscribe"] * 2 + ["resources/unsubscribe"]


async def test_who_watches_while_the_last_one_leaves_is_told_still() -> None:
    shop = Shop(resources__subscribe={}, resources__unsubscribe={})
    found, answer, leaving = Resources(Mall(shop)), shop.upstream.answer, asyncio.Event()

    async def slowly(asked: Asked) -> Raw:
        if asked.method == "resources/unsubscribe":
            leaving.set()
            await asyncio.sleep(0.01)
        return await answer(asked)

    shop.upstream.answer = slowly
    await found.watch(ADMIN, "shop", "a")
    last = asyncio.create_task(found.unwatch(ADMIN, "shop", "a"))
    await leaving.wait()
    await found.watch(Session("ada", "other"), "shop", "a")
    ended = last.done()
    await found.close()

    assert ended
    assert [method for method, _ in shop.asked] == [
        "resources/subscribe",
        "resources/unsubscribe",
        "resources/subscribe",
    ]


async def test_in_the_newer_era_a_read_may_take_rounds(crib: Crib) -> None:
    async def answer(asked: Asked) -> Raw:
        if "inputResponses" not in asked.params:
            return {"resultType": "input_required", "inputRequests": {"r": {"method": "roots/list"}}}
        return {"contents": [asked.params["inputResponses"]]}

    shop = Shop()
    shop.upstream.answer, shop.upstream.server_info = answer, hello(MODERN)
    found = Resources(Mall(shop), Neighbourhood(crib, roots=["/srv"]).server_requests)

    read = await found.read(ADMIN, "shop", "a")

    assert read == {"contents": [{"r": {"roots": [{"uri": "file:///srv", "name": "srv"}]}}]}


async def test_without_servers_there_is_nothing() -> None:
    assert await Resources().resources(ADMIN, None) == ResourceList([])
    with pytest.raises(InvalidArgs, match="There is no MCP server shop; there are: none"):
        await Resources().read(ADMIN, "shop", "a")


TOOLS = [list_mcp_resources.tool, list_mcp_resource_templates.tool, read_mcp_resource.tool]


async def house(crib: Crib, *shops: Shop, **settings: Any) -> Crib:
    crib.toys.more = list(TOOLS)
    crib.settings |= settings
    await crib.open()
    dispatcher = crib.services.dispatcher
    dispatcher.resources = replace(dispatcher.resources, mcp_resources=Resources(Mall(*shops)))
    return crib


async def test_a_model_lists_resources_with_the_server_of_each(crib: Crib) -> None:
    await house(crib, Shop("b", resources__list=pages(["1"])), Shop("a", resources__list=pages(["2"], ["3"])))

    everything = await crib.run("list_mcp_resources", {})
    one = await crib.run("list_mcp_resources", {"server": "a"})
    more = await crib.run("list_mcp_resources", {"server": "a", "cursor": "1"})

    assert json.loads(everything["result"]["output"]) == {
        "resources": [
            {"uri": "2", "vendor": 1, "server": "a"},
            {"uri": "3", "vendor": 1, "server": "a"},
            {"uri": "1", "vendor": 1, "server": "b"},
        ]
    }
    assert json.loads(one["result"]["output"]) == {
        "server": "a",
        "resources": [{"uri": "2", "vendor": 1, "server": "a"}],
        "nextCursor": "1",
    }
    assert [item["uri"] for item in json.loads(more["result"]["output"])["resources"]] == ["3"]


async def test_a_model_lists_templates(crib: Crib) -> None:
    await house(crib, Shop(resources__templates__list={"resourceTemplates": [{"uriTemplate": "a/{b}"}]}))

    view = await crib.run("list_mcp_resource_templates", {})

    assert json.loads(view["result"]["output"]) == {"resourceTemplates": [{"uriTemplate": "a/{b}", "server": "shop"}]}


async def test_a_list_of_all_leaves_out_what_rules_do_not_allow(crib: Crib) -> None:
    rules = [RuleSetting(permission="mcp", pattern="bank/*", action=Action.DENY)]
    shops = [Shop("bank", resources__list=pages(["gold"])), Shop("shop", resources__list=pages(["bread"]))]
    await house(crib, *shops, rules=rules)

    everything = await crib.run("list_mcp_resources", {})
    bank = await crib.run("list_mcp_resources", {"server": "bank"})
    gold = await crib.run("read_mcp_resource", {"server": "bank", "uri": "gold"})

    assert [item["uri"] for item in json.loads(everything["result"]["output"])["resources"]] == ["bread"]
    assert bank["error"]["code"] == gold["error"]["code"] == "PermissionDenied"
    assert gold["error"]["details"]["pattern"] == "bank/resource:gold"


async def test_a_model_reads_texts_and_gets_files_along(crib: Crib) -> None:
    blob = base64.b64encode(b"\x89PNG").decode()
    contents = [
        {"uri": "doc://1", "text": "hello", "mimeType": "text/plain"},
        {"uri": "file:///x/pic.png", "blob": blob, "mimeType": "image/png"},
        {"uri": "file:///y", "blob": "!"},
    ]
    await house(crib, Shop(resources__read={"contents": contents, "_meta": {"v": 1}}))

    view = await crib.run("read_mcp_resource", {"server": "shop", "uri": "doc://1"})

    assert json.loads(view["result"]["output"]) == {
        "server": "shop",
        "uri": "doc://1",
        "contents": [
            {"uri": "doc://1", "text": "hello", "mimeType": "text/plain"},
            {"uri": "file:///x/pic.png", "mimeType": "image/png", "blob": "[4 bytes, attached as file 1]"},
            {"uri": "file:///y", "blob": "[left out: its base64 cannot be read]"},
        ],
        "_meta": {"v": 1},
    }
    assert view["result"]["attachments"] == [
        {"type": "file", "mime": "image/png", "filename": "pic.png", "url": f"data:image/png;base64,{blob}"}
    ]


async def test_a_model_hears_which_servers_there_are(crib: Crib) -> None:
    await house(crib, Shop())

    view = await crib.run("read_mcp_resource", {"server": "shp", "uri": "a"})

    assert view["error"] == {
        "code": "InvalidArgs",
        "message": "There is no MCP server shp; there are: shop.",
        "retryable": False,
    }
