"""Toolcrib as an MCP server: the registry as `tools/list`, the call pipeline as `tools/call`, and the resources and
prompts of the upstream MCP servers.

Streamable HTTP for both protocol generations. The SDK is imported at the first request: a service without MCP clients
does not pay for it.
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
from app.mcp.server.list_changed import ChangeNotifier
from app.mcp.server.request_context import (
    CALLER_IN_SCOPE,
    KEY_IN_SCOPE,
    MCP_SESSION,
    MESSAGE_IN_SCOPE,
    NAMES_IN_SCOPE,
    Ctx,
    RequestContext,
    caller_of,
    current_caller,
    header_of,
    session_name_in,
)
from app.mcp.server.resources import ListCache
from app.mcp.server.tool_calls import STOPPING, McpToolCalls
from app.mcp.server.tools import McpTools

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

log = logging.getLogger(__name__)

NAME = "toolcrib"
LISTEN = "subscriptions/listen"
REQUEST_STATE = "mcp.request_state"
IDLE_SECONDS = 30 * 60.0
MAX_SESSIONS = 4096
"""Each takes some 60 KB. How many one key may have is checked at the HTTP endpoint."""
NO_LIMIT = 1 << 62
"""The size of a body is checked at the HTTP endpoint."""
REQUEST_STATE_SECONDS = 7 * 24 * 3600.0
"""How long a client may take to repeat its request: as long as an ask can be open."""
LIST_TTL_MS = 5_000
SHUTDOWN_SECONDS = 3.0


class RequestStateCodec:
    """Encrypts `requestState` with the vault's key, so that a call waiting for a permission survives a restart."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal(self, payload: bytes) -> str:
        return base64.urlsafe_b64encode(self._sealer.seal(payload, REQUEST_STATE)).decode()

    def unseal(self, token: str) -> bytes:
        from mcp.server.request_state import InvalidRequestState

        try:
            return self._sealer.open(base64.b64decode(token, b"-_", validate=True), REQUEST_STATE)
        except (binascii.Error, ValueError, StoreError) as error:
            raise InvalidRequestState(str(error)) from None


