"""Streams: the oldest way over HTTP, with the SDK's server and with sites that answer badly."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import CannotConnect, ConnectionLost, JsonRpcError, NeedsAuth
from tests.mcp.connections import HANG, Bench, call, site
from tests.mcp.raw_http_server import HELLO, Exchange
from tests.mcp.sdk_server import SdkServer, hosted_as_stream
from tests.support.http_servers import Peer, Seen, reply, serving


async def test_the_sdks_server_is_spoken_to_in_the_oldest_way(bench: Bench) -> None:
    server, steps = SdkServer(), list[float]()
    bench.visitor.answer = lambda method, params: {"action": "accept", "content": {"name": "Ada"}}
    async with hosted_as_stream(server) as url, bench.open(site(url, "sse")) as link, asyncio.timeout(HANG):
        assert link.server_info.version == "2025-11-25"
        assert (await call(link, "echo", text="hi"))["content"][0]["text"] == "hi"
        assert "Ada" in (await call(link, "ask"))["content"][0]["text"]
        assert len((await call(link, "big", size=2_000_000))["content"][0]["text"]) == 2_000_000
        params = {"name": "steps", "arguments": {"steps": 5}}
        await link.request("tools/call", params, on_progress=lambda *step: steps.append(step[0]))
        task = asyncio.create_task(call(link, "slow"))
        await server.begun.wait()
        task.cancel()
        await server.undone.wait()

    assert steps == [0, 1, 2, 3, 4]


@dataclass
class Old:
    """A site of the oldest kind. `endpoint` is where it wants posts; `answers` to a method come on the stream."""

    endpoint: str = "/post?session=1"
    answers: dict[str, Any] = field(default_factory=dict)
    first: bytes | None = None
    peer: Peer = field(default_factory=Peer)
    stream: Exchange | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return self.peer.url("/sse")

    async def open(self, seen: Seen, writer: asyncio.StreamWriter) -> bytes:
        if self.first is not None:
            return self.first
        self.stream = Exchange(seen, writer)
        await self.stream.begin()
        await self.stream.send(f"event: endpoint\ndata: {self.endpoint}\n\n")
        await seen.left()
        self.gone.set()
        return b""

    async def post(self, seen: Seen, writer: asyncio.StreamWriter) -> bytes:
        assert self.stream is not None
        message: Raw = json.loads(seen.body)
        method = message["params"]["name"] if message["method"] == "tools/call" else message["method"]
        if method in self.answers:
            return bytes(self.answers[method])
        if "id" in message:
            await self.stream.event({"id": message["id"], "result": HELLO if method == "initialize" else {"ok": 1}})
        return reply(b"Accepted", "202 Accepted")


@asynccontextmanager
async def old_site(**more: Any) -> AsyncIterator[Old]:
    old = Old(**more)
    async with serving({"/sse": old.open, "/post": old.post}) as peer:
        old.peer = peer
        yield old


async def test_posts_go_where_the_stream_says(bench: Bench) -> None:
    async with old_site() as old, bench.open(site(old.url, "sse")) as link, asyncio.timeout(HANG):
        assert await call(link, "echo") == {"ok": 1}
        sent = [(seen.method, seen.target) for seen in old.peer.seen]

    assert sent == [("GET", "/sse"), *[("POST", "/post?session=1")] * 3]
    async with asyncio.timeout(HANG):
        await old.gone.wait()


@pytest.mark.parametrize(
    ("endpoint", "sentence"),
    [
        (
            "http://elsewhere.example/post",
            "redirects to http://elsewhere.example/post, another origin, which is not followed",
        ),
        (
            "//elsewhere.example/post",
            "redirects to http://elsewhere.example/post, another origin, which is not followed",
        ),
        ("http://[", "sent an invalid URL"),
    ],
)
async def test_posts_never_go_to_another_site(bench: Bench, endpoint: str, sentence: str) -> None:
    async with old_site(endpoint=endpoint) as old:
        with pytest.raises(CannotConnect, match=sentence):
            async with bench.open(site(old.url, "sse")):
                pass
        assert [seen.method for seen in old.peer.seen] == ["GET"]


@pytest.mark.parametrize(
    ("first", "kind", "sentence"),
    [
        (reply(b"", "404 Not Found"), CannotConnect, r"opens no event stream \(HTTP 404\)"),
        (reply(b"{}", "200 OK", "Content-Type: application/json"), CannotConnect, "opens no event stream"),
        (reply(b"", "401 Unauthorized"), NeedsAuth, "authorization failed"),
        (reply(b"data: x\n\n", "200 OK", "Content-Type: text/event-stream"), CannotConnect, "closed its event stream"),
    ],
)
async def test_a_site_without_a_stream_is_no_server(
    bench: Bench, first: bytes, kind: type[CannotConnect], sentence: str
) -> None:
    async with old_site(first=first) as old:
        with pytest.raises(kind, match=sentence):
            async with bench.open(site(old.url, "sse")):
                pass


async def test_a_post_that_fails_is_one_call_that_fails(bench: Bench) -> None:
    answers = {"sick": reply(b"", "500 Internal Server Error"), "closed": reply(b"", "403 Forbidden")}
    async with old_site(answers=answers) as old, bench.open(site(old.url, "sse")) as link:
        with pytest.raises(JsonRpcError, match="answered tools/call with HTTP 500"):
            await call(link, "sick")
        with pytest.raises(JsonRpcError, match="authorization failed"):
            await call(link, "closed")
        assert await call(link, "echo") == {"ok": 1}


async def test_when_the_stream_ends_the_link_is_lost(bench: Bench) -> None:
    serving = AsyncExitStack()
    old = await serving.enter_async_context(old_site(answers={"wait": reply(b"", "202 Accepted")}))
    async with bench.open(site(old.url, "sse")) as link, asyncio.timeout(HANG):
        task = asyncio.create_task(call(link, "wait"))
        while not any(b"wait" in seen.body for seen in old.peer.seen):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await serving.aclose()
        with pytest.raises(ConnectionLost, match="closed its event stream"):
            await task
        assert await link.lost == "The server closed its event stream."


async def test_a_site_of_the_oldest_kind_is_known_where_the_newer_one_was_expected(bench: Bench) -> None:
    async with hosted_as_stream(SdkServer()) as url, bench.open(site(url)) as link:
        assert (await call(link, "echo", text="hi"))["content"][0]["text"] == "hi"


async def test_a_site_of_no_kind_is_told_by_its_first_answer(bench: Bench) -> None:
    async with serving() as peer:
        with pytest.raises(CannotConnect, match="initialize failed: The server answered initialize with HTTP 404"):
            async with bench.open(site(peer.url("/mcp"))):
                pass
        assert [seen.method for seen in peer.seen] == ["POST", "POST", "GET"]
