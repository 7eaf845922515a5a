"""Seats: clients of the handshake era that are here, each with what it wants to hear of.

What changed is told by one task for each seat, and told once however often it changed meanwhile: a client that does
not read what it is sent holds up nobody else.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from app.core.principals import Key
from app.core.util.json_codec import Raw
from app.mcp.server.request_context import caller_of

if TYPE_CHECKING:
    from mcp.server.session import ServerSession

    from app.mcp.server.request_context import Ctx

Leave = Callable[["ClientSession"], Awaitable[None]]
UPDATED = "notifications/resources/updated"


class ClientSession:
    """One session of a client. `watched` are the resources it wants to hear of, by the addresses it knows them by."""

    def __init__(self, key: Key, session: "ServerSession") -> None:
        self.key = key
        self.level: str | None = None
        self.watched: dict[str, Any] = {}
        self._session = session
        self._news: dict[tuple[str, str | None], None] = {}
        self._telling: asyncio.Task[None] | None = None

    def tell(self, method: str, uri: str | None = None) -> None:
        self._news[method, uri] = None
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell())

    async def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait([self._telling])

    async def _tell(self) -> None:
        from mcp_types import server_notification_adapter

        while self._news:
            method, uri = next(iter(self._news))
            del self._news[method, uri]
            said: Raw = {"method": method} if uri is None else {"method": method, "params": {"uri": uri}}
            await self._session.send_notification(server_notification_adapter.validate_python(said))
        self._telling = None


class ClientSessions:
    """All of them. `on_leave` is told of each that goes."""

    def __init__(self, on_leave: Leave) -> None:
        self._on_leave = on_leave
        self._seats: dict[str, ClientSession] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def of(self, principal: str) -> list[ClientSession]:
        return [seat for seat in self._seats.values() if seat.key.principal == principal]

    @property
    def principals(self) -> set[str]:
        return {seat.key.principal for seat in self._seats.values()}

    def at(self, ctx: "Ctx") -> ClientSession | None:
        """The seat of the client that speaks, from its first word on; None for one that has no session."""
        connection = ctx.session._connection  # the one thing that lasts as long as the session does
        id = connection.session_id
        if id is None:
            return None
        seat = self._seats.get(id)
        if seat is None:
            seat = self._seats[id] = ClientSession(caller_of(ctx).key, ctx.session)
            connection.exit_stack.push_async_callback(self._leave, id)
        return seat

    async def _leave(self, id: str) -> None:
        seat = self._seats.pop(id)
        await seat.close()
        await self._on_leave(seat)
