"""Toolcrib as an MCP server: the registry as `tools/list`, the line as `tools/call`, and what the servers behind it
have besides.

Streamable HTTP for clients of both eras. The SDK is loaded when the first client comes: a service nobody speaks MCP to
does not pay for it.

Seals: what a client carries from one round to the next, closed with the key of this service's own vault.

So that it opens after a restart, too: a call that waits for a permission has outlived that.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.types import ASGIApp, Receive, Scope, Send

from app import __version__
from app.core.errors import StoreError, TooBusy
from app.core.ports import Sealer
from app.core.principals import Key
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.events.hub import EventHub
from app.dispatch.permission.asks import AskQueue
from app.dispatch.session.sessions import Sessions
from app.dispatch.tools.listing import Listing
from app.mcp.client.interfaces import ChangeFeed
from app.mcp.server.handlers import Handler, McpHandlers
from app.mcp.server.list_cache import ListCache
from app.mcp.server.list_changed import ChangeNotifier
from app.mcp.server.request_context import (
    CALLER_IN_SCOPE,
    KEY_IN_SCOPE,
    MCP_SESSION,
    MESSAGE_IN_SCOPE,
    NAMES_IN_SCOPE,
    RequestContext,
    current_caller,
    header_of,
    named_in,
)
from app.mcp.server.sessions import ClientSession
from app.mcp.server.tool_calls import STOPPING, McpToolCalls
from app.mcp.server.tools import McpTools

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from app.mcp.server.request_context import Ctx


ABOUT = "mcp.request_state"


class RequestStateCodec:
    """What the SDK has sealed and opened with, after its own checks of what is inside."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal(self, payload: bytes) -> str:
        return base64.urlsafe_b64encode(self._sealer.seal(payload, ABOUT)).decode()

    def unseal(self, token: str) -> bytes:
        from mcp.server.request_state import InvalidRequestState

        try:
            return self._sealer.open(base64.b64decode(token, b"-_", validate=True), ABOUT)
        except (binascii.Error, ValueError, StoreError) as error:
            raise InvalidRequestState(str(error)) from None


log = logging.getLogger(__name__)

NAME = "toolcrib"
LISTEN = "subscriptions/listen"
IDLE_SECONDS = 30 * 60.0
MOST_SESSIONS = 4096
"""Each takes some 60 KB; how many one key may have is said at the outer door."""
NO_LIMIT = 1 << 62
"""How large a body may be is said at the outer door."""
STATE_SECONDS = 7 * 24 * 3600.0
"""How long a client may take to come again: as long as an ask can be open."""
LIST_MS = 5_000
GRACE = 3.0


