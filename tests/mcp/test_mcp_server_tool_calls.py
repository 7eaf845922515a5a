"""Calls at the door: listed, made, followed, taken back and repeated by clients of both eras."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import MCPError, types

from app.core.results import Attachment, Result, attach
from app.core.tools import Context
from app.mcp.server.progress import ProgressNotifier
from tests.mcp.server_clients import ERAS, AttendedToys, Waiting, mcp_client, proxied, texts
from tests.support.mcp_wire import Session2025, called, messages, spoken
from tests.support.services import KEY, RunningService, until
from tests.support.toy_tools import Toys

MODES = pytest.mark.parametrize("mode", ERAS)


@pytest.fixture
def toys() -> Toys:
    return AttendedToys()


@pytest.fixture
async def service(data_dir: Path, toys: Toys) -> AsyncIterator[RunningService]:
    service = RunningService(data_dir, toys)
    await service.open()
    yield service
    await service.close()


@MODES
async def test_a_tool_of_a_server_is_shown_as_its_server_shows_it(service: RunningService, mode: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    about: dict[str, Any] = {
        "title": "The Sum",
        "description": "Adds.",
        "inputSchema": schema,
        "outputSchema": {"type": "object", "properties": {"sum": {"type": "integer"}}},
        "annotations": {"destructiveHint": False, "openWorldHint": False},
        "icons": [{"src": "https://far.example/i.png", "mimeType": "image/png"}],
        "_meta": {"far.example/x": 1},
    }
    service.services.dispatcher.registry.add(proxied("far", "add", **about))

    async with mcp_client(service, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}

    shown = tools["mcp__far__add"].model_dump(mode="json", by_alias=True, exclude_none=True)
    meta = {"far.example/x": 1, "io.toolcrib/name": "mcp__far__add", "io.toolcrib/server": "far"}
    assert shown == about | {"name": "mcp__far__add", "_meta": meta}
    assert list(tools) == sorted(tools)
    hints = tools["echo"].annotations, tools["act"].annotations
    assert [hint and hint.read_only_hint for hint in hints] == [True, False]


@MODES
async def test_a_tool_the_protocol_cannot_say_costs_only_itself(service: RunningService, mode: str) -> None:
    registry = service.services.dispatcher.registry
    registry.add(proxied("far", "odd_output", outputSchema={"type": "array"}, icons="none"))
    registry.add(proxied("far", "odd_input", inputSchema={"type": "string"}))

    async with mcp_client(service, mode) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}

    assert {"echo", "mcp__far__odd_output"} <= names
    assert "mcp__far__odd_input" not in names


@MODES
async def test_plain_names_are_given_where_they_say_which_tool_is_meant(service: RunningService, mode: str) -> None:
    for server, name in (("far", "add"), ("far", "both"), ("near", "both"), ("far", "echo"), ("far", "no such/name")):
        tool = proxied(server, name)
        service.services.dispatcher.registry.add(replace(tool, name=tool.name.replace("no such/name", "odd")))

    async with mcp_client(service, mode, query="?names=plain") as client:
        plain = {tool.name for tool in (await client.list_tools()).tools}
        answers = [texts(await client.call_tool(name, {}))[0] for name in ("add", "mcp__far__add", "mcp__near__both")]
        echoed = texts(await client.call_tool("echo", {"text": "mine"}))
    async with mcp_client(service, mode) as client:
        prefixed = {tool.name for tool in (await client.list_tools()).tools}

    shown = {"add", "echo", "mcp__far__both", "mcp__near__both", "mcp__far__echo", "mcp__far__odd"}
    assert {name for name in plain if name in shown or name.startswith("mcp__")} == shown
    assert answers == ["far did add", "far did add", "near did both"]
    assert echoed == ["mine"]
    assert "mcp__far__add" in prefixed
    assert "add" not in prefixed


async def test_a_long_list_comes_in_pages(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.mcp.server.tools.PAGE_SIZE", 5)

    async with mcp_client(service, "legacy") as client:
        names, cursor = list[str](), None
        while True:
            page = await client.list_tools(cursor=cursor)
            names += [tool.name for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break

    over_rest = (await service.client.get("/v1/tools")).json()["data"]
    assert names == [tool["name"] for tool in over_rest]


async def test_the_setting_gives_plain_names_and_a_request_may_want_others(data_dir: Path) -> None:
    service = RunningService(data_dir, AttendedToys(), mcp={"names": "plain"})
    await service.open()
    service.services.dispatcher.registry.add(proxied("far", "add"))

    lists = [
        (await service.client.post(f"/mcp{query}", **spoken("tools/list"))).json()
        for query in ("", "?names=prefixed", "?names=plain")
    ]
    wrong = await service.client.post("/mcp?names=odd", **spoken("tools/list"))
    await service.close()

    named = ["add" in {tool["name"] for tool in answer["result"]["tools"]} for answer in lists]
    assert named == [True, False, True]
    assert (wrong.status_code, wrong.json()["detail"]) == (422, "names: one of plain, prefixed is needed.")


@MODES
async def test_an_unknown_tool_is_an_error_of_the_protocol_and_no_call(service: RunningService, mode: str) -> None:
    async with mcp_client(service, mode) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("no_such_tool", {})

    assert refused.value.code == types.INVALID_PARAMS
    assert service.rows("SELECT * FROM calls") == []


@MODES
async def test_progress_is_told_to_who_wants_it_and_only_grows(service: RunningService, mode: str) -> None:
    async def work(args: Any, ctx: Context) -> Result:
        for title, about in (
            ("begin", {}),
            ("half", {"progress": 5, "total": 10}),
            ("back", {"progress": 2, "total": 10}),
            ("end", {"progress": 10, "total": 10}),
        ):
            ctx.metadata(title, about)
            await asyncio.sleep(0.03)
        return Result("done")

    service.services.dispatcher.registry.add(proxied("far", "work", work))
    told = list[tuple[float, float | None, str | None]]()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with mcp_client(service, mode) as client:
        result = await client.call_tool("mcp__far__work", {}, progress_callback=hear)
        builtin = list(told)
        told.clear()
        await client.call_tool("tell", {"steps": 3}, progress_callback=hear)

    assert texts(result) == ["done"]
    assert [message for _, _, message in builtin] == ["begin", "half", "back", "end"]
    assert [round(progress, 6) for progress, _, _ in builtin] == [1, 5, 5, 10]
    assert all(one[0] < other[0] for one, other in pairwise(builtin))
    assert told
    assert told[-1][2] == "step 2"


def test_steps_without_numbers_are_counted() -> None:
    steps = ProgressNotifier()

    assert [steps.next({"title": title}) for title in "abc"] == [(1, None, "a"), (2, None, "b"), (3, None, "c")]
    assert steps.next({"metadata": {"progress": True, "total": "x"}}) == (4, None, None)


@MODES
async def test_who_gives_up_stops_the_call(service: RunningService, toys: Toys, mode: str) -> None:
    async with mcp_client(service, mode) as client:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "wait_free", {"name": "long"})
                await service.started("long")
                scope.cancel()
        await until(lambda: not len(service.services.dispatcher.live_calls))

    [row] = service.rows("SELECT id FROM calls")
    assert service.end(row["id"]) == ("error", "Canceled")
    assert toys.log == ["long in", "long out"]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_version_with_a_handshake_is_spoken(service: RunningService, version: str) -> None:
    async def rich(args: Any, ctx: Context) -> Result:
        link = Attachment("text/plain", "https://far.example/x.txt", "x.txt")
        return Result("text", attachments=(attach(b"sound", "audio/wav"), link), structured={"a": 1})

    service.services.dispatcher.registry.add(proxied("far", "rich", rich))
    session = Session2025(service.client, version)

    hello = await session.begin()
    listed = (await session.ask(1, "tools/list"))["result"]["tools"]
    result = (await session.ask(2, "tools/call", name="mcp__far__rich", arguments={}))["result"]

    assert hello["protocolVersion"] == version
    assert hello["capabilities"]["tools"] == {"listChanged": True}
    assert "echo" in {tool["name"] for tool in listed}
    kinds = {"2024-11-05": ["text", "resource", "text"], "2025-03-26": ["text", "audio", "text"]}
    assert [block["type"] for block in result["content"]] == kinds.get(version, ["text", "audio", "resource_link"])


async def test_a_connection_that_breaks_does_not_stop_a_call_of_2025(service: RunningService, toys: Toys) -> None:
    session = Session2025(service.client)
    await session.begin()
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "wait_free"}}

    async with (
        service.client_of(KEY) as broken,
        broken.stream("POST", "/mcp", json=message, headers=session.headers) as answer,
    ):
        assert answer.status_code == 200
        await service.started("wait")
    assert len(service.services.dispatcher.live_calls) == 1
    toys.go["wait"].set()
    await until(lambda: not len(service.services.dispatcher.live_calls))

    [row] = service.rows("SELECT id FROM calls")
    assert service.end(row["id"]) == ("completed", None)


async def test_a_stream_that_is_closed_stops_a_call_of_2026(service: RunningService) -> None:
    async with service.client_of(KEY) as broken:
        posting = asyncio.create_task(broken.post("/mcp", **called("wait_free")))
        await service.started("wait")
        posting.cancel()
        await asyncio.wait([posting])
    await until(lambda: not len(service.services.dispatcher.live_calls))

    [row] = service.rows("SELECT id FROM calls")
    assert service.end(row["id"]) == ("error", "Canceled")


async def test_who_ends_the_session_gives_up_its_calls(service: RunningService) -> None:
    session = Session2025(service.client)
    await session.begin()
    calling = Waiting(
        session.post({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "wait_free"}})
    )
    await service.started("wait")

    ended = await service.client.delete("/mcp", headers=session.headers)
    await asyncio.wait([calling.task])
    after = await session.post({"jsonrpc": "2.0", "id": 8, "method": "tools/list"})

    await until(lambda: not len(service.services.dispatcher.live_calls))
    [row] = service.rows("SELECT id FROM calls")
    assert (ended.status_code, after.status_code) == (200, 404)
    assert service.end(row["id"]) == ("error", "Canceled")


@MODES
@pytest.mark.parametrize("name", ["io.toolcrib/idempotency-key", "idempotencyKey"])
async def test_a_repeat_with_the_same_key_is_the_same_call(
    service: RunningService, toys: Toys, mode: str, name: str
) -> None:
    meta: Any = {name: "once"}

    async with mcp_client(service, mode) as client:
        first = Waiting(client.call_tool("note", {"text": "a"}, meta=meta))
        second = Waiting(client.call_tool("note", {"text": "a"}, meta=meta))
        answers = [
            await first.result(),
            await second.result(),
            await client.call_tool("note", {"text": "a"}, meta=meta),
        ]
        with pytest.raises(MCPError, match="used with another body"):
            await client.call_tool("note", {"text": "b"}, meta=meta)
    over_rest = await service.client.post(
        "/v1/calls", json={"tool": "note", "arguments": {"text": "a"}}, headers={"Idempotency-Key": "once"}
    )

    assert toys.notes == ["a"]
    [row] = service.rows("SELECT id FROM calls")
    assert {answer.meta["io.toolcrib/call"] for answer in answers} == {row["id"]} == {over_rest.json()["id"]}


async def test_a_client_may_say_its_own_id_of_a_call(service: RunningService) -> None:
    async with mcp_client(service, "auto") as client:
        meta: Any = {"io.toolcrib/call-id": "toolu_1"}
        await client.call_tool("echo", {"text": "x"}, meta=meta)

    assert [row["call_id"] for row in service.rows("SELECT call_id FROM calls")] == ["toolu_1"]


async def test_what_was_cut_says_where_the_rest_is(service: RunningService) -> None:
    async with mcp_client(service, "auto") as client:
        result = await client.call_tool("flood", {"text": "x", "times": 500})

    [row] = service.rows("SELECT id FROM calls")
    cut, rest = texts(result)
    assert cut.startswith("x" * 100 + "\n[output truncated, 400 characters omitted]")
    assert rest == f"[The whole output (500 characters) can be read at GET /v1/calls/{row['id']}/output.]"


@MODES
async def test_what_a_server_wants_of_the_client_is_passed_on_and_answered(service: RunningService, mode: str) -> None:
    async def sample(ctx: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        content = params.messages[0].content
        assert isinstance(content, types.TextContent)
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(text=f"re: {content.text}"), model="toy"
        )

    async def roots(ctx: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///work", name="work")])

    asked = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 10}
    async with mcp_client(service, mode, sampling_callback=sample, list_roots_callback=roots) as client:
        sampled = await client.call_tool(
            "turn_to_client", {"method": "sampling/createMessage", "params": asked, "times": 2}
        )
        rooted = await client.call_tool("turn_to_client", {"method": "roots/list"})
        with_tools = asked | {"tools": [{"name": "x", "inputSchema": {"type": "object"}}]}
        toolless = await client.call_tool("turn_to_client", {"method": "sampling/createMessage", "params": with_tools})
    async with mcp_client(service, mode) as client:
        refused = await client.call_tool("turn_to_client", {"method": "roots/list"})

    assert sampled.structured_content is not None
    assert [one["content"]["text"] for one in sampled.structured_content["answers"]] == ["re: hi"] * 2
    assert rooted.structured_content is not None
    assert rooted.structured_content["answers"][0]["roots"] == [{"uri": "file:///work", "name": "work"}]
    assert (texts(toolless), texts(refused)) == (["not offered"], ["not offered"])


async def test_a_client_that_fails_to_answer_has_declined(service: RunningService) -> None:
    async def sample(ctx: Any, params: Any) -> types.ErrorData:
        return types.ErrorData(code=-1, message="the user does not want that")

    asked = {"messages": [], "maxTokens": 1}
    async with mcp_client(service, "legacy", sampling_callback=sample) as client:
        result = await client.call_tool("turn_to_client", {"method": "sampling/createMessage", "params": asked})

    assert result.is_error is True
    assert texts(result) == ["Declined: The MCP client did not answer: the user does not want that."]


async def test_logs_of_2025_are_told_from_the_level_that_was_set(service: RunningService) -> None:
    heard = list[Any]()

    async def hear(params: types.LoggingMessageNotificationParams) -> None:
        heard.append((params.level, params.data, params.logger))

    levels = ["debug", "warning", "error", "shouting"]
    async with mcp_client(service, "legacy", logging_callback=hear) as client:
        await client.call_tool("log_to_client", {"levels": levels})
        everything = list(heard)
        heard.clear()
        await client.session.send_request(
            types.SetLevelRequest(params=types.SetLevelRequestParams(level="error")), types.EmptyResult
        )
        await client.call_tool("log_to_client", {"levels": levels})

    assert everything == [(level, f"said {level}", "toy") for level in levels[:3]]
    assert heard == [("error", "said error", "toy")]


async def test_logs_of_2026_are_told_to_requests_that_want_them(service: RunningService) -> None:
    def asked(level: str | None) -> dict[str, Any]:
        meta = {"io.modelcontextprotocol/logLevel": level} if level else {}
        params = {"name": "log_to_client", "arguments": {"levels": ["info", "error"]}, "_meta": meta}
        return spoken("tools/call", params)

    silent, told = [await service.client.post("/mcp", **asked(level)) for level in (None, "warning")]

    assert silent.headers["content-type"] == "application/json"
    said, result = messages(told.text)
    assert (said["method"], said["params"]["data"]) == ("notifications/message", "said error")
    assert result["result"]["content"] == [{"type": "text", "text": "logged"}]


async def test_a_client_that_does_not_listen_holds_nothing_up(service: RunningService) -> None:
    """What it is told waits in its own connection, and the call goes on."""

    async def work(args: Any, ctx: Context) -> Result:
        assert ctx.back_channel is not None
        for _ in range(2000):
            ctx.back_channel.notify("notifications/message", {"level": "info", "data": "x" * 5000})
        return Result("done")

    service.services.dispatcher.registry.add(proxied("far", "loud", work))
    session = Session2025(service.client)
    await session.begin()
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "mcp__far__loud"}}
    async with service.client_of(KEY) as deaf, deaf.stream("POST", "/mcp", json=message, headers=session.headers):
        await until(lambda: service.rows("SELECT 1 FROM calls WHERE status = 'completed'"))
