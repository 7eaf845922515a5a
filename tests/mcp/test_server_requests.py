"""What servers ask while they have a call, and while they have none: whose matter it is, and what they are answered."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from app.core.asks import Answer, Ask, Decision
from app.core.errors import Declined
from app.core.mcp_servers import StdioServer
from app.core.principals import Key, Scope
from app.core.sessions import Session
from app.core.util.json_codec import Raw
from app.dispatch.live_calls import LiveCall
from app.mcp.client.interfaces import Change, JsonRpcError
from app.mcp.client.sampling import Gateway
from app.mcp.client.server_requests import MAX_REQUESTS_PER_CALL, call_site
from app.net.outbound import CheckedOutbound
from tests.mcp.toy_connections import Asked, Neighbourhood, ToyUpstream, text, told
from tests.support.services import ADMIN, HANG, Crib, until

TOOL = "mcp__toy__do"
REVIEWER = Key("key_r", "ada", "", frozenset({Scope.ASKS_ANSWER}), "", 0)
FORM = {"message": "Your name?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
QUESTION = {"messages": [{"role": "user", "content": {"type": "text", "text": "Why?"}}], "maxTokens": 50}
KEY = "the-key-of-the-gateway"


def _find(owner: str, name: str) -> tuple[tuple[str, ...], str] | None:
    return ((), KEY) if (owner, name) == ("admin", "LLM") else None


SEND = partial(CheckedOutbound(_find, private_networks=["127.0.0.0/8"]).send, owner="admin")


class Server:
    """A server that asks something while it has a call; what came of that is in `said`, or in `refused`."""

    def __init__(self, **definition: Any) -> None:
        self.upstream = ToyUpstream(self.answer, StdioServer(name="toy", kind="stdio", command="toy", **definition))
        self.ask: Callable[[Asked], Awaitable[Any]] = self.nothing
        self.said: list[Any] = []
        self.refused: list[JsonRpcError] = []
        self.go = asyncio.Event()

    async def nothing(self, asked: Asked) -> None:
        await self.go.wait()

    async def answer(self, asked: Asked) -> Raw:
        try:
            self.said.append(await self.ask(asked))
        except JsonRpcError as said:
            self.refused.append(said)
        return text("done")


@pytest.fixture
def server() -> Server:
    return Server()


class Town(Neighbourhood):
    """A neighbourhood with one server, whose tool is being called."""

    async def calling(self, server: Server, method: str, params: Raw, *, named: bool = True, **more: Any) -> LiveCall:
        """Have the server called, which then asks this."""
        guest = self.server_requests.handler_for(server.upstream)
        server.ask = lambda asked: guest.on_request(method, params, asked.about if named else None)
        await self.open(server.upstream, told())
        return self.crib.submit(TOOL, {}, **more)


@pytest.fixture
def town(crib: Crib) -> Town:
    return Town(crib)


async def asked(live: LiveCall) -> Ask:
    await until(lambda: live.approval.ask is not None and live.call.waiting is not None and live._is_interruptible)
    assert live.approval.ask is not None
    return live.approval.ask


async def open_ask(crib: Crib) -> tuple[LiveCall, Ask]:
    """The one ask that is open, wherever it is."""
    await until(lambda: any(live.approval.ask and live.call.waiting for live in crib.services.dispatcher.live_calls))
    [found] = [live for live in crib.services.dispatcher.live_calls if live.approval.ask]
    return found, await asked(found)


@pytest.mark.parametrize("is_named", [True, False])
async def test_an_elicitation_belongs_to_the_call_it_names_or_to_the_only_one(
    crib: Crib, town: Town, server: Server, is_named: bool
) -> None:
    live = await town.calling(server, "elicitation/create", FORM, named=is_named)
    ask = await asked(live)

    await crib.services.asks.answer(ask, Answer(content={"name": "Ada"}), REVIEWER)
    view = await crib.ended(live)

    assert (ask.call, ask.kind) == (live.call.id, "elicitation")
    assert ask.metadata == {
        "server": "toy",
        "mode": "form",
        "message": "Your name?",
        "requested_schema": FORM["requestedSchema"],
    }
    assert server.said == [{"action": "accept", "content": {"name": "Ada"}}]
    assert view["status"] == "completed"


async def test_a_page_is_shown_and_agreed_to(crib: Crib, town: Town, server: Server) -> None:
    page = {"mode": "url", "url": "https://example.com/pay", "elicitationId": "e1", "message": "Pay, please."}
    live = await town.calling(server, "elicitation/create", page)
    ask = await asked(live)

    await crib.services.asks.answer(ask, Answer(content={}), REVIEWER)
    await crib.ended(live)

    assert ask.metadata == {
        "server": "toy",
        "mode": "url",
        "message": "Pay, please.",
        "url": "https://example.com/pay",
        "elicitation_id": "e1",
    }
    assert server.said == [{"action": "accept"}]


@pytest.mark.parametrize(
    "params",
    [
        {"message": "?"},
        {"mode": "url", "message": "?"},
        {"mode": "url", "url": "javascript:alert(1)"},
        {"mode": "url", "url": "http://["},
        {"mode": "fax", "requestedSchema": {}},
        {"message": "x" * 70_000, "requestedSchema": {}},
    ],
)
async def test_what_cannot_be_asked_is_refused_and_nobody_is_bothered(
    crib: Crib, town: Town, server: Server, params: Raw
) -> None:
    await crib.ended(await town.calling(server, "elicitation/create", params))

    assert [said.code for said in server.refused] == [-32602]
    assert crib.rows("SELECT * FROM asks") == []


@pytest.mark.parametrize(("more", "action"), [({"ask_timeout": 0.05}, "cancel"), ({"on_ask": "deny"}, "decline")])
async def test_where_nobody_answers_the_server_hears_that(
    crib: Crib, town: Town, server: Server, more: dict[str, Any], action: str
) -> None:
    view = await crib.ended(await town.calling(server, "elicitation/create", FORM, **more))

    assert server.said == [{"action": action}]
    assert view["status"] == "completed"


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_no_reaches_the_server(crib: Crib, town: Town, server: Server, action: str) -> None:
    live = await town.calling(server, "elicitation/create", FORM)

    await crib.services.asks.answer(await asked(live), Answer(action=action), REVIEWER)
    await crib.ended(live)

    assert server.said == [{"action": action}]


async def test_what_belongs_to_no_call_is_a_call_of_the_admins(crib: Crib, town: Town, server: Server) -> None:
    await town.open(server.upstream, told())
    guest = town.server_requests.handler_for(server.upstream)

    answering = asyncio.create_task(guest.on_request("elicitation/create", FORM, None))
    live, ask = await open_ask(crib)
    await crib.services.asks.answer(ask, Answer(content={"name": "Ada"}), REVIEWER)

    assert await answering == {"action": "accept", "content": {"name": "Ada"}}
    assert (live.call.tool, live.call.principal, ask.principal) == ("mcp_elicitation", "admin", "admin")
    assert ask.metadata["message"] == "Your name?"
    view = await crib.ended(live)
    assert view["result"]["structured"] == {"action": "accept", "content": {"name": "Ada"}}
    assert view["arguments"]["params"] == ask.metadata


async def test_of_two_calls_neither_gets_what_names_none(crib: Crib, town: Town, server: Server) -> None:
    await town.open(server.upstream, told(annotations={"readOnlyHint": True}))
    calls = [crib.submit(TOOL, {}) for _ in range(2)]
    await until(lambda: len(server.upstream.asked) == 2)

    answering = asyncio.create_task(
        town.server_requests.handler_for(server.upstream).on_request("elicitation/create", FORM, None)
    )
    live, ask = await open_ask(crib)
    await crib.services.asks.answer(ask, Answer(action="decline"), REVIEWER)

    assert await answering == {"action": "decline"}
    assert live not in calls
    assert live.call.tool == "mcp_elicitation"
    server.go.set()
    for call in calls:
        await crib.ended(call)


@pytest.mark.parametrize("tool", ["mcp_elicitation", "mcp_sampling"])
async def test_nobody_else_can_use_the_hidden_tools(crib: Crib, server: Server, tool: str) -> None:
    town = Town(crib, gateway=Gateway("http://127.0.0.1:9/v1", "m", SEND))
    await town.open(server.upstream, told())
    params = QUESTION if tool == "mcp_sampling" else {"mode": "form", "message": "Your password?"}
    live = crib.submit(tool, {"request_id": "guessed", "server": "bank", "params": params})
    if tool == "mcp_sampling":
        await crib.services.asks.answer(await asked(live), Answer(Decision.ALLOW_ONCE), REVIEWER)

    view = await crib.ended(live)

    assert view["error"]["code"] == "ToolUnavailable"
    assert tool not in [one.name for one in crib.services.dispatcher.registry.all("admin")]


async def test_a_question_ends_with_its_call(crib: Crib, town: Town, server: Server) -> None:
    live = await town.calling(server, "elicitation/create", FORM)
    ask = await asked(live)

    await crib.cancel(live)

    assert crib.end(live.call.id) == ("error", "Canceled")
    [row] = crib.rows("SELECT status FROM asks WHERE id = ?", ask.id)
    assert row["status"] == "expired"
    assert crib.services.asks.open_asks == 0


async def test_a_question_that_the_server_forgets_ends_with_its_result(crib: Crib, town: Town, server: Server) -> None:
    """It asks and does not wait for the answer: nothing of it is left when the call is over."""
    await town.open(server.upstream, told())
    guest = town.server_requests.handler_for(server.upstream)
    forgotten: list[asyncio.Task[Raw]] = []

    async def ask(asked: Asked) -> None:
        forgotten.append(asyncio.create_task(guest.on_request("elicitation/create", FORM, asked.about)))
        await server.go.wait()

    server.ask = ask
    live = crib.submit(TOOL, {})
    opened = await asked(live)
    server.go.set()
    view = await crib.ended(live)

    assert view["status"] == "completed"
    with pytest.raises(JsonRpcError, match="has ended"):
        await forgotten[0]
    [row] = crib.rows("SELECT status FROM asks WHERE id = ?", opened.id)
    assert row["status"] == "expired"


async def test_a_call_has_only_so_many_questions_at_once(crib: Crib, town: Town, server: Server) -> None:
    await town.open(server.upstream, told())
    guest = town.server_requests.handler_for(server.upstream)

    async def ask(asked: Asked) -> None:
        asking = [asyncio.create_task(guest.on_request("elicitation/create", FORM, asked.about)) for _ in range(20)]
        done, waiting = await asyncio.wait(asking, timeout=0.05)
        server.refused += [task.exception() for task in done]  # type: ignore[misc]
        server.said.append(len(waiting))
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)

    server.ask = ask
    await crib.ended(crib.submit(TOOL, {}))

    assert server.said[0] == MAX_REQUESTS_PER_CALL
    assert len(server.refused) == 20 - MAX_REQUESTS_PER_CALL


@pytest.mark.parametrize(
    ("definition", "operators", "uris"),
    [
        ({}, ["/srv/a b"], ["file:///srv/a%20b"]),
        ({"roots": ["/own", "https://example.com/tree"]}, ["/srv"], ["file:///own", "https://example.com/tree"]),
        ({"per_session": True}, ["/srv"], ["file:///here"]),
        ({"roots": "caller"}, ["/srv"], []),
    ],
)
async def test_roots_are_the_servers_own_or_the_sessions_or_the_operators(
    crib: Crib, definition: dict[str, Any], operators: list[str], uris: list[str]
) -> None:
    server, town = Server(**definition), Town(crib, roots=operators)

    answer = await town.server_requests.handler_for(server.upstream, ADMIN).on_request("roots/list", {}, None)

    assert [root["uri"] for root in answer["roots"]] == uris
    assert all(root["name"] for root in answer["roots"])


async def test_what_is_not_known_is_refused(town: Town, server: Server) -> None:
    with pytest.raises(JsonRpcError, match="tasks/get is not supported") as refused:
        await town.server_requests.handler_for(server.upstream).on_request("tasks/get", {}, None)

    assert refused.value.code == -32601


async def test_logs_are_events_of_the_call_and_a_flood_of_them_is_few(crib: Crib, town: Town, server: Server) -> None:
    await town.open(server.upstream, told())
    guest = town.server_requests.handler_for(server.upstream)

    async def ask(asked: Asked) -> None:
        for number in range(2000):
            params = {"level": "info", "logger": "db", "data": {"row": number} if number else "x" * 5000}
            guest.on_notification("notifications/message", params, None)
            if number % 100 == 0:
                await asyncio.sleep(0)

    server.ask = ask
    view = await crib.ended(crib.submit(TOOL, {}))

    told_of = [json.loads(one["data"]) for one in crib.events(view["id"]) if one["type"] == "call.progress"]
    assert told_of[-1]["metadata"]["log"] == {"level": "info", "logger": "db", "data": "{'row': 1999}"}
    assert len(told_of) <= 64
    assert max(len(one["metadata"]["log"]["data"]) for one in told_of) <= 2000


def test_a_changed_resource_is_posted(town: Town, server: Server) -> None:
    seen: list[Change] = []
    town.changes.subscribe(seen.append)

    town.server_requests.handler_for(server.upstream).on_notification(
        "notifications/resources/updated", {"uri": "doc://1"}, None
    )

    assert seen == [Change("resources", "toy", None, "doc://1")]


class Client:
    """An MCP client that waits for its call, and answers."""

    def __init__(self, *, offers: bool = True, declines: bool = False) -> None:
        self._offers = offers
        self._declines = declines
        self.told: list[tuple[str, Raw]] = []

    def offers(self, method: str, params: Raw) -> bool:
        return self._offers

    async def request(self, method: str, params: Raw) -> Raw:
        if self._declines:
            raise Declined("The client would rather not.")
        return {"roots": [{"uri": "file:///mine"}]} if method == "roots/list" else {"model": "theirs"}

    def notify(self, method: str, params: Raw) -> None:
        self.told.append((method, params))

    def opened(self, ask: Ask) -> None: ...

    def ended(self, ask: Ask) -> None: ...


async def attended(town: Town, server: Server, method: str, params: Raw, client: Client) -> None:
    await (await town.calling(server, method, params)).wait()
    server.said.clear()
    server.refused.clear()
    live = town.crib.services.dispatcher.submit(town.crib.request(TOOL, {}), ADMIN, back_channel=client)
    await town.crib.ended(live)


async def test_who_waits_for_the_call_is_asked_first(crib: Crib, town: Town, server: Server) -> None:
    await attended(town, server, "sampling/createMessage", QUESTION, Client())

    assert server.said == [{"model": "theirs"}]


async def test_who_waits_for_the_call_may_decline(crib: Crib, town: Town, server: Server) -> None:
    await attended(town, server, "sampling/createMessage", QUESTION, Client(declines=True))

    assert [(said.code, said.message) for said in server.refused] == [(-1, "The client would rather not.")]


async def test_the_callers_roots_are_those_of_who_waits_for_the_call(crib: Crib, town: Town) -> None:
    server = Server(roots="caller")

    await attended(town, server, "roots/list", {}, Client())

    assert server.said == [{"roots": [{"uri": "file:///mine"}]}]


async def test_without_a_gateway_no_model_is_asked(crib: Crib, town: Town, server: Server) -> None:
    await crib.ended(await town.calling(server, "sampling/createMessage", QUESTION))

    [refused] = server.refused
    assert refused.message == "sampling is not supported: no LLM gateway is configured"
    assert refused.code == -32601


class Model:
    """An OpenAI-compatible gateway on a port of its own."""

    def __init__(self) -> None:
        self.asked: list[Raw] = []
        self.keys: list[str | None] = []
        self.answer: Any = {
            "model": "m-2",
            "choices": [{"message": {"role": "assistant", "content": "Because."}, "finish_reason": "length"}],
        }
        self.status = 200

    async def complete(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        return web.json_response(self.answer, status=self.status)


@pytest.fixture
async def model() -> AsyncIterator[tuple[Model, str]]:
    model = Model()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield model, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


def with_gateway(crib: Crib, url: str) -> Town:
    return Town(crib, gateway=Gateway(url, "m-1", SEND, "LLM"))


async def test_a_model_is_asked_once_a_person_allows_it(crib: Crib, server: Server, model: tuple[Model, str]) -> None:
    asked_model, url = model
    question = QUESTION | {"systemPrompt": "Be short.", "temperature": 0.5, "stopSequences": ["!"]}
    live = await with_gateway(crib, url).calling(server, "sampling/createMessage", question)
    child, ask = await open_ask(crib)
    not_yet = list(asked_model.asked)

    await crib.services.asks.answer(ask, Answer(Decision.ALLOW_ONCE), REVIEWER)
    view = await crib.ended(live)

    assert view["status"] == "completed"
    assert not_yet == []
    assert asked_model.keys == [f"Bearer {KEY}"]
    assert (child.call.tool, child.call.parent) == ("mcp_sampling", live.call.id)
    assert ask.view()["needs"] == [{"permission": "mcp", "pattern": "toy/sampling:m-1"}]
    assert ask.metadata["messages"][1] == {"role": "user", "content": "Why?"}
    assert asked_model.asked == [
        {
            "model": "m-1",
            "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}],
            "max_tokens": 50,
            "temperature": 0.5,
            "stop": ["!"],
        }
    ]
    assert server.said == [
        {
            "role": "assistant",
            "content": {"type": "text", "text": "Because."},
            "model": "m-2",
            "stopReason": "maxTokens",
        }
    ]


async def test_a_model_is_not_asked_when_a_person_says_no(crib: Crib, server: Server, model: tuple[Model, str]) -> None:
    live = await with_gateway(crib, model[1]).calling(server, "sampling/createMessage", QUESTION)
    _, ask = await open_ask(crib)

    await crib.services.asks.answer(ask, replace(Answer(Decision.DENY), message="no models today"), REVIEWER)
    await crib.ended(live)

    [refused] = server.refused
    assert (refused.code, model[0].asked) == (-1, [])
    assert "no models today" in refused.message


async def test_a_gateway_that_fails_is_told_to_the_server(crib: Crib, server: Server, model: tuple[Model, str]) -> None:
    model[0].status, model[0].answer = 429, {"error": {"message": "slow down"}}
    live = await with_gateway(crib, model[1]).calling(server, "sampling/createMessage", QUESTION)
    _, ask = await open_ask(crib)

    await crib.services.asks.answer(ask, Answer(Decision.ALLOW_ONCE), REVIEWER)
    await crib.ended(live)

    [refused] = server.refused
    assert refused.code == -32603
    assert refused.message.startswith("The LLM gateway answered 429:")


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"messages": []},
        {"messages": [{"role": "system", "content": {"type": "text", "text": "x"}}]},
        {"messages": [{"role": "user", "content": {"type": "tool_result"}}]},
        QUESTION | {"tools": [{"name": "t"}]},
    ],
)
async def test_what_no_model_can_be_asked_is_not_asked_of_people_either(
    crib: Crib, server: Server, params: Raw
) -> None:
    town = Town(crib, gateway=Gateway("http://127.0.0.1:9/v1", "m", SEND))

    async with asyncio.timeout(HANG):
        await crib.ended(await town.calling(server, "sampling/createMessage", params))

    assert [said.code for said in server.refused] == [-32602]
    assert crib.rows("SELECT * FROM asks") == []


def test_a_session_of_its_own_meets_only_its_own_calls(town: Town) -> None:
    server = Server(per_session=True)
    one, other = Session("ada", "one"), Session("ada", "other")

    places = {call_site(server.upstream, session) for session in (one, other, None)}

    assert len(places) == 3
