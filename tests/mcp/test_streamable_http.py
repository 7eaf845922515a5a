"""Posts: servers of the SDK in all their modes, and sites that answer badly."""

import asyncio
import json
import ssl
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import CannotConnect, ConnectionLost, JsonRpcError, NeedsAuth, RequestNotSent
from app.mcp.client.transports import streamable_http
from app.net.resolver import Resolver
from tests.mcp.connections import HANG, Bench, call, site
from tests.mcp.raw_http_server import Exchange, RawSite, as_error, as_json, raw_site
from tests.mcp.sdk_server import SdkServer, hosted
from tests.support import certificates
from tests.support.http_servers import redirect, reply, serving
from tests.support.services import until

MODES: dict[str, dict[str, Any]] = {
    "streams": {},
    "plain answers": {"json_response": True},
    "without sessions": {"stateless": True},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("era", "version"), [("both", "2026-07-28"), ("older", "2025-11-25")])
async def test_every_mode_of_the_sdks_server_works_in_both_eras(
    bench: Bench, mode: str, era: str, version: str
) -> None:
    steps: list[float] = []
    async with hosted(SdkServer(), era=era, **MODES[mode]) as url, bench.open(site(url)) as link:
        listed = await link.request("tools/list")
        answer = await call(link, "weather", city=" Zürich ")
        large = await call(link, "big", size=3_000_000)
        together = await asyncio.gather(*(call(link, "echo", text=f"n{number}") for number in range(20)))
        params = {"name": "steps", "arguments": {"steps": 50}}
        await link.request("tools/call", params, on_progress=lambda step, *_: steps.append(step), timeout=HANG)

    assert link.server_info.version == version
    assert (link.server_info.info["name"], link.server_info.instructions) == ("sdk", "be kind")
    assert "weather" in [tool["name"] for tool in listed["tools"]]
    assert answer["content"][0]["text"] == " Zürich "
    assert len(large["content"][0]["text"]) == 3_000_000
    assert [one["content"][0]["text"] for one in together] == [f"n{number}" for number in range(20)]
    assert steps == ([] if mode == "plain answers" else list(range(50)))
    assert bench.journal.text == ""


@pytest.mark.parametrize("era", ["both", "older"])
async def test_who_cancels_cancels_at_the_server(bench: Bench, era: str) -> None:
    server = SdkServer()
    async with hosted(server, era=era) as url, bench.open(site(url)) as link, asyncio.timeout(HANG):
        task = asyncio.create_task(call(link, "slow"))
        await server.begun.wait()
        task.cancel()
        await server.undone.wait()
        assert (await call(link, "echo", text="on"))["content"][0]["text"] == "on"

    assert len(server.canceled) == 1


@pytest.mark.parametrize("era", ["both", "older"])
async def test_changes_of_lists_are_told_in_both_eras(bench: Bench, era: str) -> None:
    server = SdkServer()
    async with hosted(server, era=era) as url, bench.open(site(url)) as link, asyncio.timeout(HANG):
        await link.request("tools/list")
        while "notifications/tools/list_changed" not in bench.visitor.told_of:
            await server.change()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("era", ["both", "older"])
async def test_single_resources_are_watched_in_both_eras(bench: Bench, era: str) -> None:
    server = SdkServer()
    async with hosted(server, era=era) as url, bench.open(site(url)) as link, asyncio.timeout(HANG):
        await link.request("resources/subscribe", {"uri": "x://1"})
        await server.change("x://1", "x://2")
        await until(lambda: "notifications/resources/updated" in bench.visitor.told_of)

    assert [params["uri"] for _, params, _ in bench.visitor.news if "uri" in params] == ["x://1"]


async def test_what_the_server_asks_on_a_calls_stream_is_about_that_call(bench: Bench) -> None:
    context: Any = object()
    bench.visitor.answer = lambda method, params: {"action": "accept", "content": {"name": "Ada"}}
    async with hosted(SdkServer(), era="older") as url, bench.open(site(url)) as link:
        answer = await link.request("tools/call", {"name": "ask", "arguments": {}}, ctx=context, timeout=HANG)

    assert "Ada" in answer["content"][0]["text"]
    assert [(method, about) for method, _, about in bench.visitor.asks] == [("elicitation/create", context)]


