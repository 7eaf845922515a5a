"""A server of the SDK with a tool for each thing that goes over a wire, over pipes or on a loopback port."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import uvicorn
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

Ctx = ServerRequestContext[Any, Any]
SCHEMA = {"type": "object", "properties": {}}
REPEATED = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


class SdkServer(Server[Any]):
    """Says in the older era, too, that its list of tools may change."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.canceled: list[str] = []
        self.begun = asyncio.Event()
        self.undone = asyncio.Event()
        self.sessions: list[Any] = []
        super().__init__(
            "sdk",
            version="1",
            instructions="be kind",
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=ListenHandler(self.bus),
            on_subscribe_resource=self._subscribe,
            on_list_resources=self._resources,
        )

    def create_initialization_options(self, notification_options: Any = None, *more: Any, **named: Any) -> Any:
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, *more, **named)

    async def change(self, *uris: str) -> None:
        """Tell everybody who listens, in both eras."""
        events: list[ServerEvent] = [ResourceUpdated(uri=uri) for uri in uris]
        for event in events or [ToolsListChanged()]:
            await self.bus.publish(event)
        for session in self.sessions:
            await session.send_tool_list_changed()

    async def _resources(self, ctx: Ctx, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[])

    async def _subscribe(self, ctx: Ctx, params: types.SubscribeRequestParams) -> types.EmptyResult:
        await ctx.session.send_resource_updated(params.uri)
        return types.EmptyResult()

    async def _list(self, ctx: Ctx, params: Any) -> types.ListToolsResult:
        if ctx.protocol_version < "2026":
            self.sessions.append(ctx.session)
        names = ("echo", "slow", "steps", "ask", "big")
        tools = [types.Tool(name=name, input_schema=SCHEMA) for name in names]
        return types.ListToolsResult(tools=[*tools, types.Tool(name="weather", input_schema=REPEATED)])

    async def _call(self, ctx: Ctx, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        match params.name:
            case "slow":
                await self._wait(ctx)
            case "steps":
                for step in range(arguments["steps"]):
                    await ctx.session.report_progress(step, arguments["steps"], "on")
            case "ask":
                answer = await ctx.session.elicit_form("Who?", FORM, related_request_id=ctx.request_id)
                return _text(str(answer.content))
            case "big":
                return _text("x" * arguments["size"])
        return _text(str(arguments.get("text") or arguments.get("city")))

    async def _wait(self, ctx: Ctx) -> None:
        self.begun.set()
        try:
            await anyio.sleep(600)
        except anyio.get_cancelled_exc_class():
            self.canceled.append(str(ctx.request_id))
            self.undone.set()
            raise


def _text(words: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=words)])


@asynccontextmanager
async def hosted(server: SdkServer, *, era: str = "both", port: int = 0, **mode: Any) -> AsyncIterator[str]:
    """The server on loopback, over streamable HTTP in one of its modes. Gives its address."""
    manager = StreamableHTTPSessionManager(app=server, **mode)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(manager.run())
        inner = StreamableHTTPASGIApp(manager)
        app = Starlette(routes=[Route("/mcp", endpoint=_Old(inner) if era == "older" else inner)])
        yield await stack.enter_async_context(served(app, port)) + "/mcp"


class _Old:
    """Knows nothing of the newer era, as servers did before it."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if (b"mcp-protocol-version", b"2026-07-28") in scope["headers"]:
            await Response("Bad Request: Unsupported protocol version", 400)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


@asynccontextmanager
async def hosted_as_stream(server: SdkServer) -> AsyncIterator[str]:
    """The same in the oldest way."""
    transport = SseServerTransport("/messages/")

    async def stream(request: Request) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as (reads, writes):
            await server.run(reads, writes, server.create_initialization_options())
        return Response()

    routes = [Route("/sse", endpoint=stream), Mount("/messages/", app=transport.handle_post_message)]
    async with served(Starlette(routes=routes), 0) as url:
        yield f"{url}/sse"


@asynccontextmanager
async def served(app: Any, port: int) -> AsyncIterator[str]:
    """An application on loopback, in this loop."""
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False, timeout_keep_alive=5)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    door = socket.socket(proto=socket.IPPROTO_TCP)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind(("127.0.0.1", port))
    await server.startup(sockets=[door])
    try:
        yield f"http://127.0.0.1:{door.getsockname()[1]}"
    finally:
        server.force_exit = True
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await server.shutdown(sockets=[door])


async def main() -> None:
    server = SdkServer()
    async with stdio_server() as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
