"""The express lane: the hot routes reached without the framework's layers.

`POST /v1/calls` and `POST /v1/run/{name}` are ordinary routes of the
application. But the layers every other request passes (error pages, exit
stacks, routing) cost a good part of a call's CPU, so a request for exactly one
of these goes to its endpoint directly, with the same checks and the same
answers to errors.
"""

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import HostGuard
from app.api.http.access_log import AccessLog
from app.api.http.body_limit import BodyLimit
from app.api.http.problems import Problem, problem_of

PATH = "/v1/calls"
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
    "allow_private_network": True,  # the list is the operator's word, wherever the listed pages come from
}
"""What pages of the listed origins may send and see. Never credentials: a page shows its key."""


class FastPathApp(FastAPI):
    """FastAPI with an express lane for calls and runs. `prefix` is the path a proxy serves it under."""

    def __init__(
        self,
        create_call: ASGIApp,
        create_run: ASGIApp,
        guard: HostGuard,
        limit: BodyLimit,
        *,
        origins: Collection[str] = (),
        access_log: AccessLog | None = None,
        prefix: str = "",
        **about: Any,
    ) -> None:
        super().__init__(**about)
        self._create_call = create_call
        self._create_run = create_run
        self._guard = guard
        self._limit = limit
        self._cors = CORSMiddleware(self._enter, origins, **CORS) if origins else None
        self._access_log = access_log
        self._prefix = prefix
        self._path = prefix + PATH
        self._run_path = prefix + RUN_PATH

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._access_log is not None and self._access_log.is_on:
            await self._access_log.follow(self._answer, scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self._prefix:
                _put_under(self._prefix, scope)
            if problem := self._guard.problem(scope):
                await problem.response(self.state.redactor)(scope, receive, send)
                return
            if self._cors is not None and b"origin" in dict(scope["headers"]):
                await self._cors(scope, receive, send)
                return
        await self._enter(scope, receive, send)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                receive = self._limit.check(scope, receive)
            except Problem as problem:
                await problem.response(self.state.redactor)(scope, receive, send)
                return
            if scope["method"] == "POST" and (endpoint := self._hot(scope["path"])) is not None:
                await self._express(endpoint, scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    def _hot(self, path: str) -> ASGIApp | None:
        """The endpoint of a route that has the lane."""
        if path == self._path:
            return self._create_call
        if path.startswith(self._run_path) and "/" not in path[len(self._run_path) :] and path != self._run_path:
            return self._create_run
        return None

    async def _express(self, endpoint: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        is_answered = False

        async def sending(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await endpoint(scope, receive, sending)
        except Exception as error:
            if is_answered:
                raise
            await problem_of(error).response(self.state.redactor)(scope, receive, send)


def _put_under(prefix: str, scope: Scope) -> None:
    """The path as the outside sees it, whether the proxy kept the prefix or took it away."""
    scope["root_path"] = prefix
    if not f"{scope['path']}/".startswith(f"{prefix}/"):
        scope["path"] = prefix + scope["path"]
        scope["raw_path"] = prefix.encode() + scope["raw_path"]
