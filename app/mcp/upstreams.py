"""Upstreams: servers as calls and people see them, whatever becomes of their connections."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from app.core.clocks import rfc3339
from app.core.jsons import Raw
from app.core.mcp_servers import AnyServer, ServerState
from app.core.ports import Clock
from app.core.redaction import Redactor
from app.core.sessions import Session
from app.core.tools import Context
from app.mcp import catalogues
from app.mcp.catalogues import Catalogue, Invalid
from app.mcp.instances import Instances
from app.mcp.owners import Owner
from app.mcp.ports import Bulletin, Change, Guest, Hello, Link, OpenLink, Upstream
from app.mcp.rings import Ring
from app.mcp.statuses import Backoff, Status, unavailable
from app.mcp.turns import Turns

Source = Literal["config", "rest"]
Guests = Callable[[Upstream, Session | None], Guest]
"""Who answers what a server asks by itself; with a session, the one whose own connection it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all servers have in common. `idle`: seconds after which a session's own connection is ended."""

    open_link: OpenLink
    guests: Guests
    clock: Clock
    redactor: Redactor
    idle: float = 1200.0
    backoff: Callable[[], Backoff] = Backoff
    bulletin: Bulletin = field(default_factory=Bulletin)


class Served:
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
        around: Surroundings,
        *,
        listed: Callable[["Served", Catalogue], Awaitable[None]],
        turned: Callable[["Served"], None],
        why_off: str | None = None,
    ) -> None:
        self.source: Source = source
        self.catalogue: Catalogue | None = None
        self.offered: tuple[str, ...] = ()
        self.unusable: tuple[Invalid, ...] = ()
        self.is_told = True
        self.ring = Ring(around.redactor)
        self._definition = definition
        self._owner = owner
        self._around = around
        self._listed = listed
        self._turns = Turns(definition.name, definition.concurrency, definition.queue)
        make = partial(self._make_owner, turned=lambda: None, reads_late=True)
        self._instances = Instances(definition.name, make, around.clock, around.idle)
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
    def hello(self) -> Hello | None:
        return None if self.catalogue is None else self.catalogue.hello

    @property
    def status(self) -> Status:
        return self._main.status if self._definition.enabled else self._disabled

    async def link(self, session: Session) -> Link:
        if not self._definition.enabled:
            raise unavailable(self._definition.name, self.status, self._around.clock)
        if self._definition.per_session:
            return await self._instances.link(session)
        return await self._main.link()

    async def arrive(self) -> None:
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

    def _make_owner(self, session: Session | None, **more: Any) -> Owner:
        around, server = self._around, self._definition
        ear = _Ear(self, around.guests(self, session), around.bulletin)
        enter = partial(around.open_link, server, ear, owner=self._owner, session=session, log=self.ring)
        backoff, patience = around.backoff(), server.startup_timeout
        made = Owner(server.name, enter, self._read, clock=around.clock, backoff=backoff, patience=patience, **more)
        ear.connection = made
        return made

    async def _read(self, link: Link) -> None:
        await self._listed(self, await catalogues.read(link, self._definition))


class _Ear:
    """The `Guest` port: hears what concerns the lists, and hands everything on."""

    connection: Owner

    def __init__(self, server: Served, guest: Guest, bulletin: Bulletin) -> None:
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