async def test_a_restarted_server_loses_the_session_and_says_so(bench: Bench) -> None:
    first = AsyncExitStack()
    url = await first.enter_async_context(hosted(SdkServer(), era="older"))
    async with bench.open(site(url)) as link:
        await call(link, "echo", text="before")
        await first.aclose()
        async with hosted(SdkServer(), era="older", port=URL(url).port or 0):
            with pytest.raises(RequestNotSent, match="does not know the session"):
                await call(link, "echo", text="after")
            assert await link.lost == "The server does not know the session any more."


async def test_a_restarted_server_of_the_newer_era_is_not_even_noticed(bench: Bench) -> None:
    first = AsyncExitStack()
    url = await first.enter_async_context(hosted(SdkServer()))
    async with bench.open(site(url)) as link:
        await call(link, "echo", text="before")
        await first.aclose()
        server = SdkServer()
        async with hosted(server, port=URL(url).port or 0), asyncio.timeout(HANG):
            assert (await call(link, "echo", text="after"))["content"][0]["text"] == "after"
            while "notifications/tools/list_changed" not in bench.visitor.told_of:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert not link.lost.done()


async def test_one_post_that_fails_is_one_call_that_fails(bench: Bench) -> None:
    """Whatever goes wrong with it; the others in flight go on."""
    release = asyncio.Event()

    async def patient(message: Raw, exchange: Exchange) -> bytes:
        await release.wait()
        return as_json(message["id"], is_late=True)

    async def breaks(message: Raw, exchange: Exchange) -> bytes:
        await exchange.begin()
        await exchange.send("data: {")
        return exchange.hang_up()

    async def ends(message: Raw, exchange: Exchange) -> bytes:
        await exchange.begin()
        return exchange.end()

    answers: dict[str, Any] = {
        "patient": patient,
        "breaks": breaks,
        "ends": ends,
        "hangs up": lambda message, exchange: exchange.hang_up(),
        "unavailable": reply(b"try later.", "503 Service Unavailable", "Content-Type: text/plain"),
        "accepted": reply(b"", "202 Accepted"),
        "html": reply(b"<h1>", "200 OK", "Content-Type: text/html"),
        "junk": reply(b"{", "200 OK", "Content-Type: application/json"),
        "other": as_json(99999),
        "refused": as_error("400 Bad Request", -32602, "no such thing", None, why="x"),
        "elsewhere": redirect("http://elsewhere.example/mcp?key=hunter2", 307),
        "moved": redirect("/mcp", 302),
        "circle": redirect("/mcp", 307),
        "nowhere": redirect("http://[", 307),
    }
    expected: dict[str, tuple[type[Exception], str]] = {
        "breaks": (ConnectionLost, "The stream with the answer to tools/call broke off"),
        "ends": (ConnectionLost, "The stream with the answer to tools/call broke off"),
        "hangs up": (ConnectionLost, "The connection to 127.0.0.1 broke: it was closed"),
        "unavailable": (JsonRpcError, "The server answered tools/call with HTTP 503: try later."),
        "accepted": (JsonRpcError, "did not answer tools/call (HTTP 202)"),
        "html": (JsonRpcError, "with text/html instead of JSON"),
        "junk": (JsonRpcError, "does not contain its answer"),
        "other": (JsonRpcError, "does not contain its answer"),
        "refused": (JsonRpcError, "no such thing"),
        "elsewhere": (JsonRpcError, "redirects to http://elsewhere.example/mcp, another origin, which is not followed"),
        "moved": (JsonRpcError, "redirected POST (HTTP 302)"),
        "circle": (JsonRpcError, "redirects in a loop"),
        "nowhere": (JsonRpcError, "sent an invalid URL"),
    }
    async with raw_site(answers=answers) as raw, bench.open(site(raw.url)) as link, asyncio.timeout(HANG):
        task = asyncio.create_task(call(link, "patient"))
        for name, (kind, sentence) in expected.items():
            with pytest.raises(kind) as caught:
                await call(link, name)
            assert sentence in str(caught.value)
            assert "hunter2" not in str(caught.value)
            assert type(caught.value) is kind
        release.set()
        assert await task == {"is_late": True}
        assert not link.lost.done()


