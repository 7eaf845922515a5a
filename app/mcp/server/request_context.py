"""The caller of an MCP request: key, session, how it names the tools of servers; and errors of the protocol."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from app.core.errors import CallError, InvalidArgs
from app.core.ports import TraceContext
from app.core.principals import Key
from app.core.sessions import DEFAULT_SESSION, Session
from app.mcp.client.interfaces import MODERN

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from starlette.types import Scope

Ctx: TypeAlias = "ServerRequestContext[Any, Any]"
"""The SDK's context of one request; a string here, as the SDK is imported late."""

KEY_IN_SCOPE = "toolcrib.key"
MESSAGE_IN_SCOPE = "toolcrib.message"
NAMES_IN_SCOPE = "toolcrib.names"
CALLER_IN_SCOPE = "toolcrib.caller"
SESSION_HEADER = "Toolcrib-Session"
MCP_SESSION = b"mcp-session-id"

INVALID_PARAMS = -32602
NOT_FOUND = -32002
INTERNAL_ERROR = -32603


@dataclass(frozen=True, slots=True)
class RequestContext:
    key: Key
    session_name: str
    session: Session | None
    """None when the key sees no session of that name."""
    is_plain: bool
    """Whether tools of upstream servers go by their own names, without the prefix."""

    @property
    def no_session(self) -> str:
        return (
            f"There is no session {self.session_name}. Name an existing one in the header {SESSION_HEADER}, or omit it."
        )

    def require_session(self) -> Session:
        if self.session is None:
            raise protocol_error(self.no_session)
        return self.session


current_caller: ContextVar[RequestContext | None] = ContextVar("current_caller", default=None)
"""The caller of the current request, for SDK callbacks that get no context."""


def caller_of(ctx: Ctx) -> RequestContext:
    assert ctx.request is not None, "the transport is HTTP"
    caller: RequestContext = ctx.request.scope[CALLER_IN_SCOPE]
    return caller


def session_name_in(scope: "Scope") -> str:
    return header_of(scope, SESSION_HEADER.lower().encode()) or DEFAULT_SESSION


def header_of(scope: "Scope", name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def is_modern(ctx: Ctx) -> bool:
    """Whether this client uses the stateless protocol (2026-07-28), without handshake and sessions."""
    return ctx.protocol_version >= MODERN


def trace_of(ctx: Ctx) -> TraceContext | None:
    """The W3C trace context of a request, from its HTTP headers or its `_meta`."""
    assert ctx.request is not None, "the transport is HTTP"
    meta = {name: value for name, value in meta_of(ctx).items() if isinstance(value, str)}
    traceparent = ctx.request.headers.get("traceparent") or meta.get("traceparent")
    if traceparent is None:
        return None
    return TraceContext(traceparent, ctx.request.headers.get("tracestate") or meta.get("tracestate"))


def meta_of(ctx: Ctx) -> dict[str, Any]:
    meta = (ctx.params or {}).get("_meta")
    return meta if isinstance(meta, dict) else {}


def protocol_error(message: str, code: int = INVALID_PARAMS, data: Any = None) -> Exception:
    """A JSON-RPC error to raise."""
    from mcp import MCPError

    return MCPError(code, message, data)


def resource_not_found(ctx: Ctx, uri: str) -> Exception:
    """Since 2026-07-28 this has no error code of its own."""
    return protocol_error(f"Resource not found: {uri}", INVALID_PARAMS if is_modern(ctx) else NOT_FOUND, {"uri": uri})


def call_failure(error: CallError | dict[str, Any], ctx: Ctx) -> Exception:
    """A call's error, or its stored form, as a JSON-RPC error. An upstream server's error keeps its code."""
    if isinstance(error, CallError):
        error = error.as_dict()
    message, details = error["message"], error.get("details") or {}
    code = details.get("code")
    if not isinstance(code, int):
        return protocol_error(message, INVALID_PARAMS if error["code"] == InvalidArgs.code else INTERNAL_ERROR)
    if code == NOT_FOUND and is_modern(ctx):
        code = INVALID_PARAMS
    return protocol_error(details.get("message") or message, code, details.get("data"))


def is_valid_result(method: str, version: str, result: dict[str, Any]) -> bool:
    """Whether this version of the protocol allows such a result of a method."""
    from mcp_types.methods import validate_server_result
    from pydantic import ValidationError

    try:
        validate_server_result(
            method, version, {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} | result
        )
    except ValidationError:
        return False
    return True
