"""Links to servers that are a function: what it is asked, and what it answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Unpack

from app.core.errors import ToolUnavailable
from app.core.mcp_servers import HttpServer, StdioServer
from app.core.results import Result
from app.core.sessions import Session
from app.core.tools import Context, Tool
from app.core.util.json_codec import Raw
from app.custom import json_schema
from app.dispatch.call_records import outcome
from app.mcp.client import tools
from app.mcp.client.interfaces import ChangeFeed, ConnectionLost, OnProgress, RequestOptions, ServerInfo, Upstream
from app.mcp.client.resources import prompt_tool
from app.mcp.client.server_requests import ServerRequests
from tests.support.services import Crib

TASKS: Raw = {"tools": {}, "resources": {}, "prompts": {}, "tasks": {"requests": {"tools": {"call": {}}}}}


def hello(version: str = "2025-11-25") -> ServerInfo:
    return ServerInfo(version=version, capabilities=TASKS, info={"name": "toy"})


@dataclass
class Asked:
    """One request, with what a server may do with it meanwhile."""

    link: "ToyLink"
    method: str
    params: Raw
    progress: OnProgress | None
    about: Context | None


Answer = Callable[[Asked], Awaitable[Raw]]


class ToyLink:
    """The `Link` port. It is lost when somebody says so."""

    def __init__(self, answer: Answer, hello: ServerInfo) -> None:
        self._answer = answer
        self.server_info = hello
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.asked: list[Asked] = []
        self.canceled: list[str] = []

    async def request(self, method: str, params: Raw | None = None, **options: Unpack[RequestOptions]) -> Raw:
        asked = Asked(self, method, params or {}, options.get("on_progress"), options.get("ctx"))
        self.asked.append(asked)
        answering = asyncio.ensure_future(self._answer(asked))
        try:
            waited: list[asyncio.Future[Any]] = [answering, self.lost]
            await asyncio.wait(waited, timeout=options.get("timeout"), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.canceled.append(method)
            raise
        finally:
            if not answering.done():
                answering.cancel()
        if answering.done():
            return answering.result()
        if self.lost.done():
            raise ConnectionLost(self.lost.result())
        raise TimeoutError

    async def notify(self, method: str, params: Raw | None = None) -> None:
        pass

    def lose(self, why: str = "its program has ended with the code 1") -> None:
        self.lost.set_result(why)


@dataclass
class ToyUpstream:
    """The `Upstream` port: each link that is lost is followed by a new one."""

    answer: Answer
    definition: StdioServer | HttpServer = field(
        default_factory=lambda: StdioServer(name="toy", kind="stdio", command="toy", call_timeout=30)
    )
    owner: str | None = None
    server_info: ServerInfo = field(default_factory=hello)
    links: list[ToyLink] = field(default_factory=list)
    is_down: bool = False

    async def get_connection(self, session: Session) -> ToyLink:
        if self.is_down:
            raise ToolUnavailable("The MCP server toy is not there.")
        if not self.links or self.links[-1].lost.done():
            self.links.append(ToyLink(self.answer, self.server_info))
        return self.links[-1]

    @asynccontextmanager
    async def call_slot(self) -> AsyncIterator[None]:
        yield

    @property
    def asked(self) -> list[Asked]:
        return [asked for link in self.links for asked in link.asked]


def told(**more: Any) -> Raw:
    """A tool as a server lists it."""
    return {"name": "do", "inputSchema": {"type": "object"}} | more


class Neighbourhood:
    """A house with the tools of toy servers in it."""

    def __init__(self, crib: Crib, **more: Any) -> None:
        self.crib = crib
        self.changes = ChangeFeed()
        given: dict[str, Any] = {"submit": self._submit, "changes": self.changes, "root_of": lambda session: "/here"}
        self.server_requests = ServerRequests(**(given | more))

    async def open(self, upstream: Upstream, *raws: Raw) -> list[Tool]:
        """Open the house with these tools of a server, by the names the server gives them."""
        made = [self.make(upstream, raw) for raw in raws]
        await self.crib.open()
        for tool in (*self.server_requests.tools, prompt_tool(), *made):
            self.crib.services.dispatcher.registry.replace(tool)
        return made

    def make(self, upstream: Upstream, raw: Raw) -> Tool:
        return tools.make(
            upstream,
            raw,
            f"mcp__{upstream.definition.name}__{raw['name']}",
            parser=json_schema.make_parser,
            checker=json_schema.make_checker,
            server_requests=self.server_requests,
        )

    async def _submit(self, tool: str, arguments: Raw) -> Result:
        live = self.crib.submit(tool, arguments)
        await live.wait()
        return outcome(live.call)


def text(said: str, **more: Any) -> Raw:
    """A result that is one text."""
    return {"content": [{"type": "text", "text": said}]} | more


def always(result: Raw) -> Answer:
    async def answer(asked: Asked) -> Raw:
        return result

    return answer