async def test_a_redirect_on_the_same_site_is_followed(bench: Bench) -> None:
    async with raw_site() as raw:
        raw.peer.pages["/old"] = redirect("/mcp", 308)
        async with bench.open(site(raw.peer.url("/old"))) as link:
            assert await call(link, "echo", text="hi") == {"text": "hi"}


async def test_a_server_that_is_gone_is_a_lost_link(bench: Bench) -> None:
    serving = AsyncExitStack()
    raw = await serving.enter_async_context(raw_site())
    async with bench.open(site(raw.url)) as link:
        await serving.aclose()
        with pytest.raises(RequestNotSent, match=r"127.0.0.1 could not be reached: connection refused\."):
            await call(link, "echo")
        assert link.lost.done()
    with pytest.raises(CannotConnect, match="connection refused") as caught:
        async with bench.open(site(raw.url)):
            pass
    assert not caught.value.is_final


async def test_a_session_goes_along_and_is_ended(bench: Bench) -> None:
    async with raw_site(session="s-1") as raw:
        async with bench.open(site(raw.url)) as link:
            await call(link, "echo")
            await until(lambda: any(seen.method == "GET" for seen in raw.peer.seen))
        sent = [(seen.method, seen.headers.get("mcp-session-id")) for seen in raw.peer.seen]
        versions = {seen.headers.get("mcp-protocol-version") for seen in raw.peer.seen[2:]}

    assert sent[:2] == [("POST", None), ("POST", None)]
    assert sorted(sent[2:]) == [("DELETE", "s-1"), ("GET", "s-1"), ("POST", "s-1"), ("POST", "s-1")]
    assert versions == {"2025-11-25"}


@pytest.mark.parametrize(
    "answer",
    [
        reply(b"Not Found", "404 Not Found"),
        as_error("404 Not Found", -32600, "Session not found"),
        as_error("400 Bad Request", -32000, "Bad Request: No valid session ID provided"),
        as_error("400 Bad Request", -32000, "Bad Request: Server not initialized"),
    ],
)
async def test_a_session_that_the_server_forgot_is_a_lost_link(bench: Bench, answer: bytes) -> None:
    async with raw_site(session="s-1", answers={"forgot": answer}) as raw, bench.open(site(raw.url)) as link:
        with pytest.raises(RequestNotSent, match="does not know the session any more"):
            await call(link, "forgot")
        assert link.lost.done()

    assert "DELETE" not in [seen.method for seen in raw.peer.seen]


async def test_a_stream_that_breaks_is_taken_up_where_it_ended(bench: Bench) -> None:
    async def breaks(message: Raw, exchange: Exchange) -> bytes:
        await exchange.begin()
        await exchange.send("id: 1\nretry: 20\ndata:\n\n")
        token = message["params"]["_meta"]["progressToken"]
        await exchange.event(
            {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}, "2"
        )
        return exchange.end()

    async def resumed(message: Raw, exchange: Exchange) -> bytes:
        last = exchange.seen.headers.get("last-event-id")
        if last is None:
            return reply(b"", "405 Method Not Allowed")
        await exchange.begin()
        if last == "2":
            await exchange.send("id: 3\ndata:\n\n")
            return exchange.hang_up()
        number = raw.messages[-1]["id"]
        await exchange.event({"id": number, "result": {"after": last}})
        return exchange.end()

    steps: list[float] = []
    answers: dict[str, Any] = {"breaks": breaks, "GET": resumed}
    async with raw_site(session="s", answers=answers) as raw, bench.open(site(raw.url)) as link:
        params = {"name": "breaks"}
        answer = await link.request("tools/call", params, on_progress=lambda *step: steps.append(step[0]), timeout=HANG)

    assert answer == {"after": "3"}
    assert steps == [1]


