"""Upstreams: servers as calls and people see them, whatever becomes of their connections.

Rings: the last of what a server's program wrote beside the protocol.

Turns: how many calls a server gets at once, and how many wait for their turn.

Veils: what a server was given in secret is not shown where it talks about it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Literal

from app.core.errors import Overloaded
from app.core.mcp_servers import AnyServer, ServerState
from app.core.ports import Clock
from app.core.redaction import Redactor
from app.core.sessions import Session
from app.core.tools import Context
from app.core.util.clocks import rfc3339
from app.core.util.json_codec import Raw
from app.mcp.client import catalog
from app.mcp.client.catalog import Catalog, Invalid
from app.mcp.client.interfaces import (
    Change,
    ChangeFeed,
    Connection,
    Log,
    OpenConnection,
    ServerInfo,
    ServerRequestHandler,
    Upstream,
)
from app.mcp.client.per_session import SessionConnections
from app.mcp.client.status import Backoff, Status, unavailable
from app.mcp.client.supervisor import ConnectionSupervisor

LIMIT = 64 * 1024


class LogBuffer:
    """The `Log` port. Only the end is kept, without secrets."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._stream = redactor.stream()
        self._text = ""

    def write(self, text: str) -> None:
        self._text = (self._text + self._stream.feed(text))[-LIMIT:]

    def read(self) -> str:
        """All that is there, from the beginning of a line on where something was dropped before it."""
        self._text = (self._text + self._stream.pause())[-LIMIT:]
        text = self._text
        if len(text) == LIMIT:
            text = text[text.find("\n") + 1 :]
        return self._redactor.text(text)


class CallSlots:
    """Places that are given out in the order they were asked for. Whoever finds the line full is told so at once."""

    def __init__(self, name: str, places: int, line: int) -> None:
        self._name = name
        self._free = places
        self._most = line
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        if len(self._waiting) >= self._most:
            raise Overloaded(
                f"The MCP server {self._name} has as many calls as it takes, and {self._most:,} wait; try again later."
            )
        await self._wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass_on()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()  # it came in the very moment nobody wanted it any more
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def _pass_on(self) -> None:
        """The place goes to who waits longest, and is free only when nobody does."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


HIDDEN = "***"


class RedactingLog:
    """A log that hides these values."""

    def __init__(self, journal: Log, values: Iterable[str]) -> None:
        self._log = journal
        self._values = sorted(filter(None, values), key=len, reverse=True)

    def write(self, text: str) -> None:
        self._log.write(self.hide(text))

    def hide(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text


Source = Literal["config", "rest"]
Guests = Callable[[Upstream, Session | None], ServerRequestHandler]
"""Who answers what a server asks by itself; with a session, the one whose own connection it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamDeps:
    """What all servers have in common. `idle`: seconds after which a session's own connection is ended."""

    open_link: OpenConnection
    guests: Guests
    clock: Clock
    redactor: Redactor
    idle: float = 1200.0
    backoff: Callable[[], Backoff] = Backoff
    bulletin: ChangeFeed = field(default_factory=ChangeFeed)