class McpServerApp:
    """The ASGI application behind `/mcp`. The HTTP endpoint has authenticated the key and put it into the scope."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        sessions: Sessions,
        listing: Listing,
        asks: AskQueue,
        hub: EventHub,
        engine: AsyncEngine,
        change_feed: ChangeFeed,
        names: Literal["prefixed", "plain"],
        sealer: Sealer,
    ) -> None:
        self._sessions = sessions
        self._sealer = sealer
        self._is_plain = names == "plain"
        self._calls = McpToolCalls(dispatcher, asks, hub, engine)
        self._tools = McpTools(dispatcher.registry, listing)
        self._handlers: McpHandlers
        self._changes = ChangeNotifier(
            hub,
            change_feed,
            on_session_closed=lambda session: self._handlers.unsubscribe_all(session),
            on_log_closed=self._begin_shutdown,
        )
        self._handlers = McpHandlers(
            tools=self._tools,
            calls=self._calls,
            upstream=dispatcher.resources.mcp_resources,
            changes=self._changes,
            listing=listing,
            lists=ListCache(dispatcher.resources.mcp_resources, change_feed),
            engine=engine,
        )
        self._closing = asyncio.Event()
        self._pending_responses = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._shutdown: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[tuple[ASGIApp, Callable[[str], Any]]] | None = None
        self._manager_task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._closing.is_set():
            raise TooBusy(STOPPING, retry_after=5)
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._manager_task = asyncio.create_task(self._run_manager(self._opened))
        app, user_of = await asyncio.shield(self._opened)
        caller = scope[CALLER_IN_SCOPE] = await self._request_context(scope)
        scope["user"] = user_of(caller.key.id)  # an MCP session belongs to one key
        self._handle_cancel(scope, caller)
        token = current_caller.set(caller)
        try:
            with self._tracking_response(scope):
                await app(scope, receive, send)
        finally:
            current_caller.reset(token)
            self._detach_request(scope)

    def sessions_of(self, key: Key) -> int:
        """How many MCP sessions a key has open."""
        return sum(client.key.id == key.id for client in self._changes.sessions.of(key.principal))

    async def close(self) -> None:
        """End all streams and sessions. Calls have been drained before."""
        self._begin_shutdown()
        for task in (self._shutdown, self._manager_task):
            if task is not None:
                await asyncio.wait([task])

    @contextmanager
    def _tracking_response(self, scope: Scope) -> Iterator[None]:
        """Count a response that shutdown waits for. A stream of notifications is none."""
        message = scope.get(MESSAGE_IN_SCOPE)
        if scope["method"] != "POST" or (isinstance(message, dict) and message.get("method") == LISTEN):
            yield
            return
        self._pending_responses += 1
        self._all_answered.clear()
        try:
            yield
        finally:
            self._pending_responses -= 1
            if not self._pending_responses:
                self._all_answered.set()

    async def _request_context(self, scope: Scope) -> RequestContext:
        key, session_name = scope[KEY_IN_SCOPE], session_name_in(scope)
        names = scope.get(NAMES_IN_SCOPE)
        is_plain = self._is_plain if names is None else names == "plain"
        return RequestContext(key, session_name, await self._sessions.seen(key, session_name), is_plain)

    def _handle_cancel(self, scope: Scope, caller: RequestContext) -> None:
        """A client that cancels a request or ends its session stops its calls. A broken connection does not."""
        session = header_of(scope, MCP_SESSION)
        if session is None:
            return
        if scope["method"] == "DELETE":
            self._calls.cancel_session(session, caller)
        match scope.get(MESSAGE_IN_SCOPE):
            case {"method": "notifications/cancelled", "params": {"requestId": int() | str() as request}}:
                self._calls.cancel(session, request, caller)

    def _detach_request(self, scope: Scope) -> None:
        session = header_of(scope, MCP_SESSION)
        match scope.get(MESSAGE_IN_SCOPE):
            case {"method": str(), "id": int() | str() as request} if session is not None:
                self._calls.detach(session, request)

    def _begin_shutdown(self) -> None:
        """Pending requests get their responses first, then the streams end."""
        if self._shutdown is None:
            self._shutdown = asyncio.create_task(self._shut_down())

    async def _shut_down(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await self._all_answered.wait()
        await self._changes.close()
        self._closing.set()

    async def _run_manager(self, opened: "asyncio.Future[tuple[ASGIApp, Callable[[str], Any]]]") -> None:
        """Enter and leave the SDK's session manager in one task, as its task group demands."""
        try:
            manager, user_of = await asyncio.to_thread(self._build_manager)
            async with manager.run():
                opened.set_result((manager.asgi_app, user_of))
                await self._closing.wait()
        except Exception as error:
            log.exception("the MCP server broke")
            if not opened.done():
                opened.set_exception(error)  # waiting requests fail with it

    def _build_manager(self) -> tuple[Any, Callable[[str], Any]]:
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        from sse_starlette.sse import AppStatus

        # Streams end after their calls, not at SIGTERM.
        AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
        manager = StreamableHTTPSessionManager(
            app=self._build_server(),
            max_request_body_size=NO_LIMIT,
            session_idle_timeout=IDLE_SECONDS,
            max_sessions=MAX_SESSIONS,
        )
        return manager, lambda key: AuthenticatedUser(AccessToken(token="", client_id=key, scopes=[]))

    def _build_server(self) -> "Server[Any]":
        from mcp.server.caching import CacheHint
        from mcp.server.lowlevel import NotificationOptions, Server
        from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

        class _Server(Server[Any]):
            """Declares the listChanged capabilities, for which the manager has no parameter."""

            def create_initialization_options(self, *args: Any, **kwargs: Any) -> Any:
                options = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
                return super().create_initialization_options(*(args or (options,)), **kwargs)

        lists = ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover")
        hints: Any = {method: CacheHint(LIST_TTL_MS) for method in lists} | {"resources/read": CacheHint()}
        server = _Server(
            NAME,
            version=__version__,
            title="Toolcrib",
            cache_hints=hints,
            get_tool_input_schema=self._tools.schema,
        )
        for method, params, handler in self._handlers.table():
            server.add_request_handler(method, params, handler)
        security = RequestStateSecurity(
            codec=RequestStateCodec(self._sealer),
            ttl=REQUEST_STATE_SECONDS,
            bind_principal=lambda ctx: caller_of(ctx).key.id,
            audience=NAME,
        )
        server.middleware += [self._track_session, RequestStateBoundary(security, default_audience=NAME)]
        return server

    async def _track_session(self, ctx: Ctx, call_next: Handler) -> Any:
        """Middleware: a client with a session gets its notifications of changes from its first request on."""
        client = self._changes.sessions.get_or_add(ctx)
        if client is not None:
            self._changes.follow(client.key.principal)
        return await call_next(ctx)