class McpServerApp:
    """The ASGI application behind `/mcp`. Whoever comes has shown a key, which is in the scope."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        sessions: Sessions,
        listing: Listing,
        desk: AskQueue,
        *,
        hub: EventHub,
        engine: AsyncEngine,
        bulletin: ChangeFeed,
        names: Literal["prefixed", "plain"],
        sealer: Sealer,
    ) -> None:
        self._sessions = sessions
        self._sealer = sealer
        self._is_plain = names == "plain"
        self._calls = McpToolCalls(dispatcher, desk, hub, engine)
        self._tools = McpTools(dispatcher.registry, listing)
        self._changes = ChangeNotifier(hub, bulletin, on_leave=self._left, at_end=self._end_soon)
        shelves = ListCache(dispatcher.neighbours, bulletin)
        parts = (self._tools, self._calls, dispatcher.neighbours, self._changes)
        self._methods = McpHandlers(*parts, listing=listing, shelves=shelves, engine=engine)
        self._closing = asyncio.Event()
        self._owing = 0
        self._is_quits = asyncio.Event()
        self._is_quits.set()
        self._ending: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[tuple[ASGIApp, Callable[[str], Any]]] | None = None
        self._owner: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._closing.is_set():
            raise TooBusy(STOPPING, retry_after=5)
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._owner = asyncio.create_task(self._own(self._opened))
        app, user_of = await asyncio.shield(self._opened)
        caller = scope[CALLER_IN_SCOPE] = await self._caller(scope)
        scope["user"] = user_of(caller.key.id)  # a session is its key's alone
        self._take_back(scope, caller)
        mark = current_caller.set(caller)
        try:
            with self._owed(scope):
                await app(scope, receive, send)
        finally:
            current_caller.reset(mark)
            self._cut_off(scope)

    def sessions_of(self, key: Key) -> int:
        """How many MCP sessions a key has open."""
        return sum(seat.key.id == key.id for seat in self._changes.seats.of(key.principal))

    async def close(self) -> None:
        """End all streams and sessions. Calls have been drained before."""
        self._end_soon()
        for task in (self._ending, self._owner):
            if task is not None:
                await asyncio.wait([task])

    @contextmanager
    def _owed(self, scope: Scope) -> Iterator[None]:
        """An answer that the service owes still when it stops. What is a stream by itself has none."""
        message = scope.get(MESSAGE_IN_SCOPE)
        if scope["method"] != "POST" or (isinstance(message, dict) and message.get("method") == LISTEN):
            yield
            return
        self._owing += 1
        self._is_quits.clear()
        try:
            yield
        finally:
            self._owing -= 1
            if not self._owing:
                self._is_quits.set()

    async def _caller(self, scope: Scope) -> RequestContext:
        key, named = scope[KEY_IN_SCOPE], named_in(scope)
        names = scope.get(NAMES_IN_SCOPE)
        is_plain = self._is_plain if names is None else names == "plain"
        return RequestContext(key, named, await self._sessions.seen(key, named), is_plain)

    def _take_back(self, scope: Scope, caller: RequestContext) -> None:
        """A client that says it gives up stops its calls. One that is only cut off does not."""
        session = header_of(scope, MCP_SESSION)
        if session is None:
            return
        if scope["method"] == "DELETE":
            self._calls.leave(session, caller)
        match scope.get(MESSAGE_IN_SCOPE):
            case {"method": "notifications/cancelled", "params": {"requestId": int() | str() as request}}:
                self._calls.cancel(session, request, caller)

    def _cut_off(self, scope: Scope) -> None:
        session = header_of(scope, MCP_SESSION)
        match scope.get(MESSAGE_IN_SCOPE):
            case {"method": str(), "id": int() | str() as request} if session is not None:
                self._calls.cut_off(session, request)

    def _end_soon(self) -> None:
        """The service stops: whoever still waits for a call gets its answer, then the streams end."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await self._is_quits.wait()
        await self._changes.close()
        self._closing.set()

    async def _left(self, seat: ClientSession) -> None:
        await self._methods.forget(seat)

    async def _own(self, opened: "asyncio.Future[tuple[ASGIApp, Callable[[str], Any]]]") -> None:
        """One task enters and leaves the SDK's manager, as its task group demands."""
        try:
            manager, user_of = await asyncio.to_thread(self._build)
            async with manager.run():
                opened.set_result((manager.asgi_app, user_of))
                await self._closing.wait()
        except Exception as error:
            log.exception("the MCP server broke")
            if not opened.done():
                opened.set_exception(error)  # the clients that wait must know

    def _build(self) -> tuple[Any, Callable[[str], Any]]:
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        from sse_starlette.sse import AppStatus

        # Streams end when their calls have, and not with the signal.
        AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
        manager = StreamableHTTPSessionManager(
            app=self._server(),
            max_request_body_size=NO_LIMIT,
            session_idle_timeout=IDLE_SECONDS,
            max_sessions=MOST_SESSIONS,
        )
        return manager, lambda key: AuthenticatedUser(AccessToken(token="", client_id=key, scopes=[]))

    def _server(self) -> "Server[Any]":
        from mcp.server.caching import CacheHint
        from mcp.server.lowlevel import NotificationOptions, Server
        from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

        class Announcing(Server[Any]):
            """The manager has no way to say so: this server tells when its lists change."""

            def create_initialization_options(self, *given: Any, **more: Any) -> Any:
                told = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
                return super().create_initialization_options(*(given or (told,)), **more)

        lists = ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover")
        hints: Any = {method: CacheHint(LIST_MS) for method in lists} | {"resources/read": CacheHint()}
        server = Announcing(
            NAME,
            version=__version__,
            title="Toolcrib",
            cache_hints=hints,
            get_tool_input_schema=self._tools.schema,
        )
        for method, params, handler in self._methods.table():
            server.add_request_handler(method, params, handler)
        sealed = RequestStateSecurity(
            codec=RequestStateCodec(self._sealer), ttl=STATE_SECONDS, bind_principal=_key_id, audience=NAME
        )
        server.middleware += [self._note, RequestStateBoundary(sealed, default_audience=NAME)]
        return server

    async def _note(self, ctx: "Ctx", call_next: Handler) -> Any:
        """Whoever speaks in a session has a seat, and hears of changes."""
        seat = self._changes.seats.at(ctx)
        if seat is not None:
            self._changes.follow(seat.key.principal)
        return await call_next(ctx)


def _key_id(ctx: "Ctx") -> str:
    from app.mcp.server.request_context import caller_of

    return caller_of(ctx).key.id