async def test_an_answer_that_was_cut_off_in_the_middle_comes_again(bench: Bench) -> None:
    async def breaks(message: Raw, exchange: Exchange) -> bytes:
        await exchange.begin()
        await exchange.send("id: 1\nretry: 1\ndata:\n\n")
        await exchange.send('id: 2\ndata: {"jsonrpc": "2.0", "id"')
        return exchange.hang_up()

    async def resumed(message: Raw, exchange: Exchange) -> bytes:
        last = exchange.seen.headers.get("last-event-id")
        if last is None:
            return reply(b"", "405 Method Not Allowed")
        await exchange.begin()
        if last == "1":
            await exchange.event({"id": raw.messages[-1]["id"], "result": {"after": last}}, "2")
        return exchange.end()

    answers: dict[str, Any] = {"breaks": breaks, "GET": resumed}
    async with raw_site(session="s", answers=answers) as raw, bench.open(site(raw.url)) as link:
        assert await call(link, "breaks") == {"after": "1"}


async def test_a_stream_that_cannot_be_taken_up_fails_alone(bench: Bench) -> None:
    async def breaks(message: Raw, exchange: Exchange) -> bytes:
        await exchange.begin()
        await exchange.send("id: 1\nretry: 1\ndata:\n\n")
        return exchange.hang_up()

    async with raw_site(answers={"breaks": breaks}) as raw, bench.open(site(raw.url)) as link:
        with pytest.raises(ConnectionLost, match="broke off and cannot be resumed"):
            await call(link, "breaks")
        assert await call(link, "echo", text="on") == {"text": "on"}


async def test_news_come_on_a_stream_of_their_own_which_is_opened_again(bench: Bench) -> None:
    opened: list[str | None] = []

    async def news(message: Raw, exchange: Exchange) -> bytes:
        opened.append(exchange.seen.headers.get("last-event-id"))
        await exchange.begin()
        await exchange.send("retry: 1\n: hello\n\n")
        await exchange.event({"method": "notifications/tools/list_changed"}, f"e{len(opened)}")
        if len(opened) == 3:
            await exchange.seen.left()
        return exchange.end()

    async with raw_site(session="s", answers={"GET": news}) as raw, bench.open(site(raw.url)) as link:
        async with asyncio.timeout(HANG):
            while len(bench.visitor.news) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not link.lost.done()

    assert opened == [None, "e1", "e2"]


async def test_an_idle_link_notices_that_its_session_is_gone(bench: Bench) -> None:
    async def news(message: Raw, exchange: Exchange) -> bytes:
        raw.answers["GET"] = as_error("404 Not Found", -32600, "Session not found")
        await exchange.begin()
        await exchange.send("retry: 1\n\n")
        return exchange.end()

    async with raw_site(session="s", answers={"GET": news}) as raw, bench.open(site(raw.url)) as link:
        async with asyncio.timeout(HANG):
            assert await link.lost == "The server does not know the session any more."


async def test_an_answer_counts_even_if_its_stream_stays_open(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable_http, "STREAM_END_SECONDS", 0.01)
    left = asyncio.Event()

    async def stays(message: Raw, exchange: Exchange) -> bytes:
        await exchange.begin()
        await exchange.event({"id": message["id"], "result": {"ok": 1}})
        await exchange.seen.left()
        left.set()
        return b""

    async with raw_site(answers={"stays": stays}) as raw, bench.open(site(raw.url)) as link, asyncio.timeout(HANG):
        assert await call(link, "stays") == {"ok": 1}
        await left.wait()


