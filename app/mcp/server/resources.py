"""Resources of all upstream servers, shown as if they were one server's, and the cache of the servers' lists.

A resource keeps its own URI where only one server has it; else its server's name is prefixed. A template that several
servers have is prefixed too.
"""

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from app.core.errors import CallError
from app.core.sessions import Session
from app.core.tools import McpResources
from app.core.util.json_codec import Raw
from app.dispatch.tools.listing import Listing
from app.mcp.client.interfaces import Change, ChangeFeed
from app.mcp.server.request_context import Ctx, RequestContext, call_failure, protocol_error, resource_not_found

PREFIX = "toolcrib://mcp/"
READ_TOOL = "read_mcp_resource"
CACHE_SECONDS = 30.0
MAX_CACHED_LISTS = 1000
_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")

Kind = Literal["resources", "templates", "prompts"]


class CachedList(NamedTuple):
    items: list[Raw]
    expires: float


class ListCache:
    """Resources, templates and prompts of the upstream servers, as each session last saw them.

    A list request always fetches. To find which server a URI or a name belongs to, the last list will do unless a
    server reported a change: so a server that does not answer does not delay reading from another.
    """

    def __init__(self, upstream: McpResources, change_feed: ChangeFeed) -> None:
        self._upstream = upstream
        self._lists: OrderedDict[tuple[str, str, Kind], CachedList] = OrderedDict()
        self._changes = 0
        change_feed.subscribe(self._on_change)

    async def fetch(self, kind: Kind, session: Session) -> list[Raw]:
        """The current list, from the servers."""
        list_methods = {
            "resources": self._upstream.resources,
            "templates": self._upstream.templates,
            "prompts": self._upstream.prompts,
        }
        changes = self._changes
        items = (await list_methods[kind](session, None)).items
        if changes == self._changes:
            key = (session.principal, session.id, kind)
            self._lists[key] = CachedList(items, asyncio.get_running_loop().time() + CACHE_SECONDS)
            self._lists.move_to_end(key)
            while len(self._lists) > MAX_CACHED_LISTS:
                self._lists.popitem(last=False)
        return items

    async def cached(self, kind: Kind, session: Session) -> list[Raw]:
        """The list of the last CACHE_SECONDS, else the current one."""
        known = self._lists.get((session.principal, session.id, kind))
        if known is None or known.expires < asyncio.get_running_loop().time():
            return await self.fetch(kind, session)
        return known.items

    def _on_change(self, change: Change) -> None:
        if change.uri is None:
            self._changes += 1
            self._lists.clear()


def reachable_servers(listing: Listing, caller: RequestContext, part: str, items: list[Raw]) -> set[str]:
    """The servers of these items that the caller may use for them."""
    session = caller.require_session()
    servers = {item["server"] for item in items}
    return {server for server in servers if listing.allows_mcp(server, part, session, caller.key)}


class Address(NamedTuple):
    """A resource as its server knows it."""

    server: str
    uri: str


class Subscription(NamedTuple):
    """A resource that a client subscribed to, and its session."""

    address: Address
    session: Session


