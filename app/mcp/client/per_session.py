"""Connections that belong to one session, made at its first call and closed when they are idle."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

from app.core.errors import Overloaded, ToolUnavailable
from app.core.ports import Clock
from app.core.sessions import Session
from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import Connection, RequestOptions
from app.mcp.client.supervisor import ConnectionSupervisor

MAX_SESSIONS = 64
SWEEP_SECONDS = 15.0

Key = tuple[str, str]
"""A principal, and the id of one of its sessions."""


@dataclass(slots=True)
class SessionConnection:
    """A connection, the workspace it was made for, and how many requests are in progress."""

    supervisor: ConnectionSupervisor
    workspace: str | None
    used_at: float
    requests: int = 0


class SessionConnections:
    """The per-session connections of one server."""

    def __init__(
        self, server: str, make: Callable[[Session], ConnectionSupervisor], clock: Clock, idle_seconds: float
    ) -> None:
        self._server = server
        self._make = make
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._connections: dict[Key, SessionConnection] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._connections)

    async def get_connection(self, session: Session) -> Connection:
        """The session's connection. Raises `ToolUnavailable`, and `Overloaded` when too many sessions have one."""
        own = self._find_or_start(session)
        own.requests += 1
        try:
            return _TrackedConnection(await own.supervisor.get_connection(), own, self._clock)
        finally:
            own.requests -= 1
            own.used_at = self._clock.monotonic()

    def reconnect(self) -> None:
        """Close them all; each session gets a new one with its next call."""
        for key in list(self._connections):
            self._close_in_background(key)

    async def end_session(self, principal: str, session: str) -> None:
        if (own := self._connections.pop((principal, session), None)) is not None:
            await own.supervisor.stop()

    async def close_idle(self) -> None:
        limit = self._clock.monotonic() - self._idle_seconds
        idle = [key for key, own in self._connections.items() if not own.requests and own.used_at <= limit]
        await asyncio.gather(*(self.end_session(*key) for key in idle))

    async def close(self) -> None:
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await asyncio.gather(*(self.end_session(*key) for key in list(self._connections)), *self._closing)

    def _find_or_start(self, session: Session) -> SessionConnection:
        if self._is_closed:
            raise ToolUnavailable(f"The MCP server {self._server} is stopped.")
        key = (session.principal, session.id)
        own = self._connections.get(key)
        if own is not None and own.workspace == session.workspace:
            return own
        if own is not None:
            self._close_in_background(key)  # the session has another workspace now
        if len(self._connections) >= MAX_SESSIONS:
            raise Overloaded(
                f"The MCP server {self._server} already runs for {MAX_SESSIONS} sessions; end one of them, or try "
                "again later."
            )
        supervisor = self._make(session)
        own = self._connections[key] = SessionConnection(supervisor, session.workspace, self._clock.monotonic())
        supervisor.start()
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())
        return own

    def _close_in_background(self, key: Key) -> None:
        task = asyncio.create_task(self._connections.pop(key).supervisor.stop())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._idle_seconds / 4))
            await self.close_idle()


class _TrackedConnection:
    """The `Connection` port: a session's connection, which is not idle during a request."""

    __slots__ = ("_clock", "_connection", "_own", "lost", "notify", "server_info")

    def __init__(self, connection: Connection, own: SessionConnection, clock: Clock) -> None:
        self.server_info = connection.server_info
        self.lost = connection.lost
        self.notify = connection.notify
        self._connection = connection
        self._own = own
        self._clock = clock

    async def request(self, method: str, params: Raw | None = None, **options: Unpack[RequestOptions]) -> Raw:
        self._own.requests += 1
        try:
            return await self._connection.request(method, params, **options)
        finally:
            self._own.requests -= 1
            self._own.used_at = self._clock.monotonic()
