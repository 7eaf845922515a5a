"""What the parts of this room hold of each other: a link to a server, and what comes over it unasked."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from app.core.mcp_servers import HttpServer, StdioServer
from app.core.sessions import Session
from app.core.tools import Context
from app.core.util.json_codec import Raw

MODERN = "2026-07-28"
"""From this version of the protocol on there is no handshake and no session."""

OnProgress = Callable[[float, float | None, str | None], None]
"""How far, of how much, and in words."""


class JsonRpcError(Exception):
    """A JSON-RPC error: the server answered, and the answer is no."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class ConnectionLost(Exception):
    """The connection is over; the sentence says how that came about. Whatever was asked may or may not be done."""


class RequestNotSent(ConnectionLost):
    """The same, and the server has not seen the request: it may be sent again."""


class AuthRevoked(RequestNotSent):
    """The server said hello and then did not let us in: somebody has to sign in before it is of use again."""


class CannotConnect(Exception):
    """There is no connection; the sentence says why. With `is_final` it would be the same the next time."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class NeedsAuth(CannotConnect):
    """The server lets nobody in whom it does not know. `challenge` is its `WWW-Authenticate` header."""

    def __init__(self, message: str, challenge: str | None = None) -> None:
        super().__init__(message)
        self.challenge = challenge


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What a server said of itself when the connection was made."""

    version: str
    capabilities: Raw
    info: Raw
    instructions: str | None = None

    @property
    def is_modern(self) -> bool:
        return self.version >= MODERN

    def has(self, *path: str) -> bool:
        """Whether it said it can do this: `has("tools", "listChanged")`."""
        found: Any = self.capabilities
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        return found is not None and found is not False


class ServerRequestHandler(Protocol):
    """What a server asks and tells us by itself. `about` is the call it belongs to, where the server names it."""

    async def asked(self, method: str, params: Raw, about: Context | None) -> Raw:
        """Answer a request (`elicitation/create`, `sampling/createMessage`, `roots/list`; `ping` never comes here).
        Raises `JsonRpcError` to answer with that error. It is canceled when the server takes it back."""
        ...

    def told(self, method: str, params: Raw, about: Context | None) -> None:
        """A notification: `notifications/tools/list_changed` and its like (also where the protocol has another way to
        say so), `notifications/resources/updated`, `notifications/message`, `notifications/elicitation/complete`.
        Progress and cancellations never come here."""
        ...


class Connection(Protocol):
    """A connection over which hello was said. It lives until its context ends or `lost` is done."""

    @property
    def hello(self) -> ServerInfo: ...

    @property
    def lost(self) -> "asyncio.Future[str]":
        """Done when the connection is over, with a sentence that says how."""
        ...

    async def request(
        self,
        method: str,
        params: Raw | None = None,
        *,
        seconds: float | None = None,
        on_progress: OnProgress | None = None,
        about: Context | None = None,
    ) -> Raw:
        """One request and its result, as it came. What the protocol wants to stand in `_meta` is put there.

        Raises `JsonRpcError`, `ConnectionLost`, and `TimeoutError` after `timeout` seconds. Canceling it also
        cancels the request at the server. Server requests that refer to this request get `about`.
        """
        ...

    async def notify(self, method: str, params: Raw | None = None) -> None:
        """Raises `ConnectionLost`."""
        ...


class OpenConnection(Protocol):
    """Makes connections."""

    def __call__(
        self,
        server: StdioServer | HttpServer,
        guest: ServerRequestHandler,
        *,
        owner: str | None,
        session: Session | None,
        log: "Log",
    ) -> AbstractAsyncContextManager[Connection]:
        """A link, with hello said, within the server's own startup time; enter and leave it in the same task.

        `owner` is whose server it is (None: everybody's), and whose secrets it gets. With a `session` it starts in
        that session's workspace. Entering raises `CannotConnect` (also `NeedsAuth`).
        """
        ...


class Credentials(Protocol):
    """What lets us in at servers with OAuth."""

    async def headers(self, server: HttpServer, owner: str | None) -> Mapping[str, str]:
        """What to send along now; empty when there is nothing yet. A token that runs out soon is renewed first.

        Raises a `CallError` when that cannot be done at the moment.
        """
        ...

    async def refused(self, server: HttpServer, owner: str | None, status: int, challenge: str | None) -> bool:
        """The server answered 401 or 403 to those headers. True: there are better ones, try once more. Else the link
        raises `NeedsAuth`. Raises a `CallError` when it cannot be said at the moment."""
        ...


class Log(Protocol):
    """What a server's program writes beside the protocol, and what goes wrong with it: the last of it is kept."""

    def write(self, text: str) -> None: ...


class Upstream(Protocol):
    """One server as calls see it, whatever becomes of its connection."""

    @property
    def definition(self) -> StdioServer | HttpServer: ...

    @property
    def owner(self) -> str | None:
        """Whose it is; None is everybody's."""
        ...

    @property
    def hello(self) -> ServerInfo | None:
        """What it said last; None before the first time."""
        ...

    async def link(self, session: Session) -> Connection:
        """A link that is ready, for calls of this session; one that is just starting is waited for.

        Raises `ToolUnavailable`, which says why there is none and when the next try is.
        """
        ...

    def turn(self) -> AbstractAsyncContextManager[None]:
        """One of its places for calls, waited for in line. Raises `Overloaded` when too many wait already."""
        ...


class Upstreams(Protocol):
    """All servers."""

    def seen(self, principal: str) -> Sequence[Upstream]:
        """Those that are enabled, everybody's and this principal's, in the order of their names."""
        ...

    def get(self, name: str, principal: str) -> Upstream | None:
        """One of those."""
        ...


class Change(NamedTuple):
    """Something at a server is not what it was. With `uri` it is one resource, else the list of all of the kind."""

    kind: Literal["tools", "resources", "prompts"]
    server: str
    owner: str | None
    uri: str | None = None


class ChangeFeed:
    """Where changes are told as they happen, to everybody who watches."""

    def __init__(self) -> None:
        self._watchers: list[Callable[[Change], None]] = []

    def watch(self, watcher: Callable[[Change], None]) -> Callable[[], None]:
        """Be told from now on. The answer ends it."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def post(self, change: Change) -> None:
        for watcher in list(self._watchers):
            watcher(change)
