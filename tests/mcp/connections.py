"""Links for tests: real processes and real sites, a guest that remembers, and what the rest of the house would say."""

import asyncio
import ssl
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.core.custom_tools import SecretHeader
from app.core.errors import ToolUnavailable
from app.core.mcp_servers import HttpServer, StdioServer
from app.core.sessions import Session
from app.core.tools import Context
from app.core.util.json_codec import Raw
from app.mcp.client.connection import Connector, ConnectorDeps
from app.mcp.client.interfaces import Connection, JsonRpcError, OpenConnection
from app.mcp.client.transports.http import HttpDeps
from app.net.resolver import Resolver
from app.sandbox.process.trusted import TrustedProcesses

RAW = str(Path(__file__).with_name("raw_server.py"))
HANG = 20.0


@dataclass
class Visitor:
    """A guest that remembers, and answers with what a test says."""

    answer: Callable[[str, Raw], Any] = lambda method, params: {"method": method}
    asks: list[tuple[str, Raw, Context | None]] = field(default_factory=list)
    news: list[tuple[str, Raw, Context | None]] = field(default_factory=list)
    canceled: list[str] = field(default_factory=list)

    async def on_request(self, method: str, params: Raw, ctx: Context | None) -> Raw:
        self.asks.append((method, params, ctx))
        answer = self.answer(method, params)
        try:
            result: Raw = await answer if asyncio.iscoroutine(answer) else answer
        except asyncio.CancelledError:
            self.canceled.append(method)
            raise
        return result

    def on_notification(self, method: str, params: Raw, ctx: Context | None) -> None:
        self.news.append((method, params, ctx))

    @property
    def told_of(self) -> list[str]:
        return [method for method, _, _ in self.news]


@dataclass
class Journal:
    """A log that keeps everything."""

    texts: list[str] = field(default_factory=list)

    def write(self, text: str) -> None:
        self.texts.append(text)

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass
class Purse:
    """Credentials for servers with OAuth: tokens one after the other."""

    tokens: list[str] = field(default_factory=list)
    refusals: list[tuple[int, str | None]] = field(default_factory=list)

    async def headers(self, server: HttpServer, owner: str | None) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.tokens[0]}"} if self.tokens else {}

    async def handle_refusal(self, server: HttpServer, owner: str | None, status: int, challenge: str | None) -> bool:
        self.refusals.append((status, challenge))
        if len(self.tokens) > 1:
            self.tokens.pop(0)
            return True
        return False


@dataclass
class Bench:
    """Everything to open links with, and what they leave behind."""

    processes: TrustedProcesses
    secrets: dict[str, str] = field(default_factory=dict)
    purse: Purse = field(default_factory=Purse)
    resolver: Resolver = field(default_factory=Resolver)
    trust: Callable[[], ssl.SSLContext] = ssl.create_default_context
    visitor: Visitor = field(default_factory=Visitor)
    journal: Journal = field(default_factory=Journal)
    walled: Any = None
    workspaces: Any = None

    def __post_init__(self) -> None:
        ways = HttpDeps(find=self.resolver.find, header=self.header, trust=self.trust, credentials=self.purse)
        self.links = Connector(
            ConnectorDeps(
                processes=self.processes,
                sandboxed=self.walled,
                workspaces=self.workspaces,
                secret=lambda owner, name: self.secrets.get(name),
                http=ways,
            )
        )

    def header(self, owner: str | None, header: SecretHeader, host: str) -> str:
        if header.secret not in self.secrets:
            raise ToolUnavailable(f"The secret {header.secret} is not set.")
        value = self.secrets[header.secret]
        return f"Bearer {value}" if header.form == "bearer" else value

    def open(
        self, server: StdioServer | HttpServer, *, owner: str | None = None, session: Session | None = None
    ) -> AbstractAsyncContextManager[Connection]:
        opener: OpenConnection = self.links.open
        return opener(server, self.visitor, owner=owner, session=session, log=self.journal)


def raw(mode: str = "older", **more: Any) -> StdioServer:
    """The server without a library."""
    return program(sys.executable, "-I", "-S", RAW, mode, **more)


def program(command: str, *args: str, **more: Any) -> StdioServer:
    return StdioServer(**({"kind": "stdio", "name": "raw", "command": command, "args": list(args)} | more))


def site(url: str, kind: str = "http", **more: Any) -> HttpServer:
    return HttpServer.model_validate({"kind": kind, "name": "site", "url": url, "startup_timeout": 10} | more)


async def call(link: Connection, name: str, **arguments: Any) -> Raw:
    return await link.request("tools/call", {"name": name, "arguments": arguments}, timeout=HANG)


def no(method: str, params: Raw) -> Raw:
    """An answer that is an error."""
    raise JsonRpcError(-32000, "not today", {"method": method})
