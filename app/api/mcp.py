"""The way in for MCP clients: the key is checked here, the protocol is spoken in `app/mcp`."""

from starlette.datastructures import Headers
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from app.api.access import key_of, use_of
from app.core.principals import Scope
from app.mcp.server import KEY_IN_SCOPE


class SpeakMcp:
    """`/mcp`, as an ASGI endpoint: all methods, exact path."""

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        use = use_of(scope)
        scope[KEY_IN_SCOPE] = key_of(Headers(scope=scope), use, Scope.CALLS_RUN)
        await use.mcp(scope, receive, send)
