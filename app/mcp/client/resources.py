"""Resources, resource templates and prompts of MCP servers."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from pydantic import BaseModel, Field

from app.core.errors import CallError, InvalidArgs, McpDisconnected, McpFailed, TimedOut
from app.core.ports import PathScope
from app.core.results import Result, Truncation
from app.core.rules import Need
from app.core.sessions import Session
from app.core.tools import Context, Effect, Lane, ResourceList, Tool, typed
from app.core.util.json_codec import Raw, dumps
from app.mcp.client.input_required import send_with_input
from app.mcp.client.interfaces import Connection, ConnectionLost, JsonRpcError, Upstream, Upstreams
from app.mcp.client.jsonrpc import METHOD_NOT_FOUND
from app.mcp.client.resource_subscriptions import ResourceSubscriptions
from app.mcp.client.results import error_details, excerpt
from app.mcp.client.server_requests import ServerRequests
from app.mcp.client.tools import next_connection

MAX_PAGES = 100
MAX_ITEMS = 10_000
LIST_SECONDS = 10.0
"""Timeout of each server when all servers are asked."""
RESULT_FIELDS = {"resources": "resources", "resources/templates": "resourceTemplates", "prompts": "prompts"}
PROMPT = "mcp_prompt"
UNTRUNCATED = Truncation(1 << 62)


class NoServers:
    """The `Upstreams` of a service without MCP servers."""

    def visible_to(self, principal: str) -> Sequence[Upstream]:
        return ()

    def get(self, name: str, principal: str) -> Upstream | None:
        return None


class Resources:
    """The `McpResources` port. Nothing is cached: each list is what the servers return now."""

    def __init__(self, upstreams: Upstreams | None = None, server_requests: ServerRequests | None = None) -> None:
        self._upstreams = upstreams or NoServers()
        self._server_requests = server_requests
        self._subscriptions = ResourceSubscriptions(
            self._upstreams, server_requests.changes if server_requests else None
        )

    async def resources(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList:
        return await self._list("resources", session, server, cursor)

    async def templates(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList:
        return await self._list("resources/templates", session, server, cursor)

    async def prompts(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList:
        return await self._list("prompts", session, server, cursor)

    async def read(self, session: Session, server: str, uri: str, ctx: Context | None = None) -> Raw:
        return await self._request(self._get(server, session), session, "resources/read", {"uri": uri}, ctx)

    async def prompt(
        self, session: Session, server: str, name: str, arguments: dict[str, str], ctx: Context | None = None
    ) -> Raw:
        params = {"name": name, "arguments": arguments}
        return await self._request(self._get(server, session), session, "prompts/get", params, ctx)

    async def complete(self, session: Session, server: str, params: Raw) -> Raw:
        return await self._request(self._get(server, session), session, "completion/complete", params)

    async def watch(self, session: Session, server: str, uri: str) -> None:
        upstream = self._get(server, session)
        with _call_errors(upstream, "resources/subscribe"):
            await self._subscriptions.add(upstream, session, uri)

    async def unwatch(self, session: Session, server: str, uri: str) -> None:
        upstream = self._get(server, session)
        with _call_errors(upstream, "resources/unsubscribe"):
            await self._subscriptions.remove(upstream, session, uri)

    async def close(self) -> None:
        await self._subscriptions.close()

    def _get(self, server: str, session: Session) -> Upstream:
        upstream = self._upstreams.get(server, session.principal)
        if upstream is None:
            names = ", ".join(one.definition.name for one in self._upstreams.visible_to(session.principal)) or "none"
            raise InvalidArgs(f"There is no MCP server {server}; there are: {names}.")
        return upstream

    async def _list(self, kind: str, session: Session, server: str | None, cursor: str | None) -> ResourceList:
        if server is not None:
            return await self._list_page(kind, session, self._get(server, session), cursor)
        if cursor is not None:
            raise InvalidArgs("A cursor belongs to one server; name it with `server`.")
        upstreams = self._upstreams.visible_to(session.principal)
        lists = await asyncio.gather(*(self._list_pages(kind, session, upstream) for upstream in upstreams))
        return ResourceList([item for items in lists for item in items][:MAX_ITEMS])

    async def _list_pages(self, kind: str, session: Session, upstream: Upstream) -> list[Raw]:
        """Every page of one server; a failure or timeout ends the list without an error."""
        items: list[Raw] = []
        cursor: str | None = None
        with suppress(CallError, TimeoutError):
            async with asyncio.timeout(LIST_SECONDS):
                for _ in range(MAX_PAGES):
                    page = await self._list_page(kind, session, upstream, cursor)
                    items += page.items
                    if page.next_cursor in (None, cursor) or len(items) >= MAX_ITEMS:
                        break
                    cursor = page.next_cursor
        return items

    async def _list_page(self, kind: str, session: Session, upstream: Upstream, cursor: str | None) -> ResourceList:
        info = upstream.server_info
        if info is not None and not info.has(kind.partition("/")[0]):
            return ResourceList([])
        params = {} if cursor is None else {"cursor": cursor}
        try:
            result = await self._request(upstream, session, f"{kind}/list", params)
        except McpFailed as failed:
            if failed.details and failed.details["code"] == METHOD_NOT_FOUND:
                return ResourceList([])  # a server may have resources without templates
            raise
        found: Any = result.get(RESULT_FIELDS[kind])
        items = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
        next_cursor = result.get("nextCursor")
        return ResourceList(
            [item | {"server": upstream.definition.name} for item in items],
            next_cursor if isinstance(next_cursor, str) and next_cursor else None,
        )

    async def _request(
        self, upstream: Upstream, session: Session, method: str, params: Raw, ctx: Context | None = None
    ) -> Raw:
        """Send a request, during a call if there is one; once more after a lost connection, since these only read."""
        server_requests, timeout = self._server_requests, upstream.definition.call_timeout

        async def send(connection: Connection) -> Raw:
            async def request(extra: Raw) -> Raw:
                return await connection.request(method, params | extra, timeout=timeout, ctx=ctx)

            if server_requests is None or not connection.server_info.is_modern:
                return await request({})
            meta = {"_meta": server_requests.capabilities(ctx)}
            handler = server_requests.handler_for(upstream, session)
            return await send_with_input(lambda extra: request(meta | extra), handler, ctx)

        tracking = server_requests.track(upstream, ctx) if server_requests and ctx else nullcontext()
        async with tracking:
            with _call_errors(upstream, method):
                connection = await upstream.get_connection(session)
                try:
                    return await send(connection)
                except ConnectionLost:
                    again = await next_connection(upstream, session)
                    if again is None:
                        raise
                return await send(again)


@contextmanager
def _call_errors(upstream: Upstream, method: str) -> Iterator[None]:
    """Turns errors of the connection into errors of a call."""
    server = f"The MCP server {upstream.definition.name}"
    try:
        yield
    except JsonRpcError as error:
        message = excerpt(error.message) or "no message"
        raise McpFailed(
            f"{server} answered {method} with the error {error.code}: {message}", details=error_details(error)
        ) from None
    except TimeoutError:
        raise TimedOut(f"{server} did not answer {method} in time.") from None
    except ConnectionLost as lost:
        raise McpDisconnected(f"{server} disconnected during {method}: {excerpt(str(lost))}") from None


class PromptArgs(BaseModel, extra="forbid"):
    server: str = Field(min_length=1, description="The MCP server.")
    name: str = Field(min_length=1, description="The prompt's name at the server.")
    arguments: dict[str, str] = Field(default={}, description="Values by argument name.")


def prompt_tool() -> Tool:
    """The hidden tool behind `prompts/get`: as a call, rules apply, it is recorded and server requests belong to it."""

    def needs(args: PromptArgs, scope: PathScope) -> list[Need]:
        return [Need("mcp", f"{args.server}/prompt:{args.name}")]

    async def run(args: PromptArgs, ctx: Context) -> Result:
        answer = await ctx.mcp_resources.prompt(ctx.session, args.server, args.name, args.arguments, ctx)
        return Result(dumps(answer).decode(), args.name)

    return typed(
        PromptArgs,
        name=PROMPT,
        title="MCP prompt",
        description="Gets a prompt of an MCP server, filled in.",
        effect=Effect.READ,
        needs=needs,
        run=run,
        lane=Lane.NONE,
        permission="mcp",
        truncation=UNTRUNCATED,
        is_listed=False,
    )
