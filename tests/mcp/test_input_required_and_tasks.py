"""Requests that take more than one: servers that want to know more first, and tools that are tasks."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from app.core.asks import Answer
from app.core.mcp_servers import StdioServer
from app.core.principals import Key, Scope
from app.core.util.json_codec import Raw
from app.mcp.client import input_required, tasks, tools
from app.mcp.client.interfaces import MODERN, ConnectionLost, JsonRpcError
from tests.mcp.toy_connections import Asked, Neighbourhood, ToyUpstream, hello, text, told
from tests.support.services import Crib, until

TOOL = "mcp__toy__do"
REVIEWER = Key("key_r", "ada", "", frozenset({Scope.ASKS_ANSWER}), "", 0)
FORM = {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": {"type": "object"}}}
TASK = told(execution={"taskSupport": "required"})


def modern(answer: Any) -> ToyUpstream:
    return ToyUpstream(answer, server_info=hello(MODERN))


async def test_what_a_server_wants_to_know_first_is_asked_and_sent_with_its_state(crib: Crib) -> None:
    async def answer(asked: Asked) -> Raw:
        if "inputResponses" not in asked.params:
            requests = {"sure": FORM, "where": {"method": "roots/list"}}
            return {"resultType": "input_required", "inputRequests": requests, "requestState": "opaque"}
        return text("done", resultType="complete")

    upstream = modern(answer)
    await Neighbourhood(crib, roots=["/srv"]).open(upstream, told())
    live = crib.submit(TOOL, {"n": 1})
    await until(lambda: live.approval.ask is not None and live.call.waiting is not None and live._is_interruptible)
    assert live.approval.ask is not None
    await crib.services.asks.answer(live.approval.ask, Answer(content={"sure": True}), REVIEWER)
    view = await crib.ended(live)

    assert view["result"]["output"] == "done"
    can = {"elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": True}}
    meta = {"io.modelcontextprotocol/clientCapabilities": can}
    assert [asked.params for asked in upstream.asked] == [
        {"name": "do", "arguments": {"n": 1}, "_meta": meta},
        {
            "name": "do",
            "arguments": {"n": 1},
            "_meta": meta,
            "inputResponses": {
                "sure": {"action": "accept", "content": {"sure": True}},
                "where": {"roots": [{"uri": "file:///srv", "name": "srv"}]},
            },
            "requestState": "opaque",
        },
    ]


async def test_a_server_may_only_want_to_be_asked_again(crib: Crib) -> None:
    async def answer(asked: Asked) -> Raw:
        if asked.params.get("requestState") != "2":
            state = str(int(asked.params.get("requestState", "0")) + 1)
            return {"resultType": "input_required", "requestState": state}
        return text("done")

    upstream = modern(answer)
    await Neighbourhood(crib).open(upstream, told())
    view = await crib.run(TOOL, {})

    assert view["result"]["output"] == "done"
    assert len(upstream.asked) == 3


async def test_a_server_that_never_knows_enough_is_given_up(crib: Crib) -> None:
    async def answer(asked: Asked) -> Raw:
        return {"resultType": "input_required", "inputRequests": {"where": {"method": "roots/list"}}}

    upstream = modern(answer)
    await Neighbourhood(crib).open(upstream, told())
    view = await crib.run(TOOL, {})

    assert view["error"]["code"] == "McpError"
    assert view["error"]["message"].startswith("The server answered `input_required` 10 times in a row")
    assert len(upstream.asked) == 11


@pytest.mark.parametrize("request_", [{"method": "secrets/list"}, "nonsense", {"method": "sampling/createMessage"}])
async def test_what_cannot_be_answered_ends_the_call(crib: Crib, request_: Any) -> None:
    async def answer(asked: Asked) -> Raw:
        return {"resultType": "input_required", "inputRequests": {"a": FORM, "b": request_}}

    upstream = modern(answer)
    await Neighbourhood(crib).open(upstream, told())
    view = await crib.run(TOOL, {})

    assert view["error"]["code"] == "McpError"
    assert view["error"]["message"].startswith("The server needs more input and cannot get it: ")
    assert len(upstream.asked) == 1
    assert crib.services.asks.open_asks == 0


PAGE = {"mode": "url", "url": "https://example.com/sign", "elicitationId": "e1", "message": "Sign in."}


@pytest.mark.parametrize(("agrees", "output"), [(True, "done"), (False, None)])
async def test_a_page_that_has_to_be_visited_first_is_shown_and_then_the_server_is_asked_again(
    crib: Crib, agrees: bool, output: str | None
) -> None:
    async def answer(asked: Asked) -> Raw:
        if len(upstream.asked) == 1:
            raise JsonRpcError(-32042, "sign in first", {"elicitations": [PAGE, "nonsense"]})
        return text("done")

    upstream, town = ToyUpstream(answer), Neighbourhood(crib)
    await town.open(upstream, told())
    live = crib.submit(TOOL, {})
    await until(lambda: live.approval.ask is not None and live.call.waiting is not None and live._is_interruptible)
    assert live.approval.ask is not None
    shown = live.approval.ask.metadata
    said = Answer(content={}) if agrees else Answer(action="decline")
    await crib.services.asks.answer(live.approval.ask, said, REVIEWER)
    await until(lambda: live.call.waiting is None)
    sent = len(upstream.asked)
    town.server_requests.handler_for(upstream).on_notification(
        "notifications/elicitation/complete", {"elicitationId": "e1"}, None
    )
    view = await crib.ended(live)

    assert (shown["mode"], shown["url"]) == ("url", "https://example.com/sign")
    assert sent == 1
    assert (view["result"] and view["result"]["output"]) == output
    if not agrees:
        assert view["error"]["details"]["data"] == {"elicitations": [PAGE, "nonsense"]}


async def test_a_server_that_does_not_say_when_a_person_is_through_is_asked_now_and_then(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_required, "URL_WAIT_SECONDS", 0.01)

    async def answer(asked: Asked) -> Raw:
        if len(upstream.asked) < 4:
            raise JsonRpcError(-32042, "sign in first", {"elicitations": [PAGE]})
        return text("done")

    upstream = ToyUpstream(answer)
    await Neighbourhood(crib).open(upstream, told())
    live = crib.submit(TOOL, {})
    await until(lambda: live.approval.ask is not None and live.call.waiting is not None and live._is_interruptible)
    assert live.approval.ask is not None
    await crib.services.asks.answer(live.approval.ask, Answer(content={}), REVIEWER)
    view = await crib.ended(live)

    assert view["result"]["output"] == "done"
    assert len(crib.rows("SELECT * FROM asks")) == 1


class TaskServer:
    """A server whose tool is a task that goes through these states."""

    def __init__(self, *states: Raw) -> None:
        self.states = list(states)
        self.result: Raw | JsonRpcError = text("researched")
        self.polled = asyncio.Event()
        self.upstream = ToyUpstream(self.answer)

    async def answer(self, asked: Asked) -> Raw:
        match asked.method:
            case "tools/call":
                return {"task": {"taskId": "t1", "pollInterval": 1} | self.states[0]}
            case "tasks/get":
                self.polled.set()
                if len(self.states) > 1:
                    self.states.pop(0)
                return {"taskId": "t1", "pollInterval": 1} | self.states[0]
            case "tasks/result":
                if isinstance(self.result, JsonRpcError):
                    raise self.result
                return self.result
        return {}

    @property
    def methods(self) -> list[str]:
        return [asked.method for asked in self.upstream.asked]


async def test_a_tool_that_has_to_be_a_task_is_asked_after_until_it_is_done(crib: Crib) -> None:
    server = TaskServer(
        {"status": "working"}, {"status": "working", "statusMessage": "halfway"}, {"status": "completed"}
    )
    await Neighbourhood(crib).open(server.upstream, TASK)

    view = await crib.run(TOOL, {"topic": "owls"})

    assert view["result"]["output"] == "researched"
    assert server.methods == ["tools/call", "tasks/get", "tasks/get", "tasks/result"]
    asked = server.upstream.asked
    assert asked[0].params == {"name": "do", "arguments": {"topic": "owls"}, "task": {"ttl": tasks.TTL_MS}}
    assert asked[1].params == asked[3].params == {"taskId": "t1"}
    titles = [json.loads(one["data"])["title"] for one in crib.events(view["id"]) if one["type"] == "call.progress"]
    assert "halfway" in titles


async def test_a_task_that_needs_input_is_waited_for_by_its_result(crib: Crib) -> None:
    """There the server gets to ask: on the stream of that request."""
    server = TaskServer({"status": "working"}, {"status": "input_required"})
    await Neighbourhood(crib).open(server.upstream, TASK)

    view = await crib.run(TOOL, {})

    assert view["result"]["output"] == "researched"
    assert server.methods[-1] == "tasks/result"
    assert server.upstream.asked[-1].about is not None


async def test_a_task_that_failed_says_why(crib: Crib) -> None:
    server = TaskServer({"status": "failed", "statusMessage": "no owls here"})
    server.result = JsonRpcError(-32603, "nothing to give")
    await Neighbourhood(crib).open(server.upstream, TASK)

    view = await crib.run(TOOL, {})

    assert view["error"]["message"] == "The task failed at the server: no owls here"
    assert view["error"]["details"]["code"] == -32603


async def test_who_gives_up_a_call_gives_up_its_task(crib: Crib) -> None:
    server = TaskServer({"status": "working"})
    await Neighbourhood(crib).open(server.upstream, TASK)
    live = crib.submit(TOOL, {})
    await until(server.polled.is_set)

    await crib.cancel(live)

    assert crib.end(live.call.id) == ("error", "Canceled")
    assert server.methods[-1] == "tasks/cancel"
    assert server.upstream.asked[-1].params == {"taskId": "t1"}


async def test_a_task_is_found_again_on_the_next_link(crib: Crib) -> None:
    server = TaskServer({"status": "working"}, {"status": "completed"})
    before = server.answer

    async def lose_once(asked: Asked) -> Raw:
        if asked.method == "tasks/get" and len(server.upstream.links) == 1:
            asked.link.lose()
            raise ConnectionLost("the network is gone")
        return await before(asked)

    server.upstream.answer = lose_once
    await Neighbourhood(crib).open(server.upstream, TASK)

    view = await crib.run(TOOL, {})

    assert view["result"]["output"] == "researched"
    assert server.methods.count("tools/call") == 1


async def test_a_task_whose_server_is_gone_is_not_made_again(crib: Crib, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "RECONNECT_SECONDS", 0.05)
    server = TaskServer({"status": "working"})
    before = server.answer

    async def go(asked: Asked) -> Raw:
        if asked.method == "tasks/get":
            server.upstream.is_down = True
            raise ConnectionLost("the network is gone")
        return await before(asked)

    server.upstream.answer = go
    await Neighbourhood(crib).open(server.upstream, TASK)

    view = await crib.run(TOOL, {})

    assert view["error"]["code"] == "McpDisconnected"
    assert server.methods.count("tools/call") == 1


@pytest.mark.parametrize(
    ("raw", "capabilities"),
    [
        (told(execution={"taskSupport": "optional"}), {"tasks": {"requests": {"tools": {"call": {}}}}}),
        (TASK, {}),
        (told(execution="required"), {"tasks": {"requests": {"tools": {"call": {}}}}}),
    ],
)
async def test_only_what_has_to_be_a_task_is_one(raw: Raw, capabilities: Raw) -> None:
    assert not tools.requires_task(raw, replace(hello(), capabilities=capabilities))
    assert tools.requires_task(TASK, hello())
    assert not tools.requires_task(TASK, hello(MODERN))


@pytest.mark.parametrize(
    ("interval", "seconds"), [(None, 1.0), (1, 0.05), (2000, 2.0), (10**9, 30.0), (-5, 0.05), (True, 1.0), ("x", 1.0)]
)
def test_a_server_is_not_asked_too_often_or_too_rarely(interval: Any, seconds: float) -> None:
    assert tasks._poll_interval({"pollInterval": interval}) == seconds


async def test_the_time_of_a_silent_task_runs_out(crib: Crib) -> None:
    server = TaskServer({"status": "working", "statusMessage": "still", "lastUpdatedAt": "then"})
    server.upstream.definition = StdioServer(name="toy", kind="stdio", command="toy", call_timeout=0.3)
    await Neighbourhood(crib).open(server.upstream, TASK)

    view = await crib.run(TOOL, {})

    assert view["error"]["code"] == "Timeout"
    assert server.methods[-1] == "tasks/cancel"
