"""What MCP servers have, seen through the door: results, resources, prompts, and what changes of them."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, types

from app.core.principals import Scope
from tests.mcp.changing_server import BLOCKS
from tests.mcp.server_clients import ERAS, User, accept, mcp_client
from tests.support.ask_calls import key_with
from tests.support.mcp_service import crib
from tests.support.services import HANG, RunningService, until

MODES = pytest.mark.parametrize("mode", ERAS)
PLAIN = "?names=plain"


def corner(name: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", str(Path(__file__).parent / "changing_server.py"), name]}


@pytest.fixture
async def one(data_dir: Path) -> AsyncIterator[RunningService]:
    """A service with one server."""
    async with crib(data_dir, {"near": corner("near")}) as service:
        yield service


@pytest.fixture
async def two(data_dir: Path) -> AsyncIterator[RunningService]:
    """A service with two servers that have the same."""
    async with crib(data_dir, {"near": corner("near"), "far": corner("far")}) as service:
        yield service


def plain(found: Any) -> dict[str, Any]:
    shown: dict[str, Any] = found.model_dump(mode="json", by_alias=True, exclude_none=True)
    return shown


async def only_text(client: Client, uri: str) -> str:
    [content] = (await client.read_resource(uri)).contents
    assert isinstance(content, types.TextResourceContents)
    return content.text


@MODES
async def test_a_result_comes_out_as_its_server_gave_it(one: RunningService, mode: str) -> None:
    async with mcp_client(one, mode, query=PLAIN) as client:
        result = plain(await client.call_tool("blocks", {}))
        failed = plain(await client.call_tool("fail", {}))

    assert result["content"] == BLOCKS
    assert (result["structuredContent"], result["isError"]) == ({"n": 5}, False)
    assert result["_meta"]["corner.example/x"] == 1
    assert failed["content"] == [{"type": "text", "text": "No bread."}, BLOCKS[1]]
    assert failed["isError"] is True
    [kept] = one.rows("SELECT result FROM calls WHERE tool = 'mcp__near__blocks'")
    assert kept["result"].count("iVBORw0KGgo=") == 1


@MODES
async def test_what_one_server_has_goes_by_its_own_names(one: RunningService, mode: str) -> None:
    async with mcp_client(one, mode, query=PLAIN) as client:
        listed = [resource.uri for resource in (await client.list_resources()).resources]
        templates = [template.uri_template for template in (await client.list_resource_templates()).resource_templates]
        texts = [await only_text(client, uri) for uri in ("corner://note", "corner://page/7", "corner://unlisted")]
        [content] = (await client.read_resource("corner://bytes")).contents
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        filled = await client.get_prompt("greet", {"who": "Ann"})
        names = [
            (await client.complete(ref, {"name": "who", "value": "A"})).completion.values
            for ref in (
                types.PromptReference(type="ref/prompt", name="greet"),
                types.ResourceTemplateReference(type="ref/resource", uri="corner://page/{number}"),
            )
        ]
        with pytest.raises(MCPError, match="Unknown prompt: nobody"):
            await client.get_prompt("nobody", {})

    assert (listed, templates) == (["corner://note", "corner://bytes"], ["corner://page/{number}"])
    assert texts == ["a note", "read corner://page/7", "read corner://unlisted"]
    assert isinstance(content, types.BlobResourceContents)
    assert content.blob == "AAEC"
    assert prompts == ["greet"]
    assert plain(filled.messages[0].content) == {"type": "text", "text": "near greets Ann"}
    assert names == [["greet", "A"], ["corner://page/{number}", "A"]]
    tools = {row["tool"] for row in one.rows("SELECT tool FROM calls WHERE status = 'completed'")}
    assert tools == {"read_mcp_resource", "mcp_prompt"}


@MODES
async def test_what_two_servers_have_says_whose_it_is(two: RunningService, mode: str) -> None:
    async with mcp_client(two, mode, query=PLAIN) as client:
        listed = {resource.uri for resource in (await client.list_resources()).resources}
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        text = await only_text(client, "toolcrib://mcp/far/corner://note")
        filled = await client.get_prompt("mcp__far__greet", {"who": "Bob"})
        with pytest.raises(MCPError, match=r"Use toolcrib://mcp/far/corner://note or toolcrib://mcp/near/"):
            await client.read_resource("corner://note")
        with pytest.raises(MCPError) as gone:
            await client.read_resource("corner://nowhere")

    assert "toolcrib://mcp/far/corner://note" in listed
    assert {uri.split("/")[3] for uri in listed} == {"near", "far"}
    assert prompts == ["mcp__far__greet", "mcp__near__greet"]
    assert (text, plain(filled.messages[0].content)["text"]) == ("a note", "far greets Bob")
    assert gone.value.code == {"legacy": -32002, "auto": -32602}[mode]
    assert gone.value.error.data == {"uri": "corner://nowhere"}


@MODES
async def test_rules_count_for_what_is_read(data_dir: Path, mode: str) -> None:
    rules = [
        {"permission": "mcp", "pattern": "near/resource:corner://note", "action": "ask"},
        {"permission": "mcp", "pattern": "far/*", "action": "deny"},
    ]
    user = User(accept(decision="allow_once"), accept(decision="deny"))
    servers = {"near": corner("near"), "far": corner("far")}
    async with (
        crib(data_dir, servers, rules=rules) as service,
        mcp_client(service, mode, query=PLAIN, elicitation_callback=user) as client,
    ):
        listed = {resource.uri for resource in (await client.list_resources()).resources}
        prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}
        text = await only_text(client, "corner://note")
        with pytest.raises(MCPError, match="did not allow mcp near/resource:corner://note"):
            await client.read_resource("corner://note")
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource("toolcrib://mcp/far/corner://note")

    assert (listed, prompts) == ({"corner://note", "corner://bytes"}, {"greet"})
    assert text == "a note"
    assert len(user.asked) == 2


class News:
    """What a client hears of changes, in the way of its era."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def __call__(self, message: Any) -> None:
        if "list_changed" in message.method or "updated" in message.method:
            uri = getattr(message.params, "uri", "") if message.params else ""
            self.heard.append(f"{message.method.removeprefix('notifications/')} {uri}".strip())

    async def listen(self, client: Client) -> None:
        self.is_listening = asyncio.Event()
        wanted: dict[str, Any] = {f"{kind}_list_changed": True for kind in ("tools", "prompts", "resources")}
        async with client.listen(**wanted, resource_subscriptions=["corner://note"]) as events:
            self.is_listening.set()
            async for _ in events:
                pass


