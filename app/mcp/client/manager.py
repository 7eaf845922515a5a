"""The book of MCP servers: those of the configuration, and those that were added over HTTP.

Everything that changes what there is goes one after the other, and is committed before it can be seen. Connections
come and go beside that, and are only told of.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.mcp_servers import AnyServer, BearerAuth, HttpServer, InvalidServer, ServerState, servers
from app.dispatch.tools.registry import NameTaken
from app.mcp.client import catalog, tool_names
from app.mcp.client.catalog import Catalog, fingerprint
from app.mcp.client.interfaces import Change, ChangeFeed
from app.mcp.client.publish_tools import ListedServer, ToolPublisher
from app.mcp.client.status_events import StatusEvents
from app.mcp.client.upstream import Source, UpstreamDeps, UpstreamServer
from app.store import mcp as stored
from app.store.mcp import StoredServer
from app.store.writer import Batch, Writer

log = logging.getLogger(__name__)

MAX_OWNED = 256
MAX_DEFINITION = 256 * 1024

T = TypeVar("T")
Key = tuple[str | None, str]
"""Whose server (None: everybody's), and its name."""
Write = Callable[[Batch, int], object]


class ServerManager:
    """The `Servers` port. `on_remove` are those who keep something for a server that is worth nothing without it."""

    def __init__(
        self,
        shelves: ToolPublisher,
        writer: Writer,
        around: UpstreamDeps,
        *,
        principals: Callable[[], Iterable[str]],
    ) -> None:
        shelves.on_rival = self._rename_soon
        self._shelves = shelves
        self._writer = writer
        self._around = around
        self._principals = principals
        self._tellings = StatusEvents(writer, around.clock, self._told)
        self.on_remove: list[Callable[[str, str | None], Awaitable[object]]] = []
        self._servers: dict[Key, UpstreamServer] = {}
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._is_rivaled = False
        self._has_begun = False
        self._is_closed = False

    @property
    def bulletin(self) -> ChangeFeed:
        return self._around.bulletin

    async def load(
        self, engine: AsyncEngine, configured: Iterable[AnyServer], unusable: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Take up every server, with what it listed before the service was started. None is connected to yet.

        `unusable` says why some of the configured ones are switched off.
        """
        found: dict[Key, UpstreamServer] = {
            (None, one.name): self._served(one, None, "config", unusable.get(one.name)) for one in configured
        }
        for kept in await stored.load_servers(engine):
            try:
                self._take_up(found, kept)
            except (ValidationError, InvalidServer) as error:
                whose = kept.owner or "everybody"
                log.warning("the MCP server %s of %s cannot be used: %s", kept.name, whose, error)
        await self._recall(found, await stored.load_catalogs(engine))
        await self._show(found)

    async def _recall(self, found: dict[Key, UpstreamServer], rows: Mapping[Key, str]) -> None:
        """What servers listed before. What is of none that is still there is dropped."""

        def unpack() -> dict[Key, Catalog | None]:
            return {key: _unpacked(body, found[key].definition) for key, body in rows.items() if key in found}

        for key, catalogue in (await asyncio.to_thread(unpack)).items() if rows else ():
            found[key].catalogue = catalogue
        if orphans := [key for key in rows if key not in found]:
            await self._writer.submit(lambda batch: [stored.remove_catalog(batch, name, of) for of, name in orphans])

    def begin(self) -> None:
        """Connect to all of them, in the background."""
        self._has_begun = True
        for served in self._servers.values():
            served.start()

    async def close(self) -> None:
        """End all connections in an orderly way."""
        self._is_closed = True
        for served in self._servers.values():
            served.is_told = False
        await asyncio.gather(*(served.stop() for served in self._servers.values()))
        if self._under_way:
            await asyncio.wait(self._under_way)

    def seen(self, principal: str) -> Sequence[UpstreamServer]:
        everybodys = {name: one for (owner, name), one in self._servers.items() if owner is None}
        own = {name: one for (owner, name), one in self._servers.items() if owner == principal}
        return [one for _, one in sorted((own | everybodys).items()) if one.definition.enabled]

    def get(self, name: str, principal: str) -> UpstreamServer | None:
        found = self._servers.get((None, name)) or self._servers.get((principal, name))
        return found if found is not None and found.definition.enabled else None

    def expected(self, tool: str, principal: str | None) -> UpstreamServer | None:
        """The server that may have this tool, and has not said yet what it has."""
        silent = (one for one in self.seen(principal or "") if one.catalogue is None)
        return next((one for one in silent if tool_names.may_be_of(one.definition.name, tool)), None)

    def views(self, principal: str, *, is_admin: bool) -> list[dict[str, Any]]:
        """The status of each server that this principal sees; an admin sees all."""
        keys = sorted(self._servers, key=lambda key: (key[1], key[0] or ""))
        return [self._view(self._servers[key], principal, is_admin) for key in keys if _sees(key, principal, is_admin)]

    def view(self, name: str, principal: str, *, is_admin: bool) -> dict[str, Any] | None:
        found = self._find(name, principal, is_admin)
        return None if found is None else self._view(found, principal, is_admin)

    def log_of(self, name: str, principal: str, *, is_admin: bool) -> str | None:
        """The last of what the server's program wrote on stderr; None when there is no such server."""
        found = self._find(name, principal, is_admin)
        return None if found is None else found.ring.read()

    def states(self) -> list[ServerState]:
        return [served.status.state for served in self._servers.values()]

    async def add(self, definition: AnyServer, owner: str | None, *, replace: bool) -> bool:
        """Keep a server and connect to it; True when it is new. Raises `InvalidServer` and `NameTaken`."""
        _refuse_secrets(definition, self._around)
        return await self._alone(self._add(definition, owner, replace))

    async def remove(self, name: str, owner: str | None) -> bool:
        """Forget a server; False when this owner added none of this name."""
        is_gone = await self._alone(self._remove((owner, name)))
        for forget in self.on_remove if is_gone else ():
            await forget(name, owner)
        return is_gone

    async def reconnect(self, name: str, owner: str | None) -> None:
        """Connect anew, without waiting for the next try. Raises `InvalidServer`."""
        served = self._servers.get((owner, name))
        if served is None or not served.definition.enabled:
            raise InvalidServer(f"There is no MCP server {name} that is enabled.")
        served.reconnect()

    async def configure(
        self, configured: Iterable[AnyServer], unusable: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """From now on these are the servers of the configuration."""
        await self._alone(self._configure({(None, one.name): one for one in configured}, unusable))

    async def end_session(self, principal: str, session: str) -> None:
        """The session is deleted, and so are the connections that were its own."""
        seen = [served for key, served in self._servers.items() if _sees(key, principal, False)]
        await asyncio.gather(*(served.end_session(principal, session) for served in seen))

    async def _add(self, definition: AnyServer, owner: str | None, replace: bool) -> bool:
        key = (owner, definition.name)
        old = self._servers.get(key)
        self._require_room(key, old, replace)
        if old is not None and old.definition == definition:
            return False
        new = self._served(definition, owner, "rest")
        kept = StoredServer(owner, definition.name, definition.model_dump_json())
        await self._swap({key: new}, lambda batch, at: stored.put_server(batch, kept, at))
        return old is None

    def _require_room(self, key: Key, old: UpstreamServer | None, replace: bool) -> None:
        if old is not None and old.source == "config":
            raise NameTaken(key[1], "is a server of the configuration and is changed only there")
        if old is not None and not replace:
            raise NameTaken(key[1], "is the name of a server already")
        rivals = [name for owner, name in self._servers if owner in (None, key[0]) and (owner, name) != key]
        if key[1].casefold() in map(str.casefold, rivals):
            raise NameTaken(key[1], "is the name of a server already")
        if old is None and sum(owner == key[0] for owner, _ in self._servers) >= MAX_OWNED:
            raise InvalidServer(f"No more than {MAX_OWNED} MCP servers are kept for one owner; remove one first.")

    async def _remove(self, key: Key) -> bool:
        old = self._servers.get(key)
        if old is None or old.source != "rest":
            return False
        await self._swap({key: None}, lambda batch, at: stored.remove_server(batch, key[1], key[0]))
        return True

    async def _configure(self, configured: dict[Key, AnyServer], unusable: Mapping[str, str]) -> None:
        before = {key: one for key, one in self._servers.items() if one.source == "config"}
        changes: dict[Key, UpstreamServer | None] = {key: None for key in before if key not in configured}
        for key, definition in configured.items():
            if key not in before and key in self._servers:
                log.warning("the MCP server %s of the configuration was added over HTTP before; that one goes", key[1])
            if key not in before or before[key].definition != definition:
                changes[key] = self._served(definition, None, "config", unusable.get(key[1]))
        if changes:
            await self._swap(changes, lambda batch, at: None)

    async def _swap(self, changes: dict[Key, UpstreamServer | None], write: Write) -> None:
        """Put these servers in the place of those that were there. What they listed stays if they are the same."""
        after = dict(self._servers)
        gone: list[Key] = []
        for key, new in changes.items():
            old = after.pop(key, None)
            if new is not None:
                after[key] = new
            if new is not None and old is not None and fingerprint(old.definition) == fingerprint(new.definition):
                new.catalogue = old.catalogue
            elif old is not None:
                gone.append(key)

        def commit(batch: Batch, at: int) -> None:
            write(batch, at)
            for owner, name in gone:
                stored.remove_catalog(batch, name, owner)

        before = self._servers
        await self._show(after, commit)
        for key, new in changes.items():
            self._go_over(before.get(key), new)

    def _go_over(self, old: UpstreamServer | None, new: UpstreamServer | None) -> None:
        """The old connection ends before the new one begins: they may want the same port or file."""

        async def change() -> None:
            if old is not None:
                await old.stop()
            if new is not None and self._has_begun and not self._is_closed and self._servers.get(new.key) is new:
                new.start()

        if new is not None:
            self._tellings.tell(new)
            if old is not None:
                old.is_told = False  # it goes on under the same name
        self._spawn(change())

    async def _listed(self, served: UpstreamServer, catalogue: Catalog) -> None:
        """A server says what it has."""
        await self._alone(self._take_list(served, catalogue))

    async def _take_list(self, served: UpstreamServer, catalogue: Catalog) -> None:
        if self._servers.get(served.key) is not served or served.catalogue == catalogue:
            return
        owner, name = served.key
        body = await asyncio.to_thread(catalog.pack, catalogue)
        before, served.catalogue = served.catalogue, catalogue
        try:
            await self._show(self._servers, lambda batch, at: stored.put_catalog(batch, name, owner, body, at))
        except BaseException:
            served.catalogue = before
            raise

    async def _show(self, after: dict[Key, UpstreamServer], write: Write | None = None) -> None:
        """Make this the truth: what changes of the tools is committed with the rest, and then seen."""
        stands = [
            ListedServer(served, served.catalogue)
            for served in after.values()
            if served.catalogue is not None and served.definition.enabled
        ]
        plan = await self._shelves.plan(stands)
        at = self._around.clock.now()

        def commit(batch: Batch) -> None:
            if write is not None:
                write(batch, at)
                for owner, changed in plan.changes.items():
                    changed.publish(batch, self._told(owner), at)

        if write is not None:
            await self._writer.submit(commit)
        self._servers = after
        self._shelves.show(plan)
        offered = plan.offered()
        for key, served in after.items():
            served.offered = tuple(offered.get(key, ()))
            served.unusable = tuple(plan.unusable.get(key, ()))
        for owner, name in sorted(plan.touched, key=str):
            self.bulletin.post(Change("tools", name, owner))

    def _rename_soon(self) -> None:
        """Another tool came or went that concerns names of ours."""
        if self._servers and not self._is_rivaled and not self._is_closed:
            self._is_rivaled = True
            self._spawn(self._rename())

    async def _rename(self) -> None:
        async with self._turn:
            self._is_rivaled = False
            await self._show(self._servers, lambda batch, at: None)

    def _served(
        self, definition: AnyServer, owner: str | None, source: Source, why_off: str | None = None
    ) -> UpstreamServer:
        around, tell = self._around, self._tellings.tell
        return UpstreamServer(definition, owner, source, around, listed=self._listed, turned=tell, why_off=why_off)

    def _take_up(self, found: dict[Key, UpstreamServer], kept: StoredServer) -> None:
        key = (kept.owner, kept.name)
        if key in found:
            raise InvalidServer("the configuration has one of this name")
        found[key] = self._served(servers.validate_json(kept.definition), kept.owner, "rest")

    def _find(self, name: str, principal: str, is_admin: bool) -> UpstreamServer | None:
        """Everybody's first, then their own, then for an admin those of others."""
        mine = self._servers.get((None, name)) or self._servers.get((principal, name))
        if mine is not None or not is_admin:
            return mine
        return next((self._servers[key] for key in sorted(self._servers, key=str) if key[1] == name), None)

    def _view(self, served: UpstreamServer, principal: str, is_admin: bool) -> dict[str, Any]:
        return served.view(with_definition=is_admin or served.owner == principal)

    def _told(self, owner: str | None) -> list[str]:
        return list(self._principals()) if owner is None else [owner]

    async def _alone(self, work: Coroutine[Any, Any, T]) -> T:
        """One change after the other. What was begun is done to its end, even if nobody waits for it any more."""

        async def change() -> T:
            async with self._turn:
                return await work

        return await asyncio.shield(self._spawn(change()))

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a change of the MCP servers failed: %s", error)  # whoever wanted it knows


def _sees(key: Key, principal: str, is_admin: bool) -> bool:
    return is_admin or key[0] in (None, principal)


def _unpacked(body: str, definition: AnyServer) -> Catalog | None:
    """What a server listed before; None when that was another one."""
    try:
        catalogue = catalog.unpack(body)
    except ValueError as error:
        log.warning("what the MCP server %s listed before cannot be read: %s", definition.name, error)
        return None
    return catalogue if catalogue.of == fingerprint(definition) else None


def _refuse_secrets(definition: AnyServer, around: UpstreamDeps) -> None:
    """What is kept and shown may name secrets, but not hold them."""
    text = definition.model_dump_json()
    if len(text) > MAX_DEFINITION:
        raise InvalidServer(f"The definition of {definition.name} is larger than {MAX_DEFINITION:,} bytes.")
    auth = definition.auth if isinstance(definition, HttpServer) else None
    if (isinstance(auth, BearerAuth) and auth.token is not None) or around.redactor.finds(text):
        raise InvalidServer(
            f"The definition of {definition.name} holds what looks like a secret. Keep that with "
            'PUT /v1/secrets/{name}, and name it here: {"secret": name}.'
        )
