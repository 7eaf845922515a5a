"""A site of MCP without any library: it answers each method with what a test says, byte by byte."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from app.core.util.json_codec import Raw
from tests.support.http_servers import Peer, Seen, reply, serving

Answer = Callable[[Raw, "Exchange"], bytes | Awaitable[bytes]]
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Exchange:
    """A request and where its answer goes."""

    seen: Seen
    writer: asyncio.StreamWriter

    async def begin(self) -> None:
        self.writer.write(STREAM)
        await self.writer.drain()

    async def send(self, text: str) -> None:
        """A piece of a stream."""
        data = text.encode()
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    async def event(self, message: Raw, id: str | None = None) -> None:
        head = "" if id is None else f"id: {id}\n"
        await self.send(f"{head}event: message\ndata: {json.dumps({'jsonrpc': '2.0', **message})}\n\n")

    def end(self) -> bytes:
        """The end of a stream, as it should be."""
        return b"0\r\n\r\n"

    def hang_up(self) -> bytes:
        self.writer.close()
        return b""


def as_json(id: Any, *headers: str, **result: Any) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()
    return reply(body, "200 OK", "Content-Type: application/json", *headers)


def as_error(status: str, code: int, message: str, id: Any = None, **data: Any) -> bytes:
    error = {"code": code, "message": message, **({"data": data} if data else {})}
    body = json.dumps({"jsonrpc": "2.0", "id": id, "error": error}).encode()
    return reply(body, status, "Content-Type: application/json")


@dataclass
class RawSite:
    """Of the older era; with a `session` it has one. `answers` by tool, else by method, else as it should be."""

    session: str | None = None
    is_modern: bool = False
    answers: dict[str, bytes | Answer] = field(default_factory=dict)
    peer: Peer = field(default_factory=Peer)

    @property
    def url(self) -> str:
        return self.peer.url("/mcp")

    @property
    def messages(self) -> list[Raw]:
        return [json.loads(seen.body) for seen in self.peer.seen if seen.method == "POST"]

    def sent(self, method: str) -> list[Seen]:
        """The posts of one method."""
        posts = [seen for seen in self.peer.seen if seen.method == "POST"]
        return [seen for seen in posts if json.loads(seen.body).get("method") == method]

    def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> bytes | Awaitable[bytes]:
        message: Raw = json.loads(seen.body) if seen.body else {"method": seen.method}
        method = message.get("method", "answer")
        name = (message.get("params") or {}).get("name") if method == "tools/call" else None
        found = self.answers.get(str(name)) or self.answers.get(method)
        if found is not None:
            return found if isinstance(found, bytes) else found(message, Exchange(seen, writer))
        return self._usual(method, message)

    def _usual(self, method: str, message: Raw) -> bytes:
        match method:
            case "server/discover" if self.is_modern:
                return as_json(message["id"], supportedVersions=["2026-07-28"], capabilities={"tools": {}})
            case "server/discover":
                return reply(b"Bad Request", "400 Bad Request", "Content-Type: text/plain")
            case "initialize":
                return as_json(message["id"], *([f"Mcp-Session-Id: {self.session}"] if self.session else []), **HELLO)
            case "GET" | "DELETE":
                return reply(b"", "405 Method Not Allowed")
            case "tools/call":
                return as_json(message["id"], **(message["params"].get("arguments") or {}))
        return as_json(message["id"]) if "method" in message and "id" in message else reply(b"", "202 Accepted")


@asynccontextmanager
async def raw_site(port: int = 0, **more: Any) -> AsyncIterator[RawSite]:
    site = RawSite(**more)
    async with serving({"/mcp": site}, port=port) as peer:
        site.peer = peer
        yield site