async def test_the_newer_era_says_beside_a_message_what_it_is_about(bench: Bench) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
    answers: dict[str, Any] = {
        "tools/list": lambda message, _: as_json(message["id"], tools=[{"name": "wetter ☂", "inputSchema": schema}])
    }
    async with raw_site(is_modern=True, answers=answers) as raw, bench.open(site(raw.url)) as link:
        await link.request("tools/list")
        await call(link, "wetter ☂", city="Zürich")
        await link.request("resources/read", {"uri": "file:///a"})
        await link.notify("notifications/roots/list_changed")
        called, read = raw.sent("tools/call")[0], raw.sent("resources/read")[0]

    for seen, method in ((called, "tools/call"), (read, "resources/read")):
        assert seen.headers["mcp-method"] == method
        assert seen.headers["mcp-protocol-version"] == "2026-07-28"
        assert "mcp-session-id" not in seen.headers
    assert called.headers["mcp-name"] == "=?base64?d2V0dGVyIOKYgg==?="
    assert called.headers["mcp-param-city"] == "=?base64?WsO8cmljaA==?="
    assert read.headers["mcp-name"] == "file:///a"
    meta = json.loads(called.body)["params"]["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert meta["io.modelcontextprotocol/clientCapabilities"]["roots"] == {"listChanged": True}
    assert raw.sent("notifications/roots/list_changed") == []


async def test_a_tool_that_was_not_listed_is_listed_when_the_server_misses_its_headers(bench: Bench) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}

    def weather(message: Raw, exchange: Exchange) -> bytes:
        if "mcp-param-city" not in exchange.seen.headers:
            return as_error("400 Bad Request", -32020, "header missing", message["id"])
        return as_json(message["id"], city=exchange.seen.headers["mcp-param-city"])

    def listed(message: Raw, exchange: Exchange) -> bytes:
        if message["params"].get("cursor") is None:
            return as_json(message["id"], tools=[], nextCursor="2")
        return as_json(message["id"], tools=[{"name": "weather", "inputSchema": schema}])

    answers: dict[str, Any] = {"weather": weather, "tools/list": listed}
    async with raw_site(is_modern=True, answers=answers) as raw, bench.open(site(raw.url)) as link:
        assert await call(link, "weather", city="Bern") == {"city": "Bern"}
        assert await call(link, "weather", city="Basel") == {"city": "Basel"}

    assert len(raw.sent("tools/list")) == 2


async def test_headers_and_tokens_go_along_by_the_names_of_secrets(bench: Bench) -> None:
    bench.secrets |= {"TOKEN": "hunter2", "PLAIN": "swordfish"}
    headers = {"X-Team": "blue", "X-Key": {"secret": "PLAIN"}, "accept": "text/html"}
    auth = {"type": "bearer", "secret": "TOKEN"}
    async with raw_site() as raw, bench.open(site(raw.url, headers=headers, auth=auth)) as link:
        await call(link, "echo")
        seen = raw.sent("tools/call")[0]

    assert seen.headers["authorization"] == "Bearer hunter2"
    assert (seen.headers["x-team"], seen.headers["x-key"]) == ("blue", "swordfish")
    assert seen.headers["accept"] == "application/json, text/event-stream"


@pytest.mark.parametrize(
    ("more", "sentence", "is_final"),
    [
        ({"auth": {"type": "bearer", "secret": "NONE"}}, "The secret NONE is not set", False),
        ({"headers": {"X-Key": {"secret": "NONE"}}}, "The secret NONE is not set", False),
        ({"headers": {"X-Key": {"secret": "BROKEN"}}}, "The header X-Key cannot hold line breaks", True),
        ({"headers": {"Host": "x"}}, "The header Host is written by the service itself", True),
        ({"url": "ftp://127.0.0.1/"}, "starts with http", True),
    ],
)
async def test_what_cannot_be_sent_is_said_without_its_value(
    bench: Bench, more: dict[str, Any], sentence: str, is_final: bool
) -> None:
    bench.secrets["BROKEN"] = "hunter2\r\nX: y"
    async with raw_site() as raw:
        with pytest.raises(CannotConnect, match=sentence) as caught:
            async with bench.open(site(**({"url": raw.url} | more))):
                pass
    assert caught.value.is_final is is_final
    assert "hunter2" not in str(caught.value)


async def test_who_is_not_let_in_gets_to_know_what_the_server_wants(bench: Bench) -> None:
    wants = 'Bearer resource_metadata="https://x.example/.well-known"'
    denied = reply(b"", "401 Unauthorized", f"WWW-Authenticate: {wants}")
    async with raw_site(answers={"server/discover": denied, "initialize": denied}) as raw:
        with pytest.raises(NeedsAuth, match=r"127.0.0.1: authorization failed \(HTTP 401\)") as caught:
            async with bench.open(site(raw.url)):
                pass

    assert caught.value.challenge == wants
    assert bench.purse.refusals == [(401, wants)]
    assert raw.sent("initialize") == []


