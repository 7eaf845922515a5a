"""One MCP server as calls and operators see it, independent of its connections."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from app.core.errors import Overloaded
from app.core.mcp_servers import AnyServer, ServerState
from app.core.ports import Clock
from app.core.redaction import Redactor
from app.core.sessions import Session
from app.core.tools import Context
from app.core.util.clocks import rfc3339
from app.core.util.json_codec import Raw
from app.mcp.client.catalog import Catalog, Invalid, read_catalog
from app.mcp.client.interfaces import (
    Change,
    ChangeFeed,
    Connection,
    OpenConnection,
    ServerInfo,
    ServerRequestHandler,
    Upstream,
)
from app.mcp.client.per_session import SessionConnections
from app.mcp.client.supervisor import Backoff, ConnectionSupervisor, Status, unavailable

MAX_LOG_CHARS = 64 * 1024

Source = Literal["config", "rest"]
HandlerFor = Callable[[Upstream, Session | None], ServerRequestHandler]
"""The handler of one connection's server requests; with a session, of that session's own connection."""


class LogBuffer:
    """The `Log` port: the end of what a server wrote to stderr, redacted."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._stream = redactor.stream()
        self._text = ""

    def write(self, text: str) -> None:
        self._text = (self._text + self._stream.feed(text))[-MAX_LOG_CHARS:]

    def read(self) -> str:
        """The text, from the start of a line where its beginning was dropped."""
        self._text = (self._text + self._stream.pause())[-MAX_LOG_CHARS:]
        text = self._text
        if len(text) == MAX_LOG_CHARS:
            text = text[text.find("\n") + 1 :]
        return self._redactor.text(text)


class CallSlots:
    """A FIFO semaphore for the calls of one server. At most `max_waiting` calls wait; more are refused."""

    def __init__(self, server: str, slots: int, max_waiting: int) -> None:
        self.waiting = 0
        self._server = server
        self._semaphore = asyncio.Semaphore(slots)
        self._max_waiting = max_waiting

    async def __aenter__(self) -> None:
        if not self._semaphore.locked():
            await self._semaphore.acquire()
            return
        if self.waiting >= self._max_waiting:
            raise Overloaded(
                f"The MCP server {self._server} is busy and {self._max_waiting:,} calls wait; try again later."
            )
        self.waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._semaphore.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamDeps:
    """What all servers need."""

    open_connection: OpenConnection
    handler_for: HandlerFor
    clock: Clock
    redactor: Redactor
    idle_seconds: float = 1200.0
    """A session's own connection is closed after this long without use."""
    backoff: Callable[[], Backoff] = Backoff
    changes: ChangeFeed = field(default_factory=ChangeFeed)


