"""Instances: connections that are one session's own, made when it first needs one and ended when nobody does."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from app.core.errors import Overloaded, ToolUnavailable
from app.core.ports import Clock
from app.core.sessions import Session
from app.core.tools import Context
from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import Connection, OnProgress, ServerInfo
from app.mcp.client.supervisor import ConnectionSupervisor

MOST = 64
SWEEP_SECONDS = 15.0

Name = tuple[str, str]
"""A principal, and the id of one of its sessions."""


@dataclass(slots=True)
class SessionConnection:
    """A connection, the workspace it was made for, and how many requests are under way."""

    owner: ConnectionSupervisor
    workspace: str | None
    used: float
    busy: int = 0


class SessionConnections:
    """All those of one server."""

    def __init__(self, server: str, make: Callable[[Session], ConnectionSupervisor], clock: Clock, idle: float) -> None:
        self._server = server
        self._make = make
        self._clock = clock
        self._idle = idle
        self._running: dict[Name, SessionConnection] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._running)

    async def link(self, session: Session) -> Connection:
        """The session's own. Raises `ToolUnavailable`, and `Overloaded` when too many sessions have one."""
        instance = self._of(session)
        instance.busy += 1
        try:
            return _Lent(await instance.owner.link(), instance, self._clock)
        finally:
            instance.busy -= 1
            instance.used = self._clock.monotonic()

    def reconnect(self) -> None:
        """End them all; each session gets a new one when it needs it."""
        for name in list(self._running):
            self._dismiss(name)

    async def end_session(self, principal: str, session: str) -> None:
        if (gone := self._running.pop((principal, session), None)) is not None:
            await gone.owner.stop()

    async def sweep(self) -> None:
        """End those that nobody used for too long."""
        over = self._clock.monotonic() - self._idle
        idle = [name for name, one in self._running.items() if not one.busy and one.used <= over]
        await asyncio.gather(*(self.end_session(*name) for name in idle))

    async def close(self) -> None:
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await asyncio.gather(*(self.end_session(*name) for name in list(self._running)), *self._leaving)

    def _of(self, session: Session) -> SessionConnection:
        if self._is_closed:
            raise ToolUnavailable(f"The MCP server {self._server} is stopped.")
        name = (session.principal, session.id)
        found = self._running.get(name)
        if found is not None and found.workspace != session.workspace:
            self._dismiss(name)  # the session works elsewhere now
            found = None
        return found or self._started(name, session)

    def _started(self, name: Name, session: Session) -> SessionConnection:
        if len(self._running) >= MOST:
            raise Overloaded(
                f"The MCP server {self._server} runs for {MOST} sessions already; end one of them, or try again later."
            )
        owner = self._make(session)
        started = self._running[name] = SessionConnection(owner, session.workspace, self._clock.monotonic())
        owner.start()
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep_on())
        return started

    def _dismiss(self, name: Name) -> None:
        """Without waiting for its end."""
        task = asyncio.create_task(self._running.pop(name).owner.stop())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._idle / 4))
            await self.sweep()


class _Lent:
    """The `Connection` port: a session's link, which is not idle while it is used."""

    __slots__ = ("_clock", "_instance", "_link")

    def __init__(self, link: Connection, instance: SessionConnection, clock: Clock) -> None:
        self._link = link
        self._instance = instance
        self._clock = clock

    @property
    def hello(self) -> ServerInfo:
        return self._link.hello

    @property
    def lost(self) -> "asyncio.Future[str]":
        return self._link.lost

    async def request(
        self,
        method: str,
        params: Raw | None = None,
        *,
        seconds: float | None = None,
        on_progress: OnProgress | None = None,
        about: Context | None = None,
    ) -> Raw:
        self._instance.busy += 1
        try:
            return await self._link.request(method, params, seconds=seconds, on_progress=on_progress, about=about)
        finally:
            self._instance.busy -= 1
            self._instance.used = self._clock.monotonic()

    async def notify(self, method: str, params: Raw | None = None) -> None:
        await self._link.notify(method, params)