class UpstreamServer:
    """The `Upstream` port. `listed` keeps what it lists, `turned` is told when its status is another.

    `catalogue` is what it listed last, here or before the service was started. `offered` are its tools that are in
    the registry, and `unusable` those that could not be made, beside those that the catalogue knows to be invalid.
    `is_told`: there are events of how it is.
    """

    def __init__(
        self,
        definition: AnyServer,
        owner: str | None,
        source: Source,
        around: UpstreamDeps,
        *,
        listed: Callable[["UpstreamServer", Catalog], Awaitable[None]],
        turned: Callable[["UpstreamServer"], None],
        why_off: str | None = None,
    ) -> None:
        self.source: Source = source
        self.catalogue: Catalog | None = None
        self.offered: tuple[str, ...] = ()
        self.unusable: tuple[Invalid, ...] = ()
        self.is_told = True
        self.ring = LogBuffer(around.redactor)
        self._definition = definition
        self._owner = owner
        self._around = around
        self._listed = listed
        self._turns = CallSlots(definition.name, definition.concurrency, definition.queue)
        make = partial(self._make_owner, turned=lambda: None, reads_late=True)
        self._instances = SessionConnections(definition.name, make, around.clock, around.idle)
        self._main = self._make_owner(None, turned=lambda: turned(self), is_scout=definition.per_session)
        self._disabled = Status(ServerState.DISABLED, around.clock.now(), why_off)

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
    def hello(self) -> ServerInfo | None:
        return None if self.catalogue is None else self.catalogue.hello

    @property
    def status(self) -> Status:
        return self._main.status if self._definition.enabled else self._disabled

    async def link(self, session: Session) -> Connection:
        if not self._definition.enabled:
            raise unavailable(self._definition.name, self.status, self._around.clock)
        if self._definition.per_session:
            return await self._instances.link(session)
        return await self._main.link()

    async def wait_listed(self) -> None:
        """Wait until it has listed its tools for the first time. Raises `ToolUnavailable`."""
        await self._main.settle()
        if self.catalogue is None:
            raise unavailable(self._definition.name, self.status, self._around.clock)

    def turn(self) -> AbstractAsyncContextManager[None]:
        return self._turns

    def start(self) -> None:
        if self._definition.enabled:
            self._main.start()

    def reconnect(self) -> None:
        self._instances.reconnect()
        self._main.reconnect()

    async def end_session(self, principal: str, session: str) -> None:
        await self._instances.end_session(principal, session)

    async def stop(self) -> None:
        await self._instances.close()
        await self._main.stop()

    def view(self, *, with_definition: bool) -> dict[str, Any]:
        """The server as the world sees it."""
        status, hello = self.status, self.hello
        invalid = (*(self.catalogue.invalid if self.catalogue else ()), *self.unusable)
        view = {
            "name": self._definition.name,
            "owner": self._owner,
            "kind": self._definition.kind,
            "state": status.state.value,
            "error": self.error,
            "next_retry_at": None if status.next_retry_at is None else rfc3339(status.next_retry_at),
            "since": rfc3339(status.since),
            "protocol_version": hello and hello.version,
            "server_info": hello and hello.info,
            "instructions": hello and hello.instructions,
            "tools": len(self.offered),
            "invalid_tools": [one._asdict() for one in invalid],
            "per_session": self._definition.per_session,
            "source": self.source,
            "enabled": self._definition.enabled,
        }
        return view | {"definition": self._shown() if with_definition else None}

    @property
    def error(self) -> str | None:
        """What is wrong with it, without secrets."""
        error = self.status.error
        return None if error is None else self._around.redactor.text(error)

    def _shown(self) -> dict[str, Any]:
        shown = self._definition.model_dump(mode="json", exclude={"auth": {"token"}})
        return dict(shown)

    def _make_owner(self, session: Session | None, **more: Any) -> ConnectionSupervisor:
        around, server = self._around, self._definition
        ear = _ListChangeFilter(self, around.guests(self, session), around.bulletin)
        enter = partial(around.open_link, server, ear, owner=self._owner, session=session, log=self.ring)
        backoff, patience = around.backoff(), server.startup_timeout
        made = ConnectionSupervisor(
            server.name, enter, self._read, clock=around.clock, backoff=backoff, patience=patience, **more
        )
        ear.connection = made
        return made

    async def _read(self, link: Connection) -> None:
        await self._listed(self, await catalog.read(link, self._definition))


class _ListChangeFilter:
    """The `ServerRequestHandler` port: hears what concerns the lists, and hands everything on."""

    connection: ConnectionSupervisor

    def __init__(self, server: UpstreamServer, guest: ServerRequestHandler, bulletin: ChangeFeed) -> None:
        self._server = server
        self._guest = guest
        self._bulletin = bulletin

    async def asked(self, method: str, params: Raw, about: Context | None) -> Raw:
        return await self._guest.asked(method, params, about)

    def told(self, method: str, params: Raw, about: Context | None) -> None:
        owner, name = self._server.key
        match method:
            case "notifications/tools/list_changed":
                self.connection.note_change()
            case "notifications/resources/list_changed":
                self._bulletin.post(Change("resources", name, owner))
            case "notifications/prompts/list_changed":
                self._bulletin.post(Change("prompts", name, owner))
        self._guest.told(method, params, about)