class McpServerResources:
    """A key that may not use the tool that reads resources does not see them."""

    def __init__(self, upstream: McpResources, listing: Listing, lists: ListCache) -> None:
        self._upstream = upstream
        self._listing = listing
        self._lists = lists

    async def all(self, caller: RequestContext) -> list[Raw]:
        return with_unique_uris(await self._visible("resources", caller, is_fresh=True), "uri")

    async def templates(self, caller: RequestContext) -> list[Raw]:
        return with_unique_uris(await self._visible("templates", caller, is_fresh=True), "uriTemplate")

    async def find(self, ctx: Ctx, caller: RequestContext, uri: str) -> Address:
        """Where a resource is; raises an error of the protocol when no server has it, or more than one."""
        if (address := parse_prefixed(uri)) is not None:
            if not self._listing.allows_mcp(address.server, "resources", caller.require_session(), caller.key):
                raise resource_not_found(ctx, self._listing.quoted(uri))
            return address
        resources, templates = await asyncio.gather(
            self._visible("resources", caller), self._visible("templates", caller)
        )
        servers = servers_of(uri, resources, templates)
        if not servers:  # not listed: a server that is the only one with resources may know it
            servers = sorted({item["server"] for item in [*resources, *templates]})
            if len(servers) != 1:
                raise resource_not_found(ctx, self._listing.quoted(uri))
        if len(servers) > 1:
            quoted = self._listing.quoted(uri)
            choices = " or ".join(prefix_uri(server, quoted) for server in servers)
            raise protocol_error(f"Several servers have {quoted}. Use {choices}.")
        return Address(servers[0], uri)

    async def subscribe(self, ctx: Ctx, caller: RequestContext, uri: str) -> Subscription:
        address = await self.find(ctx, caller, uri)
        try:
            await self._upstream.watch(caller.require_session(), *address)
        except CallError as error:
            raise call_failure(error, ctx) from None
        return Subscription(address, caller.require_session())

    async def unsubscribe(self, subscription: Subscription) -> None:
        await self._upstream.unwatch(subscription.session, *subscription.address)

    async def find_template(self, caller: RequestContext, template: str) -> Address:
        if (address := parse_prefixed(template)) is not None:
            return address
        templates = await self._visible("templates", caller)
        servers = sorted({item["server"] for item in templates if item.get("uriTemplate") == template})
        if len(servers) != 1:
            raise protocol_error(f"The resource template {self._listing.quoted(template)} is unknown or not unique.")
        return Address(servers[0], template)

    async def _visible(self, kind: Kind, caller: RequestContext, *, is_fresh: bool = False) -> list[Raw]:
        if caller.session is None or not caller.key.bounds.allows_tool(READ_TOOL):
            return []
        get = self._lists.fetch if is_fresh else self._lists.cached
        items = await get(kind, caller.session)
        servers = reachable_servers(self._listing, caller, "resources", items)
        return [item for item in items if item["server"] in servers]


def prefix_uri(server: str, uri: str) -> str:
    """The URI with its server's name. `parse_prefixed` undoes it, whatever the URI is."""
    return f"{PREFIX}{server}/{uri}"


def parse_prefixed(uri: str) -> Address | None:
    """The server and the URI of a prefixed URI; None for any other."""
    if not uri.startswith(PREFIX):
        return None
    server, slash, rest = uri.removeprefix(PREFIX).partition("/")
    return Address(server, rest) if slash and server and rest else None


def with_unique_uris(items: Sequence[Raw], field: str) -> list[Raw]:
    """Resources or templates of all servers, with a prefix where the URI alone does not identify one."""
    counts = Counter(item[field] for item in items if isinstance(item.get(field), str))
    unique = []
    for item in items:
        uri = item.get(field)
        if isinstance(uri, str):
            is_plain = counts[uri] == 1 and not uri.startswith(PREFIX)
            unique.append(item | {field: uri if is_plain else prefix_uri(item["server"], uri)})
    return unique


def servers_of(uri: str, resources: Sequence[Raw], templates: Sequence[Raw]) -> list[str]:
    """The servers that list this resource, else those with a template that matches it."""
    listing = sorted({item["server"] for item in resources if item.get("uri") == uri})
    if listing:
        return listing
    return sorted({item["server"] for item in templates if matches_template(uri, item.get("uriTemplate"))})


def matches_template(uri: str, template: object) -> bool:
    """Whether a template may expand to this URI, in linear time.

    Generous, as the server decides in the end: the literals between the expressions come in this order, and up to the
    first expression with an operator no expansion contains a slash.
    """
    if not isinstance(template, str):
        return False
    parts = _EXPRESSION.split(template)
    literals, operators = parts[::2], parts[1::2]
    if not operators:
        return uri == template
    if not uri.startswith(literals[0]):
        return False
    plain = next((number for number, operator in enumerate(operators) if operator), len(operators))
    at = len(literals[0])
    for number, literal in enumerate(literals[1:-1]):
        start = uri.find(literal, at)
        if start < 0 or (number < plain and "/" in uri[at:start]):
            return False
        at = start + len(literal)
    end = len(uri) - len(literals[-1])
    return end >= at and uri.endswith(literals[-1]) and (plain < len(operators) or "/" not in uri[at:end])
