"""Calls of MCP tools: one request each, and what becomes of it when the server says no, says nothing or is gone."""

import asyncio
import json
from typing import Any

import pytest

from app.core.mcp_servers import HttpServer, StdioServer
from app.core.ports import TraceContext
from app.core.rules import Need
from app.core.tools import Alias, Context, Effect, Lane, Origin
from app.core.util.json_codec import Raw
from app.custom import json_schema
from app.mcp.client import tools
from app.mcp.client.interfaces import ConnectionLost, JsonRpcError, RequestNotSent
from tests.mcp.toy_connections import Asked, Neighbourhood, ToyUpstream, always, hello, text, told
from tests.support.services import HANG, Crib, until

TOOL = "mcp__toy__do"


async def calling(crib: Crib, upstream: ToyUpstream, raw: Raw | None = None, **more: Any) -> dict[str, Any]:
    """One call of the server's one tool, in a house of its own."""
    await Neighbourhood(crib).open(upstream, raw or told())
    return await crib.run(TOOL, more.pop("arguments", {}), **more)


def server(**more: Any) -> StdioServer:
    return StdioServer(**({"name": "toy", "kind": "stdio", "command": "toy"} | more))


async def test_a_tool_is_what_its_server_says_of_it(crib: Crib) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    raw = told(
        title="Do it",
        description="Does it.",
        inputSchema=schema,
        outputSchema={"type": "object"},
        annotations={"readOnlyHint": True, "vendorHint": 3},
    )
    upstream = ToyUpstream(always(text("done")), server(call_timeout=7), owner="ada")
    reception = Neighbourhood(crib).server_requests

    tool = tools.make(
        upstream,
        raw,
        TOOL,
        (Alias("toy__do"),),
        parser=json_schema.make_parser,
        checker=json_schema.make_checker,
        server_requests=reception,
    )

    assert (tool.name, tool.title, tool.description, tool.schema) == (TOOL, "Do it", "Does it.", schema)
    assert (tool.effect, tool.lane, tool.timeout, tool.owner) == (Effect.READ, "server:ada/toy", 7, "ada")
    assert (tool.source, tool.permission, tool.origin) == ("mcp", "mcp", Origin("toy", raw))
    assert tool.annotations == {"readOnlyHint": True, "vendorHint": 3}
    assert tool.output_schema == {"type": "object"}
    assert [alias.name for alias in tool.aliases] == ["toy__do"]
    assert tool.needs({}, None) == [Need("mcp", "toy/do")]  # type: ignore[arg-type]
    assert tool.parse({"n": "3"}) == {"n": 3}


@pytest.mark.parametrize(
    ("more", "lane"),
    [({}, "server:toy"), ({"parallel": True}, Lane.NONE), ({"per_session": True}, Lane.SESSION)],
)
async def test_calls_of_a_server_keep_their_order_unless_it_says_otherwise(
    crib: Crib, more: dict[str, Any], lane: str
) -> None:
    tool = Neighbourhood(crib).make(ToyUpstream(always({}), server(**more)), told())

    assert tool.lane == lane
    assert tool.effect is Effect.WRITE
    assert tool.title == "do"
    assert tool.description == "The tool do of the MCP server toy."


async def test_what_our_validator_cannot_read_is_left_to_the_server(crib: Crib) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}}

    view = await calling(
        crib, upstream := ToyUpstream(always(text("ok"))), told(inputSchema=schema), arguments={"a": 1}
    )

    assert view["status"] == "completed"
    assert upstream.asked[0].params["arguments"] == {"a": 1}


async def test_what_describes_no_arguments_is_no_tool(crib: Crib) -> None:
    with pytest.raises(ValueError, match="does not describe an object"):
        Neighbourhood(crib).make(ToyUpstream(always({})), told(inputSchema={"type": "string"}))


@pytest.mark.parametrize(
    ("version", "header", "is_tool"),
    [("2026-07-28", "Region", True), ("2026-07-28", "My Region", False), ("2025-11-25", "My Region", True)],
)
async def test_what_wants_repeated_what_cannot_be_is_no_tool(
    crib: Crib, version: str, header: str, is_tool: bool
) -> None:
    """Only where it would be repeated: over HTTP, in the newer era."""
    site = HttpServer(name="toy", kind="http", url="http://127.0.0.1/mcp")
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": header}}}
    upstream = ToyUpstream(always({}), server_info=hello(version))
    asked = told(inputSchema=schema)

    assert Neighbourhood(crib).make(upstream, asked)
    upstream.definition = site
    if is_tool:
        assert Neighbourhood(crib).make(upstream, asked)
        return
    with pytest.raises(ValueError, match="x-mcp-header of region is not a valid header name"):
        Neighbourhood(crib).make(upstream, asked)