@MODES
async def test_whatever_changes_is_told(one: RunningService, mode: str) -> None:
    news = News()
    async with mcp_client(one, mode, query=PLAIN, message_handler=news) as client:
        listening = None
        if mode == "auto":
            listening = asyncio.create_task(news.listen(client))
            await until(lambda: hasattr(news, "is_listening"))
            async with asyncio.timeout(HANG):
                await news.is_listening.wait()
        else:
            await until(lambda: one.services.stream_slots.taken)
            asked = types.SubscribeRequest(params=types.SubscribeRequestParams(uri="corner://note"))
            await client.session.send_request(asked, types.EmptyResult)
        for what, told in (
            ("prompts", "prompts/list_changed"),
            ("resources", "resources/list_changed"),
            ("corner://note", "resources/updated corner://note"),
            ("corner://bytes", None),
            ("tools", "tools/list_changed"),
        ):
            await client.call_tool("change", {"what": what})
            if told is not None:
                await until(lambda told=told: told in news.heard)  # type: ignore[misc]
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        tools = {tool.name for tool in (await client.list_tools()).tools}
        if listening is not None:
            listening.cancel()

    assert prompts == ["greet", "prompts0"]
    assert "tools0" in tools
    assert not any("bytes" in told for told in news.heard)


async def test_nobody_hears_of_what_they_do_not_see(data_dir: Path) -> None:
    tokens = {}
    heard = {name: News() for name in ("ann", "bob")}
    async with crib(data_dir, {}, mcp={"stdio_over_rest": True}) as service:
        for name in heard:
            tokens[name] = await key_with(service, Scope.ADMIN, principal=name)
        async with service.client_of(tokens["ann"]) as ann:
            made = await ann.post("/v1/mcp/servers?own=true", json={"name": "near"} | corner("near"))
        assert (made.status_code, made.json()["state"]) == (201, "connected")
        async with (
            mcp_client(service, "legacy", bearer(tokens["ann"]), PLAIN, message_handler=heard["ann"]) as hers,
            mcp_client(service, "legacy", bearer(tokens["bob"]), PLAIN, message_handler=heard["bob"]) as his,
        ):
            await until(lambda: len(service.services.stream_slots.taken) == 2)
            for what in ("resources", "prompts", "tools"):
                await hers.call_tool("change", {"what": what})
            await until(lambda: len({*heard["ann"].heard}) == 3)
            resources, prompts = (await his.list_resources()).resources, (await his.list_prompts()).prompts
            with pytest.raises(MCPError, match="Unknown tool"):
                await his.call_tool("change", {"what": "tools"})

    assert (heard["bob"].heard, resources, prompts) == ([], [], [])


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
