"""Links to servers that are not there: what they say, and when they come and go, is up to the test."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Unpack

from app.core.mcp_servers import AnyServer, servers
from app.core.sessions import Session
from app.core.tools import Context
from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import Connection, ConnectionLost, Log, RequestOptions, ServerInfo, ServerRequestHandler
from app.mcp.client.supervisor import Backoff

Answer = Raw | Exception | Callable[[Raw], Raw]
HELLO = ServerInfo(version="2025-11-25", capabilities={"tools": {"listChanged": True}}, info={"name": "toy"})


def stdio(name: str = "toy", **more: Any) -> AnyServer:
    return servers.validate_python({"kind": "stdio", "name": name, "command": "toy-server"} | more)


def http(name: str = "toy", **more: Any) -> AnyServer:
    return servers.validate_python({"kind": "http", "name": name, "url": "https://toy.example/mcp"} | more)


def listing(*names: str) -> Raw:
    return {"tools": [{"name": name, "description": name, "inputSchema": {"type": "object"}} for name in names]}


class Nobody:
    """A `ServerRequestHandler` who is never asked."""

    async def on_request(self, method: str, params: Raw, ctx: Context | None) -> Raw:
        raise AssertionError(method)

    def on_notification(self, method: str, params: Raw, ctx: Context | None) -> None: ...


class FakeLink:
    """The `Connection` port. `answers` are what it says, by method; `asked` is what it was asked."""

    def __init__(self, answers: dict[str, Answer], hello: ServerInfo = HELLO) -> None:
        self.server_info = hello
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answers = answers
        self.asked: list[tuple[str, Raw]] = []
        self.held = asyncio.Event()
        self.held.set()

    async def request(self, method: str, params: Raw | None = None, **options: Unpack[RequestOptions]) -> Raw:
        self.asked.append((method, params or {}))
        await self.held.wait()
        if self.lost.done():
            raise ConnectionLost(self.lost.result())
        answer = self.answers[method]
        if isinstance(answer, Exception):
            raise answer
        return answer(params or {}) if callable(answer) else answer

    async def notify(self, method: str, params: Raw | None = None) -> None: ...

    def lose(self, how: str = "it was killed") -> None:
        if not self.lost.done():
            self.lost.set_result(how)


class FakeServers:
    """The `OpenLink` port. Each try takes the next of `next`: an error, or what the link answers; the last stays."""

    def __init__(self, *next: Exception | Mapping[str, Answer]) -> None:
        self.next = deque(next or [{"tools/list": listing("echo")}])
        self.links: list[FakeLink] = []
        self.handlers: list[ServerRequestHandler] = []
        self.logs: list[Log] = []
        self.opened: list[tuple[str, str | None, Session | None]] = []
        self.open = 0
        self.may_enter = asyncio.Event()
        self.may_enter.set()
        self.may_leave = asyncio.Event()
        self.may_leave.set()

    @asynccontextmanager
    async def __call__(
        self, server: AnyServer, handler: ServerRequestHandler, *, owner: str | None, session: Session | None, log: Log
    ) -> AsyncIterator[Connection]:
        self.opened.append((server.name, owner, session))
        self.handlers.append(handler)
        self.logs.append(log)
        await self.may_enter.wait()
        now = self.next.popleft() if len(self.next) > 1 else self.next[0]
        if isinstance(now, Exception):
            raise now
        link = FakeLink(dict(now))
        self.links.append(link)
        self.open += 1
        try:
            yield link
        finally:
            link.lose("the connection was closed")
            await self.may_leave.wait()
            self.open -= 1

    @property
    def link(self) -> FakeLink:
        """The last one."""
        return self.links[-1]


def at_once() -> Backoff:
    """Every try follows the one before without delay."""
    return Backoff(0.0, 0.0)


def never() -> Backoff:
    """No try comes by itself within a test."""
    return Backoff(3600.0, 3600.0)
