"""What the servers have besides tools: resources, their templates, prompts."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from app.core.errors import CallError, InvalidArgs, McpDisconnected, McpFailed, TimedOut
from app.core.sessions import Session
from app.core.tools import Context, ResourceList
from app.core.util.json_codec import Raw
from app.mcp.client import input_required
from app.mcp.client.interfaces import (
    Connection,
    ConnectionLost,
    JsonRpcError,
    ServerRequestHandler,
    Upstream,
    Upstreams,
)
from app.mcp.client.resource_subscriptions import ResourceSubscriptions
from app.mcp.client.results import details, sentence
from app.mcp.client.server_requests import ServerRequests
from app.mcp.client.tools import next_link

NOT_FOUND = -32601
MOST_PAGES = 100
MOST_ITEMS = 10_000
PATIENCE = 10.0
"""Seconds that one of all servers has; those that answer do not wait longer for the others."""
LISTS = {"resources": "resources", "resources/templates": "resourceTemplates", "prompts": "prompts"}
"""What each list is called in its answer."""


class NoServers:
    """The `Upstreams` of a service that has none."""

    def seen(self, principal: str) -> Sequence[Upstream]:
        return ()

    def get(self, name: str, principal: str) -> Upstream | None:
        return None


class Resources:
    """The `Neighbours` port. Nothing is kept here: what is listed is what the servers say now."""

    def __init__(self, upstreams: Upstreams | None = None, reception: ServerRequests | None = None) -> None:
        self._upstreams = upstreams or NoServers()
        self._reception = reception
        self._watches = ResourceSubscriptions(self._upstreams, reception.bulletin if reception else None)

    async def resources(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList:
        return await self._list("resources", session, server, cursor)

    async def templates(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList:
        return await self._list("resources/templates", session, server, cursor)

    async def prompts(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList:
        return await self._list("prompts", session, server, cursor)

    async def read(self, session: Session, server: str, uri: str, about: Context | None = None) -> Raw:
        return await self._for(
            about, ResourceRequest(self._get(server, session), session, "resources/read", {"uri": uri})
        )

    async def prompt(
        self, session: Session, server: str, name: str, arguments: dict[str, str], about: Context | None = None
    ) -> Raw:
        params = {"name": name, "arguments": arguments}
        return await self._for(about, ResourceRequest(self._get(server, session), session, "prompts/get", params))

    async def complete(self, session: Session, server: str, params: Raw) -> Raw:
        return await self._ask(ResourceRequest(self._get(server, session), session, "completion/complete", params))

    async def watch(self, session: Session, server: str, uri: str) -> None:
        upstream = self._get(server, session)
        with _told(upstream, "resources/subscribe"):
            await self._watches.add(upstream, session, uri)

    async def unwatch(self, session: Session, server: str, uri: str) -> None:
        upstream = self._get(server, session)
        with _told(upstream, "resources/unsubscribe"):
            await self._watches.remove(upstream, session, uri)

    async def close(self) -> None:
        """Nobody is told of anything any more."""
        await self._watches.close()

    def _get(self, server: str, session: Session) -> Upstream:
        found = self._upstreams.get(server, session.principal)
        if found is None:
            known = ", ".join(one.definition.name for one in self._upstreams.seen(session.principal)) or "none"
            raise InvalidArgs(f"There is no MCP server {server}; there are: {known}.")
        return found

    async def _list(self, kind: str, session: Session, server: str | None, cursor: str | None) -> ResourceList:
        if server is not None:
            return await self._page(kind, session, self._get(server, session), cursor)
        if cursor is not None:
            raise InvalidArgs("A cursor belongs to one server; name it with `server`.")
        asked = self._upstreams.seen(session.principal)
        found = await asyncio.gather(*(self._all(kind, session, upstream) for upstream in asked))
        return ResourceList([item for items in found for item in items][:MOST_ITEMS])

    async def _all(self, kind: str, session: Session, upstream: Upstream) -> list[Raw]:
        """Every page of one server; one that is down or silent has none now."""
        items: list[Raw] = []
        with suppress(CallError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._turn_pages(items, kind, session, upstream)
        return items

    async def _turn_pages(self, items: list[Raw], kind: str, session: Session, upstream: Upstream) -> None:
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._page(kind, session, upstream, cursor)
            items += page.items
            if page.next_cursor in (None, cursor) or len(items) >= MOST_ITEMS:
                return
            cursor = page.next_cursor

    async def _page(self, kind: str, session: Session, upstream: Upstream, cursor: str | None) -> ResourceList:
        if not _may_have(upstream, kind):
            return ResourceList([])
        params = {} if cursor is None else {"cursor": cursor}
        try:
            answer = await self._ask(ResourceRequest(upstream, session, f"{kind}/list", params))
        except McpFailed as failed:
            if failed.details and failed.details["code"] == NOT_FOUND:
                return ResourceList([])  # a server may have the one and not the other
            raise
        listed: Any = answer.get(LISTS[kind])
        items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
        more = answer.get("nextCursor")
        name = upstream.definition.name
        return ResourceList(
            [item | {"server": name} for item in items], more if isinstance(more, str) and more else None
        )

    async def _for(self, about: Context | None, errand: "ResourceRequest") -> Raw:
        """On behalf of a call, if there is one: then the server has it for as long."""
        if about is None or self._reception is None:
            return await self._ask(errand)
        async with self._reception.having(errand.upstream, about):
            return await self._ask(errand._replace(about=about))

    async def _ask(self, errand: "ResourceRequest") -> Raw:
        with _told(errand.upstream, errand.method):
            return await self._twice(errand)

    async def _twice(self, errand: "ResourceRequest") -> Raw:
        """None of these change anything, so that they are sent again when their link is lost."""
        link = await errand.upstream.link(errand.session)
        try:
            return await self._send(errand, link)
        except ConnectionLost:
            again = await next_link(errand.upstream, errand.session)
            if again is None:
                raise
        return await self._send(errand, again)

    async def _send(self, errand: "ResourceRequest", link: Connection) -> Raw:
        seconds = errand.upstream.definition.call_timeout
        request = partial(link.request, errand.method, seconds=seconds, about=errand.about)
        if self._reception is None or not link.hello.is_modern:
            return await request(errand.params)
        guest: ServerRequestHandler = self._reception.visitor(errand.upstream, errand.session)
        given = errand.params | {"_meta": self._reception.capabilities(errand.about)}
        return await input_required.settle(lambda more: request(given | more), guest, errand.about)


class ResourceRequest(NamedTuple):
    """Something that is asked of a server."""

    upstream: Upstream
    session: Session
    method: str
    params: Raw
    about: Context | None = None


@contextmanager
def _told(upstream: Upstream, method: str) -> Iterator[None]:
    """What a server says, and what becomes of it, in sentences for whoever asked."""
    where = f"The MCP server {upstream.definition.name}"
    try:
        yield
    except JsonRpcError as said:
        words = sentence(said.message) or "it did not say why"
        kept = details(said.code, said.message, said.data)
        raise McpFailed(f"{where} answered {method} with the error {said.code}: {words}", details=kept) from None
    except TimeoutError:
        raise TimedOut(f"{where} did not answer {method} in time.") from None
    except ConnectionLost as lost:
        raise McpDisconnected(f"{where} went away while it was asked: {sentence(str(lost))}") from None


def _may_have(upstream: Upstream, kind: str) -> bool:
    """Whether it said so; what it never said is not asked for."""
    return upstream.hello is None or upstream.hello.has(kind.partition("/")[0])
