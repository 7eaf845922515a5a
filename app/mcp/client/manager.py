"""Manages all MCP servers: those of the configuration, and those added over HTTP.

Changes of the set of servers and their tools are made one at a time and are committed before they are visible.
Connections come and go independently; only their status is published.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.errors import StoreError
from app.core.events import Event, EventType
from app.core.mcp_servers import AnyServer, BearerAuth, HttpServer, InvalidServer, ServerState, servers
from app.core.sessions import DEFAULT_SESSION
from app.core.util.clocks import rfc3339
from app.core.util.json_codec import dumps
from app.dispatch.tools.registry import NameTaken
from app.mcp.client import catalog, tool_names
from app.mcp.client.catalog import Catalog, fingerprint
from app.mcp.client.interfaces import Change, ChangeFeed
from app.mcp.client.publish_tools import ListedServer, ToolPublisher
from app.mcp.client.upstream import Source, UpstreamDeps, UpstreamServer
from app.store import mcp as store
from app.store.mcp import StoredServer
from app.store.writer import Batch, Writer

log = logging.getLogger(__name__)

MAX_SERVERS_PER_OWNER = 256
MAX_DEFINITION_BYTES = 256 * 1024
REPEAT_STATUS_SECONDS = 60.0
"""A server that keeps failing in the same way is reported once in this time."""

T = TypeVar("T")
Key = tuple[str | None, str]
"""A server by its owner (None: shared by all) and name."""
Write = Callable[[Batch, int], object]
NewsKey = tuple[ServerState, str | None, int]
"""A server's state, its error and its number of tools."""