async def test_better_credentials_are_tried_once(bench: Bench) -> None:
    def check(message: Raw, exchange: Exchange) -> bytes:
        if exchange.seen.headers.get("authorization") != "Bearer new":
            return reply(b"", "401 Unauthorized")
        return as_json(message["id"], ok=1)

    bench.purse.tokens = ["old", "new"]
    async with raw_site(answers={"tools/call": check}) as raw, bench.open(site(raw.url)) as link:
        assert await call(link, "echo") == {"ok": 1}

    assert bench.purse.refusals == [(401, None)]


@pytest.mark.parametrize(("status", "is_lost"), [("401 Unauthorized", True), ("403 Forbidden", False)])
async def test_who_is_not_let_in_any_more_learns_it(bench: Bench, status: str, is_lost: bool) -> None:
    async with raw_site(answers={"denied": reply(b"", status)}) as raw, bench.open(site(raw.url)) as link:
        with pytest.raises(RequestNotSent if is_lost else JsonRpcError, match="authorization failed"):
            await call(link, "denied")
        assert link.lost.done() is is_lost


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_principals_server_is_not_on_our_own_network(bench: Bench, host: str) -> None:
    async with raw_site() as raw:
        with pytest.raises(CannotConnect, match=f"{host} is or resolves to a private address") as caught:
            async with bench.open(site(raw.peer.url("/mcp", host)), owner="alice"):
                pass
        assert raw.peer.connections == 0
    assert caught.value.is_final is (host == "127.0.0.1")


async def test_a_checked_address_is_the_one_that_is_connected_to(bench: Bench) -> None:
    """The name leads elsewhere later on, and nobody goes there."""
    found = ["127.0.0.1"]

    async def resolve(host: str, port: int) -> list[str]:
        return found if host == "mcp.example" else []

    careful = Bench(bench.processes, resolver=Resolver(["127.0.0.1/32"], resolve))
    async with raw_site() as raw:
        server = site(raw.peer.url("/mcp", "mcp.example"))
        async with careful.open(server, owner="alice") as link:
            assert await call(link, "echo", text="hi") == {"text": "hi"}
        found[:] = ["127.0.0.2"]
        with pytest.raises(CannotConnect, match=r"mcp\.example is or resolves to a private"):
            async with careful.open(server, owner="alice"):
                pass

    assert {seen.headers["host"] for seen in raw.peer.seen} == {f"mcp.example:{raw.peer.port}"}


async def test_an_answer_that_is_too_large_fails_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable_http, "MAX_ANSWER_BYTES", 1024 * 1024)
    async with raw_site() as raw, bench.open(site(raw.url)) as link:
        with pytest.raises(JsonRpcError, match="larger than 1 MiB"):
            await call(link, "echo", text="x" * 2_000_000)
        assert await call(link, "echo", text="on") == {"text": "on"}


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_only_a_trusted_certificate_will_do(bench: Bench, tmp_path: Path, is_trusted: bool) -> None:
    own = certificates.make(tmp_path, "localhost", address="127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    careful = Bench(bench.processes, trust=lambda: ssl.create_default_context(cafile=own.cert if is_trusted else None))
    raw = RawSite()
    async with serving({"/mcp": raw}, tls=context) as raw.peer:
        server = site(raw.peer.url("/mcp", scheme="https"))
        if is_trusted:
            async with careful.open(server) as link:
                assert await call(link, "echo", text="hi") == {"text": "hi"}
        else:
            with pytest.raises(CannotConnect, match="its certificate is not trusted"):
                async with careful.open(server):
                    pass
            assert raw.peer.seen == []


async def test_who_is_shut_out_of_the_stream_of_news_is_shut_out(bench: Bench) -> None:
    answers = {"GET": reply(b"", "401 Unauthorized")}
    async with raw_site(session="s", answers=answers) as raw, bench.open(site(raw.url)) as link, asyncio.timeout(HANG):
        assert "authorization failed" in await link.lost


def test_the_http_client_is_loaded_only_when_it_is_needed() -> None:
    loaded = "{'aiohttp', 'mcp', 'httpx2', 'yarl'} & sys.modules.keys()"
    code = f"import sys, app.mcp.client.connection; sys.exit(bool({loaded}))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=HANG * 3).returncode == 0
