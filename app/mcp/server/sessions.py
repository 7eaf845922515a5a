"""MCP sessions of clients up to 2025-11-25, each with its subscriptions and a queue of notifications.

One task per session sends its notifications, and each change once however often it happened meanwhile: a client that
does not read holds up no other.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from app.core.principals import Key
from app.core.util.json_codec import Raw
from app.mcp.server.request_context import Ctx, caller_of

if TYPE_CHECKING:
    from mcp.server.session import ServerSession

OnSessionClosed = Callable[["ClientSession"], Awaitable[None]]
UPDATED = "notifications/resources/updated"


class ClientSession:
    """One session of a client. `subscriptions` are its resources, by the URIs it knows them by."""

    def __init__(self, key: Key, session: "ServerSession") -> None:
        self.key = key
        self.log_level: str | None = None
        self.subscriptions: dict[str, Any] = {}
        self._session = session
        self._pending: dict[tuple[str, str | None], None] = {}
        self._sender: asyncio.Task[None] | None = None

    def notify(self, method: str, uri: str | None = None) -> None:
        self._pending[method, uri] = None
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_pending())

    async def close(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait([self._sender])

    async def _send_pending(self) -> None:
        from mcp_types import server_notification_adapter

        while self._pending:
            method, uri = next(iter(self._pending))
            del self._pending[method, uri]
            message: Raw = {"method": method} if uri is None else {"method": method, "params": {"uri": uri}}
            await self._session.send_notification(server_notification_adapter.validate_python(message))
        self._sender = None


class ClientSessions:
    """All open sessions. `on_closed` is called with each that ends."""

    def __init__(self, on_closed: OnSessionClosed) -> None:
        self._on_closed = on_closed
        self._sessions: dict[str, ClientSession] = {}

    def of(self, principal: str) -> list[ClientSession]:
        return [session for session in self._sessions.values() if session.key.principal == principal]

    @property
    def principals(self) -> set[str]:
        return {session.key.principal for session in self._sessions.values()}

    def get_or_add(self, ctx: Ctx) -> ClientSession | None:
        """The session of this request's client; None for a client without sessions."""
        connection = ctx.session._connection  # the one object that lives as long as the session
        id = connection.session_id
        if id is None:
            return None
        session = self._sessions.get(id)
        if session is None:
            session = self._sessions[id] = ClientSession(caller_of(ctx).key, ctx.session)
            connection.exit_stack.push_async_callback(self._close, id)
        return session

    async def _close(self, id: str) -> None:
        session = self._sessions.pop(id)
        await session.close()
        await self._on_closed(session)