class ServerManager:
    """The `Upstreams` port. `on_remove` are called with the name and owner of each server that was removed."""

    def __init__(
        self,
        publisher: ToolPublisher,
        writer: Writer,
        deps: UpstreamDeps,
        *,
        principals: Callable[[], Iterable[str]],
    ) -> None:
        publisher.on_name_conflict = self._schedule_rename
        self.on_remove: list[Callable[[str, str | None], Awaitable[object]]] = []
        self._publisher = publisher
        self._writer = writer
        self._deps = deps
        self._principals = principals
        self._servers: dict[Key, UpstreamServer] = {}
        self._reported: WeakKeyDictionary[UpstreamServer, tuple[NewsKey, float]] = WeakKeyDictionary()
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_rename_scheduled = False
        self._is_started = False
        self._is_closed = False

    @property
    def changes(self) -> ChangeFeed:
        return self._deps.changes

    async def load(
        self, engine: AsyncEngine, configured: Iterable[AnyServer], unusable: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Load every server with its last catalog. None is connected to yet.

        `unusable` says why some of the configured ones are disabled.
        """
        loaded: dict[Key, UpstreamServer] = {
            (None, server.name): self._new_server(server, None, "config", unusable.get(server.name))
            for server in configured
        }
        for stored in await store.load_servers(engine):
            key = (stored.owner, stored.name)
            try:
                if key in loaded:
                    raise InvalidServer("the configuration has one of this name")
                definition = servers.validate_json(stored.definition)
            except (ValidationError, InvalidServer) as error:
                owner = stored.owner or "all principals"
                log.warning("the MCP server %s of %s cannot be used: %s", stored.name, owner, error)
            else:
                loaded[key] = self._new_server(definition, stored.owner, "rest")
        await self._load_catalogs(loaded, await store.load_catalogs(engine))
        await self._apply(loaded)

    async def _load_catalogs(self, loaded: dict[Key, UpstreamServer], rows: Mapping[Key, str]) -> None:
        """Catalogs of servers that are gone are deleted."""

        def unpack() -> dict[Key, Catalog | None]:
            return {key: _unpack(body, loaded[key].definition) for key, body in rows.items() if key in loaded}

        for key, last in (await asyncio.to_thread(unpack)).items() if rows else ():
            loaded[key].catalog = last
        if orphans := [key for key in rows if key not in loaded]:
            await self._writer.submit(lambda batch: [store.remove_catalog(batch, name, of) for of, name in orphans])

    def start(self) -> None:
        """Connect to all of them, in the background."""
        self._is_started = True
        for server in self._servers.values():
            server.start()

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for server in self._servers.values():
            server.has_status_events = False
        await asyncio.gather(*(server.stop() for server in self._servers.values()))
        if self._tasks:
            await asyncio.wait(self._tasks)

    def visible_to(self, principal: str) -> Sequence[UpstreamServer]:
        shared = {name: server for (owner, name), server in self._servers.items() if owner is None}
        own = {name: server for (owner, name), server in self._servers.items() if owner == principal}
        return [server for _, server in sorted((own | shared).items()) if server.definition.enabled]

    def get(self, name: str, principal: str) -> UpstreamServer | None:
        server = self._servers.get((None, name)) or self._servers.get((principal, name))
        return server if server is not None and server.definition.enabled else None

    def pending_server(self, tool: str, principal: str | None) -> UpstreamServer | None:
        """The server that may have this tool and has not listed its tools yet."""
        unlisted = (server for server in self.visible_to(principal or "") if server.catalog is None)
        return next((server for server in unlisted if tool_names.may_be_of(server.definition.name, tool)), None)

    def views(self, principal: str, *, is_admin: bool) -> list[dict[str, Any]]:
        """The servers that this principal sees; an admin sees all."""
        keys = sorted(self._servers, key=lambda key: (key[1], key[0] or ""))
        return [
            self._view(self._servers[key], principal, is_admin) for key in keys if _is_visible(key, principal, is_admin)
        ]

    def view(self, name: str, principal: str, *, is_admin: bool) -> dict[str, Any] | None:
        server = self._find(name, principal, is_admin)
        return None if server is None else self._view(server, principal, is_admin)

    def log_of(self, name: str, principal: str, *, is_admin: bool) -> str | None:
        """The end of the server's stderr; None when there is no such server."""
        server = self._find(name, principal, is_admin)
        return None if server is None else server.log.read()

    def states(self) -> list[ServerState]:
        return [server.status.state for server in self._servers.values()]

    async def wait_settled(self, name: str, owner: str | None, seconds: float) -> None:
        """Wait until the server is connected or its connection attempt failed, at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (server := self._servers.get((owner, name))) is not None and server.is_connecting:
                    await server.wait_status_change()

    async def add(self, definition: AnyServer, owner: str | None, *, replace: bool) -> bool:
        """Store a server and connect to it; True when it is new. Raises `InvalidServer` and `NameTaken`."""
        self._refuse_secrets(definition)
        return await self._run_exclusively(self._add(definition, owner, replace))

    async def remove(self, name: str, owner: str | None) -> bool:
        """Delete a server; False when this owner added none of this name."""
        is_removed = await self._run_exclusively(self._remove((owner, name)))
        for listener in self.on_remove if is_removed else ():
            await listener(name, owner)
        return is_removed

    async def reconnect(self, name: str, owner: str | None) -> None:
        """Connect again, without waiting for the next attempt. Raises `InvalidServer`."""
        server = self._servers.get((owner, name))
        if server is None or not server.definition.enabled:
            raise InvalidServer(f"There is no enabled MCP server {name}.")
        server.reconnect()

    async def configure(
        self, configured: Iterable[AnyServer], unusable: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Replace the servers of the configuration."""
        await self._run_exclusively(self._configure({(None, server.name): server for server in configured}, unusable))

    async def end_session(self, principal: str, session: str) -> None:
        """The session was deleted: close the connections of its own."""
        visible = [server for key, server in self._servers.items() if _is_visible(key, principal, False)]
        await asyncio.gather(*(server.end_session(principal, session) for server in visible))

    async def _add(self, definition: AnyServer, owner: str | None, replace: bool) -> bool:
        key = (owner, definition.name)
        old = self._servers.get(key)
        self._require_free_name(key, old, replace)
        if old is not None and old.definition == definition:
            return False
        new = self._new_server(definition, owner, "rest")
        stored = StoredServer(owner, definition.name, definition.model_dump_json())
        await self._replace({key: new}, lambda batch, at: store.put_server(batch, stored, at))
        return old is None

    def _require_free_name(self, key: Key, old: UpstreamServer | None, replace: bool) -> None:
        owner, name = key
        if old is not None and old.source == "config":
            raise NameTaken(name, "is a server of the configuration and can be changed only there")
        others = {known for of, known in self._servers if of in (None, owner) and (of, known) != key}
        if (old is not None and not replace) or name.casefold() in map(str.casefold, others):
            raise NameTaken(name, "is the name of a server already")
        if old is None and sum(of == owner for of, _ in self._servers) >= MAX_SERVERS_PER_OWNER:
            raise InvalidServer(f"An owner has at most {MAX_SERVERS_PER_OWNER} MCP servers; remove one first.")

    async def _remove(self, key: Key) -> bool:
        old = self._servers.get(key)
        if old is None or old.source != "rest":
            return False
        await self._replace({key: None}, lambda batch, at: store.remove_server(batch, key[1], key[0]))
        return True

    async def _configure(self, configured: dict[Key, AnyServer], unusable: Mapping[str, str]) -> None:
        before = {key: server for key, server in self._servers.items() if server.source == "config"}
        changes: dict[Key, UpstreamServer | None] = {key: None for key in before if key not in configured}
        for key, definition in configured.items():
            if key not in before and key in self._servers:
                log.warning("the MCP server %s of the configuration replaces one that was added over HTTP", key[1])
            if key not in before or before[key].definition != definition:
                changes[key] = self._new_server(definition, None, "config", unusable.get(key[1]))
        if changes:
            await self._replace(changes, lambda batch, at: None)

    async def _replace(self, changes: dict[Key, UpstreamServer | None], write: Write) -> None:
        """Replace these servers. The catalog stays if it is the same program or address."""
        before, after = self._servers, dict(self._servers)
        outdated: list[Key] = []
        for key, new in changes.items():
            old = after.pop(key, None)
            if new is not None:
                after[key] = new
            if new is not None and old is not None and fingerprint(old.definition) == fingerprint(new.definition):
                new.catalog = old.catalog
            elif old is not None:
                outdated.append(key)

        def commit(batch: Batch, at: int) -> None:
            write(batch, at)
            for owner, name in outdated:
                store.remove_catalog(batch, name, owner)

        await self._apply(after, commit)
        for key, new in changes.items():
            old = before.get(key)
            if new is not None:
                self._report_status(new)
                if old is not None:
                    old.has_status_events = False  # the new one reports under the same name
            self._start_task(self._switch(old, new))

    async def _switch(self, old: UpstreamServer | None, new: UpstreamServer | None) -> None:
        """The old connection ends before the new one starts: both may need the same port or file."""
        if old is not None:
            await old.stop()
        if new is not None and self._is_started and not self._is_closed and self._servers.get(new.key) is new:
            new.start()

    async def _on_tools(self, server: UpstreamServer, listed: Catalog) -> None:
        await self._run_exclusively(self._set_catalog(server, listed))

    async def _set_catalog(self, server: UpstreamServer, listed: Catalog) -> None:
        if self._servers.get(server.key) is not server or server.catalog == listed:
            return
        owner, name = server.key
        body = await asyncio.to_thread(catalog.pack, listed)
        before, server.catalog = server.catalog, listed
        try:
            await self._apply(self._servers, lambda batch, at: store.put_catalog(batch, name, owner, body, at))
        except BaseException:
            server.catalog = before
            raise

    async def _apply(self, after: dict[Key, UpstreamServer], write: Write | None = None) -> None:
        """Make these the servers: commit with `write` what changes of the tools, then publish the tools."""
        plan = await self._publisher.plan(
            ListedServer(server, server.catalog)
            for server in after.values()
            if server.catalog is not None and server.definition.enabled
        )
        at = self._deps.clock.now()

        def commit(batch: Batch) -> None:
            if write is not None:
                write(batch, at)
                for owner, changed in plan.changes.items():
                    changed.publish(batch, self._audience(owner), at)

        if write is not None:
            await self._writer.submit(commit)
        self._servers = after
        self._publisher.publish(plan)
        names = plan.names_by_server()
        for key, server in after.items():
            server.published_tools = tuple(names.get(key, ()))
            server.unusable_tools = tuple(plan.unusable.get(key, ()))
        for owner, name in sorted(plan.changed_servers, key=str):
            self.changes.publish(Change("tools", name, owner))

    def _schedule_rename(self) -> None:
        """Another tool was registered or removed that affects the names of ours."""
        if self._servers and not self._is_rename_scheduled and not self._is_closed:
            self._is_rename_scheduled = True
            self._start_task(self._rename())

    async def _rename(self) -> None:
        async with self._lock:
            self._is_rename_scheduled = False
            await self._apply(self._servers, lambda batch, at: None)

    def _new_server(
        self, definition: AnyServer, owner: str | None, source: Source, disabled_reason: str | None = None
    ) -> UpstreamServer:
        return UpstreamServer(
            definition,
            owner,
            source,
            self._deps,
            on_tools=self._on_tools,
            on_status=self._report_status,
            disabled_reason=disabled_reason,
        )

    def _find(self, name: str, principal: str, is_admin: bool) -> UpstreamServer | None:
        """The shared one first, then the principal's own, then for an admin those of others."""
        server = self._servers.get((None, name)) or self._servers.get((principal, name))
        if server is not None or not is_admin:
            return server
        return next((self._servers[key] for key in sorted(self._servers, key=str) if key[1] == name), None)

    def _view(self, server: UpstreamServer, principal: str, is_admin: bool) -> dict[str, Any]:
        return server.view(with_definition=is_admin or server.owner == principal)

    def _audience(self, owner: str | None) -> list[str]:
        """The principals that see a server of this owner."""
        return list(self._principals()) if owner is None else [owner]

    def _report_status(self, server: UpstreamServer) -> None:
        """Write an `mcp.status` event, unless it would repeat the last one."""
        if not server.has_status_events or self._writer.is_closed:
            return
        status, now = server.status, self._deps.clock.monotonic()
        news = (status.state, server.error, len(server.published_tools))
        last, last_at = self._reported.get(server, (None, 0.0))
        if last is not None and _is_repetition(last, news, now - last_at):
            return
        self._reported[server] = (news, now)
        data = dumps(
            {
                "server": server.definition.name,
                "owner": server.owner,
                "state": status.state.value,
                "error": server.error,
                "next_retry_at": None if status.next_retry_at is None else rfc3339(status.next_retry_at),
                "tools": len(server.published_tools),
            }
        ).decode()
        principals, at = sorted(self._audience(server.owner)), self._deps.clock.now()

        def write(batch: Batch) -> None:
            for principal in principals:
                batch.publish(Event(0, EventType.MCP_STATUS, None, principal, DEFAULT_SESSION, at, data))

        self._writer.submit(write).add_done_callback(_ignore_store_error)

    def _refuse_secrets(self, definition: AnyServer) -> None:
        """A stored and shown definition may name secrets, but not contain them."""
        text = definition.model_dump_json()
        if len(text) > MAX_DEFINITION_BYTES:
            raise InvalidServer(f"The definition of {definition.name} is larger than {MAX_DEFINITION_BYTES:,} bytes.")
        auth = definition.auth if isinstance(definition, HttpServer) else None
        if (isinstance(auth, BearerAuth) and auth.token is not None) or self._deps.redactor.finds(text):
            raise InvalidServer(
                f"The definition of {definition.name} contains what looks like a secret. Store it with "
                'PUT /v1/secrets/{name}, and name it here: {"secret": name}.'
            )

    async def _run_exclusively(self, work: Coroutine[Any, Any, T]) -> T:
        """One change at a time. A change that was started is finished, even if the caller is canceled."""

        async def change() -> T:
            async with self._lock:
                return await work

        return await asyncio.shield(self._start_task(change()))

    def _start_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a change of the MCP servers failed: %s", error)  # the caller gets it, too


def _is_visible(key: Key, principal: str, is_admin: bool) -> bool:
    return is_admin or key[0] in (None, principal)


def _unpack(body: str, definition: AnyServer) -> Catalog | None:
    """A server's stored catalog; None when it is of another program or address."""
    try:
        stored = catalog.unpack(body)
    except ValueError as error:
        log.warning("the stored catalog of the MCP server %s cannot be read: %s", definition.name, error)
        return None
    return stored if stored.fingerprint == fingerprint(definition) else None


def _is_repetition(last: NewsKey, news: NewsKey, seconds: float) -> bool:
    """A retry is not reported as long as it changes nothing."""
    if last == news:
        return news[0] is not ServerState.FAILED or seconds < REPEAT_STATUS_SECONDS
    return last[0] is ServerState.FAILED and news[0] is ServerState.STARTING


def _ignore_store_error(done: "asyncio.Future[None]") -> None:
    """The store reports its own failure."""
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, StoreError):
        raise error
