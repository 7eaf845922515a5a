"""Types that the MCP client's modules share: errors, a connection to a server, and what the server sends by itself.

The protocol comes in two generations, which the setting `era` calls `older` and `newer`. Up to 2025-11-25 a connection
starts with `initialize` and may have a session. From 2026-07-28 on there is neither: each request carries everything.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypedDict, Unpack

from app.core.mcp_servers import HttpServer, StdioServer
from app.core.sessions import Session
from app.core.tools import Context
from app.core.util.json_codec import Raw

MODERN = "2026-07-28"
"""The first version of the protocol without handshake and session."""

OnProgress = Callable[[float, float | None, str | None], None]
"""Called with progress, total and message."""


class JsonRpcError(Exception):
    """The server answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class ConnectionLost(Exception):
    """The connection ended; the message says why. The server may or may not have executed the request."""


class RequestNotSent(ConnectionLost):
    """The connection ended before the server received the request, so it may be sent again."""


class AuthRevoked(RequestNotSent):
    """The server refused the credentials after the handshake: a person has to sign in again."""


class CannotConnect(Exception):
    """No connection could be made; the message says why. With `is_final` a retry would fail in the same way."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class NeedsAuth(CannotConnect):
    """The server requires credentials. `challenge` is its `WWW-Authenticate` header."""

    def __init__(self, message: str, challenge: str | None = None) -> None:
        super().__init__(message)
        self.challenge = challenge


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What the server declared in `initialize` or `server/discover`."""

    version: str
    capabilities: Raw
    info: Raw
    instructions: str | None = None

    @property
    def is_modern(self) -> bool:
        return self.version >= MODERN

    def has(self, *path: str) -> bool:
        """Whether the server declared a capability: `has("tools", "listChanged")`."""
        value: Any = self.capabilities
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value is not None and value is not False


class ServerRequestHandler(Protocol):
    """Handles requests and notifications that a server sends. `ctx` is the call they belong to, if that is known."""

    async def on_request(self, method: str, params: Raw, ctx: Context | None) -> Raw:
        """Answer `elicitation/create`, `sampling/createMessage` or `roots/list` (`ping` is answered by the peer).
        Raises `JsonRpcError` to answer with that error. Canceled when the server cancels its request."""
        ...

    def on_notification(self, method: str, params: Raw, ctx: Context | None) -> None:
        """Handle a notification: list changes, updated resources, log messages, completed elicitations.
        Progress and cancellations are handled by the peer."""
        ...


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of `Connection.request`."""

    timeout: float | None
    on_progress: OnProgress | None
    ctx: Context | None
    """The call that requests of the server belong to while it works on this request."""


class Connection(Protocol):
    """A connection after its handshake. It lives until its context ends or `lost` is done."""

    @property
    def server_info(self) -> ServerInfo: ...

    @property
    def lost(self) -> "asyncio.Future[str]":
        """Done when the connection has ended; its result says why."""
        ...

    async def request(self, method: str, params: Raw | None = None, **options: Unpack[RequestOptions]) -> Raw:
        """Send one request and return its result. The `_meta` that the protocol requires is added.

        Raises `JsonRpcError`, `ConnectionLost`, and `TimeoutError` after `timeout` seconds. Canceling it also
        cancels the request at the server.
        """
        ...

    async def notify(self, method: str, params: Raw | None = None) -> None:
        """Raises `ConnectionLost`."""
        ...


class OpenConnection(Protocol):
    """Opens connections."""

    def __call__(
        self,
        server: StdioServer | HttpServer,
        handler: ServerRequestHandler,
        *,
        owner: str | None,
        session: Session | None,
        log: "Log",
    ) -> AbstractAsyncContextManager[Connection]:
        """Connect and do the handshake within the server's startup timeout; enter and leave it in the same task.

        `owner` is the principal that owns the server (None: shared by all) and whose secrets it gets. With a `session`
        the server starts in that session's workspace. Entering raises `CannotConnect` (also `NeedsAuth`).
        """
        ...


class Credentials(Protocol):
    """OAuth credentials for MCP servers."""

    async def headers(self, server: HttpServer, owner: str | None) -> Mapping[str, str]:
        """The headers to send; empty while there is no token. A token that expires soon is refreshed first.

        Raises a `CallError` when that fails at the moment.
        """
        ...

    async def handle_refusal(self, server: HttpServer, owner: str | None, status: int, challenge: str | None) -> bool:
        """The server answered 401 or 403 to these headers. True: there are new ones, send the request once more.
        Raises a `CallError` when the authorization server fails at the moment."""
        ...


class Log(Protocol):
    """Takes a server's stderr and the errors of its connection."""

    def write(self, text: str) -> None: ...


class Upstream(Protocol):
    """One MCP server as calls see it, independent of its connections."""

    @property
    def definition(self) -> StdioServer | HttpServer: ...

    @property
    def owner(self) -> str | None:
        """The principal that owns it; None: shared by all."""
        ...

    @property
    def server_info(self) -> ServerInfo | None:
        """What it declared last; None before its first connection."""
        ...

    async def get_connection(self, session: Session) -> Connection:
        """A ready connection for calls of this session; waits for one that is being made.

        Raises `ToolUnavailable`, which says why there is none and when the next attempt is.
        """
        ...

    def call_slot(self) -> AbstractAsyncContextManager[None]:
        """Holds one of the server's call slots. Raises `Overloaded` when too many calls wait already."""
        ...


class Upstreams(Protocol):
    """All MCP servers."""

    def visible_to(self, principal: str) -> Sequence[Upstream]:
        """The enabled ones, shared or owned by this principal, sorted by name."""
        ...

    def get(self, name: str, principal: str) -> Upstream | None:
        """One of those."""
        ...


class Change(NamedTuple):
    """Something changed at a server: the list of this kind, or with `uri` one resource."""

    kind: Literal["tools", "resources", "prompts"]
    server: str
    owner: str | None
    uri: str | None = None


class ChangeFeed:
    """Publishes changes to listeners."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Change], None]] = []

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` with each change. Returns a function that ends the subscription."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, change: Change) -> None:
        for listener in list(self._listeners):
            listener(change)
