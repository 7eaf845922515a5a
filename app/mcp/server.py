"""Toolcrib as an MCP server: the registry as `tools/list`, the line as `tools/call`.

Streamable HTTP without sessions, so that any replica can answer. The SDK is
loaded when the first client comes: a service nobody speaks MCP to does not pay
for it.
"""

import asyncio
import json
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.types import ASGIApp, Receive, Scope, Send

from app.core.calls import Call, CallRequest, note_calls
from app.core.errors import Canceled, Refusal
from app.core.ports import TraceContext
from app.core.principals import Key
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.tools import Effect
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.listings import Listing, ToolFilter, View
from app.dispatch.sessions import Sessions
from app.mcp.attachments import contents

if TYPE_CHECKING:
    from mcp import types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server

KEY_IN_SCOPE = "toolcrib.key"
SESSION_HEADER = "Toolcrib-Session"
FREE_FORM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class McpDoor:
    """The ASGI application behind `/mcp`. Whoever comes has shown a key, which is in the scope."""

    def __init__(
        self, dispatcher: Dispatcher, sessions: Sessions, listing: Listing, engine: AsyncEngine, version: str
    ) -> None:
        self._dispatcher = dispatcher
        self._engine = engine
        self._sessions = sessions
        self._listing = listing
        self._version = version
        self._closing = asyncio.Event()
        self._opened: asyncio.Future[ASGIApp] | None = None
        self._owner: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._owner = asyncio.create_task(self._own(self._opened))
        app = await asyncio.shield(self._opened)
        await app(scope, receive, send)

    async def close(self) -> None:
        self._closing.set()
        if self._owner is not None:
            await asyncio.wait([self._owner])

    async def _own(self, opened: "asyncio.Future[ASGIApp]") -> None:
        """One task enters and leaves the SDK's manager, as its task group demands."""
        try:
            manager = await asyncio.to_thread(self._build)
            async with manager.run():
                opened.set_result(manager.asgi_app)
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - the clients that wait must know
            if not opened.done():
                opened.set_exception(error)

    def _build(self) -> Any:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        return StreamableHTTPSessionManager(app=self._server(), json_response=True, stateless=True)

    def _server(self) -> "Server[Any]":
        from mcp.server.lowlevel import Server

        return Server(
            "toolcrib",
            version=self._version,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            get_tool_input_schema=self._schema,
        )

    def _schema(self, name: str) -> dict[str, Any] | None:
        """Of tools that are one principal's own nothing is said here, where it is not known who asks."""
        tool = self._dispatcher.registry.get(name, None)
        return input_schema(tool.view()) if tool else None

    async def _session(self, ctx: "ServerRequestContext[Any, Any]", key: Key) -> Session | None:
        """The session that the header names, if the key sees it."""
        return await self._sessions.seen(key, _named(ctx))

    async def _list_tools(
        self, ctx: "ServerRequestContext[Any, Any]", params: "types.PaginatedRequestParams | None"
    ) -> "types.ListToolsResult":
        from mcp import types

        key = _key_of(ctx)
        session = await self._session(ctx, key)
        listed = await self._listing.tools(session, key, ToolFilter()) if session else []
        return types.ListToolsResult(tools=[to_mcp(view) for view in listed if view["available"]])

    async def _call_tool(
        self, ctx: "ServerRequestContext[Any, Any]", params: "types.CallToolRequestParams"
    ) -> "types.CallToolResult":
        """A call like any other; a client that gives up stops it."""
        assert ctx.request is not None, "the transport is HTTP"
        key = _key_of(ctx)
        session = await self._session(ctx, key)
        if session is None:
            return failed(f"There is no session {_named(ctx)}; the header {SESSION_HEADER} names one, or none.")
        traceparent = ctx.request.headers.get("traceparent")
        origin = TraceContext(traceparent, ctx.request.headers.get("tracestate")) if traceparent else None
        try:
            live = self._dispatcher.submit(self._request(params, key), session, key=key, origin=origin)
        except Refusal as refusal:
            return failed(f"Overloaded: {refusal}")  # for the model it is all the same why there is no room
        note_calls(ctx.request.scope, live.call.id)
        try:
            await live.wait()
        except asyncio.CancelledError:
            live.interrupt(Canceled("The MCP client gave up on this call."))
            raise
        if live.failure is not None:
            raise live.failure
        return to_result(live.call, await contents(self._engine, live.call))

    def _request(self, params: "types.CallToolRequestParams", key: Key) -> CallRequest:
        arguments = params.arguments or {}
        tool = self._dispatcher.registry.get(params.name, key.principal)
        if tool is not None and tool.takes == "input":
            return CallRequest(tool=params.name, input=arguments.get("input"))
        return CallRequest(tool=params.name, arguments=arguments)


def _key_of(ctx: "ServerRequestContext[Any, Any]") -> Key:
    assert ctx.request is not None, "the transport is HTTP"
    key: Key = ctx.request.scope[KEY_IN_SCOPE]
    return key


def _named(ctx: "ServerRequestContext[Any, Any]") -> str:
    """The session a request is about."""
    assert ctx.request is not None, "the transport is HTTP"
    named: str | None = ctx.request.headers.get(SESSION_HEADER)
    return named or DEFAULT_SESSION


def input_schema(view: View) -> dict[str, Any]:
    """MCP knows no free text: a tool that takes it says itself what the one argument is, or gets a plain one."""
    schema: dict[str, Any] = view["parameters"]
    is_said = view["takes"] == "arguments" or "input" in schema.get("properties", {})
    return schema if is_said else FREE_FORM


def to_mcp(view: View) -> "types.Tool":
    from mcp import types

    return types.Tool(
        name=view["name"],
        title=view["title"],
        description=view["description"],
        input_schema=input_schema(view),
        annotations=types.ToolAnnotations(read_only_hint=view["effect"] == Effect.READ),
    )


def failed(sentence: str) -> "types.CallToolResult":
    """There is no call, and why."""
    from mcp import types

    return types.CallToolResult(content=[types.TextContent(text=sentence)], is_error=True)


def to_result(call: Call, attached: "list[types.ContentBlock]") -> "types.CallToolResult":
    """What the model reads: the output, then the error's sentence if there is one; and what goes along with it."""
    from mcp import types

    result = json.loads(call.result) if call.result else None
    error = json.loads(call.error) if call.error else None
    texts = [result["output"]] if result else []
    if not call.is_final:
        texts.append(f"Interrupted: the service stops, and call {call.id} goes on when it is back.")
    if error:
        texts.append(f"{error['code']}: {error['message']}")
    structured = result["structured"] if result else None
    return types.CallToolResult(
        content=[*(types.TextContent(text=text) for text in texts), *attached],
        structured_content=structured if isinstance(structured, dict) else None,
        is_error=error is not None or not call.is_final,
    )
