"""A client on a bare socket, for requests that no client library would send."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn

from app.api.http.protocol import LimitedProtocol, protocol_of
from tests.support.services import HANG, KEY, until

App = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def code(self) -> str:
        """The kind of problem this is."""
        assert self.headers["content-type"] == "application/problem+json"
        body = json.loads(self.content)
        assert set(body) == {"type", "title", "status", "detail", "code"}
        assert body["status"] == self.status
        code: str = body["code"]
        return code


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def flood(self, piece: bytes) -> None:
        """The same again and again, until nobody takes it any more."""
        with suppress(OSError):
            async with asyncio.timeout(HANG * 2):
                while not self.reader.at_eof():
                    await self.send(piece)
                    await asyncio.sleep(0)

    async def answer(self) -> Answer:
        async with asyncio.timeout(HANG):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            named = (line.partition(":") for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in named}
            content = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(head[0].split(" ")[1]), headers, content)

    async def rest(self) -> bytes:
        """What still comes until the service closes the connection."""
        async with asyncio.timeout(HANG):
            return await self.reader.read()

    async def last_answer(self) -> Answer:
        """The answer, with nothing behind it."""
        answer = await self.answer()
        assert answer.headers["connection"] == "close"
        assert await self.rest() == b""
        return answer


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Line]:
    line = Line(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield line
    finally:
        line.writer.transport.abort()


def head(request: str, *headers: str, key: str | None = KEY) -> bytes:
    lines = [f"{request} HTTP/1.1", "Host: localhost", *([f"Authorization: Bearer {key}"] if key else []), *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(body: bytes, *headers: str, path: str = "/v1/calls") -> bytes:
    return head(f"POST {path}", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers) + body


class Door:
    """A server with our protocol in front of any application."""

    def __init__(self, port: int, server: uvicorn.Server) -> None:
        self.port = port
        self._state = server.server_state

    @property
    def connections(self) -> list[LimitedProtocol]:
        return [one for one in self._state.connections if isinstance(one, LimitedProtocol)]


@asynccontextmanager
async def door(
    app: App, header_limit: int = 65_536, header_count: int = 100, read_timeout: float = 10
) -> AsyncIterator[Door]:
    protocol = protocol_of(header_limit, header_count, read_timeout)
    config = uvicorn.Config(app, port=0, http=protocol, ws="none", lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield Door(server.servers[0].sockets[0].getsockname()[1], server)
    finally:
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        await until(lambda: not server.server_state.connections)
