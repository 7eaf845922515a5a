"""Resources of the servers, shown at the door as if they were one server's."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from app.core.errors import CallError
from app.core.jsons import Raw
from app.core.neighbours import Neighbours
from app.core.sessions import Session
from app.dispatch.listings import Listing
from app.mcp.door.addresses import Address, prefixed, servers_of, shown, unprefixed
from app.mcp.door.callers import Caller, failure, missing, refusal
from app.mcp.door.shelves import Kind, Shelves, reached_by

if TYPE_CHECKING:
    from app.mcp.door.callers import Ctx

READS = "read_mcp_resource"


class Watched(NamedTuple):
    """A resource somebody wants to hear of, and for which session."""

    address: Address
    session: Session


class DoorResources:
    """A key that may not use the tool that reads them does not see them either."""

    def __init__(self, neighbours: Neighbours, listing: Listing, shelves: Shelves) -> None:
        self._neighbours = neighbours
        self._listing = listing
        self._shelves = shelves

    async def all(self, caller: Caller) -> list[Raw]:
        return shown(await self._seen("resources", caller, is_new=True), "uri")

    async def templates(self, caller: Caller) -> list[Raw]:
        return shown(await self._seen("templates", caller, is_new=True), "uriTemplate")

    async def find(self, ctx: "Ctx", caller: Caller, uri: str) -> Address:
        """Where a resource is; raises an error of the protocol when nobody has it, or more than one."""
        if (address := unprefixed(uri)) is not None:
            if not self._listing.lets_reach(address.server, "resources", caller.whole_session, caller.key):
                raise missing(ctx, self._listing.quoted(uri))
            return address
        resources, templates = await asyncio.gather(self._seen("resources", caller), self._seen("templates", caller))
        servers = servers_of(uri, resources, templates)
        if not servers:  # not listed: where only one has any at all, it may know it
            servers = sorted({item["server"] for item in [*resources, *templates]})
            if len(servers) != 1:
                raise missing(ctx, self._listing.quoted(uri))
        if len(servers) > 1:
            said = self._listing.quoted(uri)
            forms = " or ".join(prefixed(server, said) for server in servers)
            raise refusal(f"Several servers have {said}; say {forms}.")
        return Address(servers[0], uri)

    async def watch(self, ctx: "Ctx", caller: Caller, uri: str) -> Watched:
        address = await self.find(ctx, caller, uri)
        try:
            await self._neighbours.watch(caller.whole_session, *address)
        except CallError as error:
            raise failure(error, ctx) from None
        return Watched(address, caller.whole_session)

    async def unwatch(self, watched: Watched) -> None:
        await self._neighbours.unwatch(watched.session, *watched.address)

    async def template(self, caller: Caller, template: str) -> Address:
        """Which server a template is of, by the address it is shown with."""
        if (address := unprefixed(template)) is not None:
            return address
        found = await self._seen("templates", caller)
        servers = sorted({item["server"] for item in found if item.get("uriTemplate") == template})
        if len(servers) != 1:
            raise refusal(f"There is no one resource template {self._listing.quoted(template)}.")
        return Address(servers[0], template)

    async def _seen(self, kind: Kind, caller: Caller, *, is_new: bool = False) -> list[Raw]:
        if caller.session is None or not caller.key.bounds.allows_tool(READS):
            return []
        look = self._shelves.look if is_new else self._shelves.recall
        items = await look(kind, caller.session)
        reached = reached_by(self._listing, caller, "resources", items)
        return [item for item in items if item["server"] in reached]
