"""Callers: who comes to the door with a request, for which session, and what they call the tools of servers."""

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

    Ctx: TypeAlias = ServerRequestContext[Any, Any]

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
    """`session` is None where the key sees none of that name. `is_plain`: tools of servers go by their own names."""

    key: Key
    named: str
    session: Session | None
    is_plain: bool

    @property
    def no_session(self) -> str:
        return f"There is no session {self.named}; the header {SESSION_HEADER} names one, or none."

    @property
    def whole_session(self) -> Session:
        """The session; raises an error of the protocol when there is none."""
        if self.session is None:
            raise refusal(self.no_session)
        return self.session


current_caller: ContextVar[RequestContext | None] = ContextVar("current_caller", default=None)
"""Who made the request that is being answered, for what the SDK asks without saying about whom."""


def caller_of(ctx: "Ctx") -> RequestContext:
    assert ctx.request is not None, "the transport is HTTP"
    caller: RequestContext = ctx.request.scope[CALLER_IN_SCOPE]
    return caller


def named_in(scope: "Scope") -> str:
    """The session a request is about."""
    return header_of(scope, SESSION_HEADER.lower().encode()) or DEFAULT_SESSION


def header_of(scope: "Scope", name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def is_modern(ctx: "Ctx") -> bool:
    """Whether this client speaks the protocol without handshake and sessions."""
    return ctx.protocol_version >= MODERN


def trace_of(ctx: "Ctx") -> TraceContext | None:
    """The trace a request says it belongs to, in its headers or in what goes along with its parameters."""
    assert ctx.request is not None, "the transport is HTTP"
    meta = meta_of(ctx)
    traceparent = ctx.request.headers.get("traceparent") or _text(meta.get("traceparent"))
    if traceparent is None:
        return None
    return TraceContext(traceparent, ctx.request.headers.get("tracestate") or _text(meta.get("tracestate")))


def meta_of(ctx: "Ctx") -> dict[str, Any]:
    """What goes along with a request's parameters."""
    meta = (ctx.params or {}).get("_meta")
    return meta if isinstance(meta, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def refusal(message: str, code: int = INVALID_PARAMS, data: Any = None) -> Exception:
    """A request that gets an error instead of a result."""
    from mcp import MCPError

    return MCPError(code, message, data)


def missing(ctx: "Ctx", uri: str) -> Exception:
    """A resource that is not there. From 2026 on that has no code of its own."""
    return refusal(f"Resource not found: {uri}", INVALID_PARAMS if is_modern(ctx) else NOT_FOUND, {"uri": uri})


def failure(error: CallError, ctx: "Ctx") -> Exception:
    """What went wrong on the way to a server. What that one said keeps its code."""
    return refused(error.as_dict(), ctx)


def refused(error: dict[str, Any], ctx: "Ctx") -> Exception:
    """The same, as it is kept with a call."""
    message, details = error["message"], error.get("details") or {}
    code = details.get("code")
    if not isinstance(code, int):
        return refusal(message, INVALID_PARAMS if error["code"] == InvalidArgs.code else INTERNAL_ERROR)
    if code == NOT_FOUND and is_modern(ctx):
        code = INVALID_PARAMS
    return refusal(details.get("message") or message, code, details.get("data"))


def is_sayable(method: str, version: str, result: dict[str, Any]) -> bool:
    """Whether this could be the result of a method in this version of the protocol."""
    from mcp_types.methods import validate_server_result
    from pydantic import ValidationError

    try:
        validate_server_result(
            method, version, {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} | result
        )
    except ValidationError:
        return False
    return True