async def test_a_call_is_one_request_and_its_result(crib: Crib) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}

    view = await calling(
        crib, upstream := ToyUpstream(always(text("done"))), told(inputSchema=schema), arguments={"n": "5"}
    )

    assert view["status"] == "completed"
    assert view["result"]["output"] == "done"
    [asked] = upstream.asked
    assert (asked.method, asked.params) == ("tools/call", {"name": "do", "arguments": {"n": 5}})
    assert isinstance(asked.about, Context)
    assert asked.about.id == view["id"]


async def test_wrong_arguments_never_reach_the_server(crib: Crib) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    view = await calling(crib, upstream := ToyUpstream(always(text("done"))), told(inputSchema=schema))

    assert view["error"]["code"] == "InvalidArgs"
    assert "`n` is required" in view["error"]["message"]
    assert upstream.asked == []


async def test_a_traced_call_says_where_it_belongs(crib: Crib) -> None:
    upstream = ToyUpstream(always(text("done")))
    [tool] = await Neighbourhood(crib).open(upstream, told())
    seen = crib.toys.contexts
    await crib.run("echo")
    seen[0].trace = TraceContext("00-1-2-01").traceparent

    await tool.run({}, seen[0])

    assert upstream.asked[0].params["_meta"] == {"traceparent": "00-1-2-01"}


async def test_an_error_of_the_tool_keeps_its_content(crib: Crib) -> None:
    result = text("The disk is full.\nTry another one. " + "x" * 1000, isError=True, structuredContent={"free": 0})

    view = await calling(crib, ToyUpstream(always(result)))

    assert view["error"]["code"] == "McpError"
    assert view["error"]["message"].startswith("The disk is full. Try another one. xxx")
    assert len(view["error"]["message"]) == 300
    assert view["result"]["output"].startswith("The disk is full.\nTry")
    assert view["result"]["structured"] == {"free": 0}


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (JsonRpcError(-32602, "n is missing"), "McpError", "The MCP server toy refused the arguments: n is missing"),
        (JsonRpcError(-32603, ""), "McpError", "The MCP server toy answered with the error -32603: no message"),
        (
            JsonRpcError(-32000, "busy", {"after": 3}),
            "McpError",
            "The MCP server toy answered with the error -32000: busy",
        ),
        (
            JsonRpcError(-32602, "Unknown tool: do"),
            "ToolUnavailable",
            "The MCP server toy does not have this tool any more: Unknown tool: do",
        ),
        (
            JsonRpcError(-32602, "Tool do not found"),
            "ToolUnavailable",
            "The MCP server toy does not have this tool any more: Tool do not found",
        ),
    ],
)
async def test_a_no_of_the_server_is_told_in_its_words(crib: Crib, said: JsonRpcError, code: str, message: str) -> None:
    async def refuse(asked: Asked) -> Raw:
        raise said

    view = await calling(crib, upstream := ToyUpstream(refuse))

    assert (view["error"]["code"], view["error"]["message"]) == (code, message)
    assert view["error"]["details"] == {"code": said.code, "message": said.message, "data": said.data}
    assert len(upstream.asked) == 1


async def test_a_server_that_dies_has_the_call_once_and_other_calls_go_on(crib: Crib) -> None:
    async def die(asked: Asked) -> Raw:
        asked.link.lose()
        return await asyncio.Future()

    view = await calling(crib, upstream := ToyUpstream(die))

    assert view["error"]["code"] == "McpDisconnected"
    assert view["error"]["message"] == (
        "The MCP server toy disconnected during the call: its program has ended with the code 1. It is unknown whether "
        "the call took effect, so it is not sent again."
    )
    assert len(upstream.asked) == 1


@pytest.mark.parametrize("hint", ["readOnlyHint", "idempotentHint"])
async def test_what_can_be_repeated_is_sent_once_more_on_the_next_link(crib: Crib, hint: str) -> None:
    async def die_once(asked: Asked) -> Raw:
        if asked.link is upstream.links[0]:
            asked.link.lose()
            return await asyncio.Future()
        return text("done")

    upstream = ToyUpstream(die_once)
    view = await calling(crib, upstream, told(annotations={hint: True}))

    assert view["result"]["output"] == "done"
    assert len(upstream.links) == 2


