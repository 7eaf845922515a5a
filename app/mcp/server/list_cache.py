"""Shelves: what the servers have besides tools, as each session last saw it.

A list is asked for anew each time somebody wants to see it. To find which server an address or a name is of, the last
one will do, unless a server has said since that it changed: so that one that does not answer does not hold up who
reads at another.
"""

import asyncio
from collections import OrderedDict
from typing import Literal, NamedTuple

from app.core.mcp_resources import McpResources
from app.core.sessions import Session
from app.core.util.json_codec import Raw
from app.dispatch.tools.listing import Listing
from app.mcp.client.interfaces import Change, ChangeFeed
from app.mcp.server.request_context import RequestContext

Kind = Literal["resources", "templates", "prompts"]
SECONDS = 30.0
MOST = 1000


class CachedList(NamedTuple):
    """`until` is when it has to be looked at again."""

    items: list[Raw]
    until: float


class ListCache:
    def __init__(self, neighbours: McpResources, bulletin: ChangeFeed) -> None:
        self._neighbours = neighbours
        self._known: OrderedDict[tuple[str, str, Kind], CachedList] = OrderedDict()
        self._changes = 0
        bulletin.watch(self._posted)

    async def look(self, kind: Kind, session: Session) -> list[Raw]:
        """What is there now."""
        lists = {
            "resources": self._neighbours.resources,
            "templates": self._neighbours.templates,
            "prompts": self._neighbours.prompts,
        }
        changes = self._changes
        items = (await lists[kind](session, None)).items
        if changes == self._changes:
            self._keep((session.principal, session.id, kind), items)
        return items

    async def recall(self, kind: Kind, session: Session) -> list[Raw]:
        """What was there a moment ago, if somebody looked."""
        known = self._known.get((session.principal, session.id, kind))
        if known is None or known.until < asyncio.get_running_loop().time():
            return await self.look(kind, session)
        return known.items

    def _keep(self, key: tuple[str, str, Kind], items: list[Raw]) -> None:
        self._known[key] = CachedList(items, asyncio.get_running_loop().time() + SECONDS)
        self._known.move_to_end(key)
        while len(self._known) > MOST:
            self._known.popitem(last=False)

    def _posted(self, change: Change) -> None:
        if change.uri is None:
            self._changes += 1
            self._known.clear()


def reached_by(listing: Listing, caller: RequestContext, part: str, items: list[Raw]) -> set[str]:
    """The servers of these items that the caller may ask for them."""
    session = caller.whole_session
    servers = {item["server"] for item in items}
    return {server for server in servers if listing.lets_reach(server, part, session, caller.key)}
