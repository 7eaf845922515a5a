"""The way in for MCP clients: key and body are checked here, the protocol is spoken in `app/mcp`."""

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Send
from starlette.types import Scope as ASGIScope

from app.api import bodies
from app.api.access import key_of, use_of
from app.core.principals import Scope
from app.mcp.server import KEY_IN_SCOPE


class SpeakMcp:
    """`/mcp`, as an ASGI endpoint: all methods, exact path."""

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        use = use_of(scope)
        headers = Headers(scope=scope)
        key = scope[KEY_IN_SCOPE] = key_of(headers, use, Scope.CALLS_RUN)
        if scope["method"] == "GET":  # a stream for what the server has to say
            with use.streams.slot(key):
                await use.mcp(scope, receive, send)
            return
        if scope["method"] == "POST":
            body = await bodies.read(receive)
            bodies.parse(body, headers.get("content-type", bodies.JSON))
            receive = _again(body, receive)
        await use.mcp(scope, receive, send)


def _again(body: bytes, receive: Receive) -> Receive:
    """What was read, to be received once more; then what comes after it."""
    is_told = False

    async def receive_again() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