async def test_what_can_be_repeated_is_not_sent_a_third_time(crib: Crib) -> None:
    async def die(asked: Asked) -> Raw:
        asked.link.lose()
        return await asyncio.Future()

    view = await calling(crib, upstream := ToyUpstream(die), told(annotations={"readOnlyHint": True}))

    assert view["error"]["code"] == "McpDisconnected"
    assert len(upstream.asked) == 2


async def test_what_never_reached_the_server_is_sent_again_whatever_it_does(crib: Crib) -> None:
    async def die_first(asked: Asked) -> Raw:
        if len(upstream.asked) == 1:
            raise RequestNotSent("the pipe is closed")
        return text("done")

    view = await calling(crib, upstream := ToyUpstream(die_first))

    assert view["result"]["output"] == "done"


async def test_a_server_that_does_not_come_back_is_waited_for_only_so_long(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "RECONNECT_SECONDS", 0.05)

    async def go(asked: Asked) -> Raw:
        upstream.is_down = True
        raise ConnectionLost("it is gone")

    view = await calling(crib, upstream := ToyUpstream(go), told(annotations={"readOnlyHint": True}))

    assert view["error"]["code"] == "McpDisconnected"
    assert len(upstream.asked) == 1


async def test_a_server_that_is_down_is_unavailable(crib: Crib) -> None:
    view = await calling(crib, ToyUpstream(always({}), is_down=True))

    assert view["error"]["code"] == "ToolUnavailable"


async def test_a_canceled_call_is_canceled_at_the_server(crib: Crib) -> None:
    async def hang(asked: Asked) -> Raw:
        return await asyncio.Future()

    upstream = ToyUpstream(hang)
    await Neighbourhood(crib).open(upstream, told())
    live = crib.submit(TOOL, {})
    await until(lambda: upstream.asked)

    await crib.cancel(live)

    assert crib.end(live.call.id) == ("error", "Canceled")
    assert upstream.links[0].canceled == ["tools/call"]


async def test_progress_is_told_and_keeps_the_call_alive(crib: Crib) -> None:
    async def work(asked: Asked) -> Raw:
        assert asked.progress is not None
        for step in range(8):
            asked.progress(step, 8, f"step {step}")
            await asyncio.sleep(0.1)
        return text("done")

    view = await calling(crib, ToyUpstream(work, server(call_timeout=0.5)))

    assert view["result"]["output"] == "done"
    steps = progress_of(crib, view["id"])
    assert steps[-1] == {"title": "step 7", "metadata": {"progress": 7, "total": 8}}
    assert len(steps) == 8


async def test_a_server_that_is_silent_runs_out_of_time(crib: Crib) -> None:
    async def hang(asked: Asked) -> Raw:
        return await asyncio.Future()

    view = await calling(crib, upstream := ToyUpstream(hang, server(call_timeout=0.1)))

    assert view["error"]["code"] == "Timeout"
    assert upstream.links[0].canceled == ["tools/call"]


async def test_a_flood_of_progress_is_few_events_and_the_last_is_among_them(crib: Crib) -> None:
    async def flood(asked: Asked) -> Raw:
        assert asked.progress is not None
        for step in range(20_000):
            asked.progress(step, None, None)
            if step % 1000 == 0:
                await asyncio.sleep(0)
        return text("done")

    async with asyncio.timeout(HANG * 4):
        view = await calling(crib, ToyUpstream(flood))

    steps = progress_of(crib, view["id"])
    assert steps[-1]["metadata"] == {"progress": 19_999}
    assert len(steps) <= 64


async def test_a_violated_output_schema_is_told_and_nothing_is_lost(crib: Crib) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wrong = text("here", structuredContent={"n": "five"})

    view = await calling(crib, ToyUpstream(always(wrong)), told(outputSchema=schema))

    assert view["status"] == "completed"
    assert (view["result"]["output"], view["result"]["structured"]) == ("here", {"n": "five"})
    assert view["result"]["metadata"]["output_schema_violation"] == (
        "The structured content violates the tool's output schema: `n`: expected integer (got 'five')."
    )


async def test_a_large_result_is_cut_and_kept_whole(crib: Crib) -> None:
    view = await calling(crib, ToyUpstream(always(text("x" * 5_000_000))))

    assert view["result"]["metadata"]["truncated"] is True
    assert view["result"]["metadata"]["original_size"] == 5_000_000
    assert len(view["result"]["output"]) < 200_000
    [row] = crib.rows("SELECT sum(length(data)) AS size FROM outputs WHERE call = ?", view["id"])
    assert row["size"] == 5_000_000


def progress_of(crib: Crib, call: str) -> list[dict[str, Any]]:
    return [json.loads(event["data"]) for event in crib.events(call) if event["type"] == "call.progress"]