class UpstreamServer:
    """The `Upstream` port. `on_tools` gets each new list of tools, `on_status` is called when the status changes."""

    def __init__(
        self,
        definition: AnyServer,
        owner: str | None,
        source: Source,
        deps: UpstreamDeps,
        *,
        on_tools: Callable[["UpstreamServer", Catalog], Awaitable[None]],
        on_status: Callable[["UpstreamServer"], None],
        disabled_reason: str | None = None,
    ) -> None:
        self.source: Source = source
        #: What the server listed last, possibly before the service was started.
        self.catalog: Catalog | None = None
        #: The names of its tools in the registry.
        self.published_tools: tuple[str, ...] = ()
        #: Tools that could not be built, besides those that the catalog knows to be invalid.
        self.unusable_tools: tuple[Invalid, ...] = ()
        #: Whether events report its status.
        self.has_status_events = True
        self.log = LogBuffer(deps.redactor)
        self._definition = definition
        self._owner = owner
        self._deps = deps
        self._on_tools = on_tools
        self._slots = CallSlots(definition.name, definition.concurrency, definition.queue)
        self._per_session = SessionConnections(
            definition.name, partial(self._supervisor, reads_later=True), deps.clock, deps.idle_seconds
        )
        self._main = self._supervisor(None, on_status=lambda: on_status(self), is_probe_only=definition.per_session)
        self._disabled = Status(ServerState.DISABLED, deps.clock.now(), disabled_reason)

    @property
    def definition(self) -> AnyServer:
        return self._definition

    @property
    def owner(self) -> str | None:
        return self._owner

    @property
    def key(self) -> tuple[str | None, str]:
        return self._owner, self._definition.name

    @property
    def server_info(self) -> ServerInfo | None:
        return None if self.catalog is None else self.catalog.server_info

    @property
    def status(self) -> Status:
        return self._main.status if self._definition.enabled else self._disabled

    @property
    def error(self) -> str | None:
        """The status's error, redacted."""
        error = self.status.error
        return None if error is None else self._deps.redactor.text(error)

    @property
    def is_connecting(self) -> bool:
        return self._definition.enabled and self._main.is_connecting

    async def wait_status_change(self) -> None:
        await self._main.wait_status_change()

    async def get_connection(self, session: Session) -> Connection:
        if not self._definition.enabled:
            raise unavailable(self._definition.name, self.status, self._deps.clock)
        if self._definition.per_session:
            return await self._per_session.get_connection(session)
        return await self._main.get_connection()

    async def wait_listed(self) -> None:
        """Wait until it has listed its tools for the first time. Raises `ToolUnavailable`."""
        await self._main.wait_connected()
        if self.catalog is None:
            raise unavailable(self._definition.name, self.status, self._deps.clock)

    def call_slot(self) -> AbstractAsyncContextManager[None]:
        return self._slots

    def start(self) -> None:
        if self._definition.enabled:
            self._main.start()

    def reconnect(self) -> None:
        self._per_session.reconnect()
        self._main.reconnect()

    async def end_session(self, principal: str, session: str) -> None:
        await self._per_session.end_session(principal, session)

    async def stop(self) -> None:
        await self._per_session.close()
        await self._main.stop()

    def view(self, *, with_definition: bool) -> dict[str, Any]:
        """The server as the API shows it."""
        status, info, definition = self.status, self.server_info, self._definition
        invalid = (*(self.catalog.invalid if self.catalog else ()), *self.unusable_tools)
        shown = definition.model_dump(mode="json", exclude={"auth": {"token"}}) if with_definition else None
        return {
            "name": definition.name,
            "owner": self._owner,
            "kind": definition.kind,
            "state": status.state.value,
            "error": self.error,
            "next_retry_at": None if status.next_retry_at is None else rfc3339(status.next_retry_at),
            "since": rfc3339(status.since),
            "protocol_version": info and info.version,
            "server_info": info and info.info,
            "instructions": info and info.instructions,
            "tools": len(self.published_tools),
            "invalid_tools": [tool._asdict() for tool in invalid],
            "per_session": definition.per_session,
            "source": self.source,
            "enabled": definition.enabled,
            "definition": shown,
        }

    def _supervisor(self, session: Session | None, **options: Any) -> ConnectionSupervisor:
        deps, server = self._deps, self._definition
        handler = _ListChangeFilter(self, deps.handler_for(self, session), deps.changes)
        supervisor = ConnectionSupervisor(
            server.name,
            partial(deps.open_connection, server, handler, owner=self._owner, session=session, log=self.log),
            self._read_tools,
            clock=deps.clock,
            backoff=deps.backoff(),
            wait_seconds=server.startup_timeout,
            **options,
        )
        handler.supervisor = supervisor
        return supervisor

    async def _read_tools(self, connection: Connection) -> None:
        await self._on_tools(self, await read_catalog(connection, self._definition))


class _ListChangeFilter:
    """The `ServerRequestHandler` port: reacts to changed lists and passes everything on."""

    supervisor: ConnectionSupervisor

    def __init__(self, server: UpstreamServer, handler: ServerRequestHandler, changes: ChangeFeed) -> None:
        self._server = server
        self._handler = handler
        self._changes = changes
        self.on_request = handler.on_request

    def on_notification(self, method: str, params: Raw, ctx: Context | None) -> None:
        owner, name = self._server.key
        match method:
            case "notifications/tools/list_changed":
                self.supervisor.mark_tools_stale()
            case "notifications/resources/list_changed":
                self._changes.publish(Change("resources", name, owner))
            case "notifications/prompts/list_changed":
                self._changes.publish(Change("prompts", name, owner))
        self._handler.on_notification(method, params, ctx)
