"""The ASGI application: FastAPI with a fast path for calls and runs, and the checks every request passes.

FastAPI's layers (error pages, exit stacks, routing) cost a good part of a call's CPU. So `POST /v1/calls` and
`POST /v1/run/{name}` go to their endpoints directly, with the same checks and the same responses to errors.

The access log has one line for each request when it has been answered (a stream: when it ends), with the calls it was
about. It has the path without the query, which may hold a ticket.
"""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.api.auth import HostGuard
from app.api.http.body import BodyLimit
from app.api.http.problems import Problem, problem_of
from app.core.calls import CALLS_IN_SCOPE

access_log = logging.getLogger("app.access")

MAX_LOGGED_PATH = 512
_UNSAFE = re.compile(r"[^!-~]")
_CALL = re.compile(r"/v1/calls/(call_[0-9a-f]+)(?:/|$)")

CALL_PATH = "/v1/calls"
RUN_PATH = "/v1/run/"
CORS: dict[str, Any] = {
    "allow_methods": ("GET", "POST", "PUT", "PATCH", "DELETE"),
    "allow_headers": (
        *("Authorization", "Idempotency-Key", "Toolcrib-Session", "Last-Event-ID", "traceparent", "tracestate"),
        *("Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Session-Id"),
        *("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range", "Range"),
    ),
    "expose_headers": (
        *("Location", "Toolcrib-Output-Total", "Toolcrib-Output-Dropped", "Retry-After", "traceparent"),
        *("Mcp-Session-Id", "Toolcrib-Call", "ETag", "Content-Range", "Accept-Ranges", "Content-Disposition"),
    ),
    "allow_private_network": True,  # the operator listed the origins, wherever their pages are served from
}
"""What pages of the listed origins may send and read. Never credentials: a page sends its key itself."""

Endpoint = Callable[[Scope, Receive, Mapping[str, str]], Awaitable[Response]]


class FastPathApp(FastAPI):
    """FastAPI with a fast path for calls and runs. `prefix` is the path under which a proxy serves it."""

    def __init__(
        self,
        create_call: Endpoint,
        create_run: Endpoint,
        guard: HostGuard,
        limit: BodyLimit,
        *,
        origins: Collection[str] = (),
        has_access_log: bool = False,
        prefix: str = "",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._create_call = create_call
        self._create_run = create_run
        self._guard = guard
        self._limit = limit
        self._cors = CORSMiddleware(self._handle, origins, **CORS) if origins else None
        self._has_access_log = has_access_log
        self._prefix = prefix
        self._call_path = prefix + CALL_PATH
        self._run_path = prefix + RUN_PATH

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
        elif self._has_access_log and access_log.isEnabledFor(logging.INFO):
            await self._log_and_check(scope, receive, send)
        else:
            await self._check(scope, receive, send)

    async def _log_and_check(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        status: int | None = None
        size = 0
        scope[CALLS_IN_SCOPE] = []

        async def counting_send(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            elif message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._check(scope, receive, counting_send)
        except Exception:
            status = status or 500  # which uvicorn sends when the application sent nothing
            raise
        finally:
            _log_access(scope, status, size, time.monotonic() - started)

    async def _check(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._prefix:
            _apply_root_path(self._prefix, scope)
        if problem := self._guard.problem(scope):
            await problem.response(self.state.redactor)(scope, receive, send)
        elif self._cors is not None and b"origin" in dict(scope["headers"]):
            await self._cors(scope, receive, send)
        else:
            await self._handle(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            receive = self._limit.check(scope, receive)
        except Problem as problem:
            await problem.response(self.state.redactor)(scope, receive, send)
            return
        endpoint = self._fast_endpoint(scope["path"]) if scope["method"] == "POST" else None
        if endpoint is None:
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        # The first of a repeated header wins, as it does on every other route.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        try:
            response = await endpoint(scope, receive, headers)
        except Exception as error:  # noqa: BLE001 - every error becomes a problem+json response
            response = problem_of(error).response(self.state.redactor)
        await response(scope, receive, send)

    def _fast_endpoint(self, path: str) -> Endpoint | None:
        if path == self._call_path:
            return self._create_call
        if path.startswith(self._run_path) and "/" not in path[len(self._run_path) :] and path != self._run_path:
            return self._create_run
        return None


def _apply_root_path(prefix: str, scope: Scope) -> None:
    """Make the path what clients see, whether the proxy forwards the prefix or strips it."""
    scope["root_path"] = prefix
    if not f"{scope['path']}/".startswith(f"{prefix}/"):
        scope["path"] = prefix + scope["path"]
        scope["raw_path"] = prefix.encode() + scope["raw_path"]


def _log_access(scope: Scope, status: int | None, size: int, seconds: float) -> None:
    # The path as it was sent, with what could break a line or colour a terminal escaped.
    raw: bytes | None = scope.get("raw_path")
    path = quote(scope["path"]) if raw is None else raw.decode("latin-1")
    if len(path) > MAX_LOGGED_PATH:
        path = path[:MAX_LOGGED_PATH] + "..."
    path = _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", path)
    calls: list[str] = scope[CALLS_IN_SCOPE]
    if not calls and (call_in_path := _CALL.match(path)):
        calls = [call_in_path[1]]
    method, ms = scope["method"], round(seconds * 1000, 1)
    client = scope["client"][0] if scope.get("client") else None
    facts = {"method": method, "path": path, "status": status, "ms": ms, "bytes": size, "client": client}
    line = f"{client or '-'} {method} {path} {status or '-'} {size} B {ms} ms"
    extra = {"call": calls[0] if len(calls) == 1 else calls or None, "facts": facts}
    # Made by hand, because finding the caller's frame costs more than the rest of the line.
    record = access_log.makeRecord(access_log.name, logging.INFO, __file__, 0, line, (), None, extra=extra)
    access_log.handle(record)
