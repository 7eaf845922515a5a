"""`/mcp` for MCP clients: checks key and body, then calls the MCP server in `app/mcp`."""

import asyncio
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.types import Message, Receive, Send
from starlette.types import Scope as ASGIScope

from app.api.auth import Services, require_key, services_of
from app.api.http import body as http_body
from app.api.http.problems import Problem
from app.core.principals import Key, Scope
from app.mcp.server.app import LISTEN
from app.mcp.server.request_context import KEY_IN_SCOPE, MESSAGE_IN_SCOPE, NAMES_IN_SCOPE

MAX_SESSIONS = 256
"""MCP sessions per key; each client has one."""
NAMES = ("plain", "prefixed")


class McpEndpoint:
    """`/mcp`, as an ASGI endpoint: all methods, exact path."""

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        services = services_of(scope)
        headers = Headers(scope=scope)
        key = scope[KEY_IN_SCOPE] = require_key(headers, services, Scope.CALLS_RUN)
        scope[NAMES_IN_SCOPE] = _names(scope)
        message: Any = None
        if scope["method"] == "POST":
            body = await http_body.read(receive)
            message = scope[MESSAGE_IN_SCOPE] = http_body.parse(body, headers.get("content-type", http_body.JSON))
            receive = _replay(body, receive)
        _check_sessions(message, services, key)
        with _stream_slot(scope, message, services, key):
            response = ResponseGuard(services, key, receive, send)
            await services.mcp(scope, response.receive, response.send)
            await response.finish()


def _names(scope: ASGIScope) -> str | None:
    names = QueryParams(scope["query_string"]).get("names") if scope["query_string"] else None
    if names is not None and names not in NAMES:
        raise Problem(422, "InvalidRequest", f"names: one of {', '.join(NAMES)} is needed.")
    return names


def _check_sessions(message: Any, services: Services, key: Key) -> None:
    """Limits the sessions of one key."""
    is_initialize = isinstance(message, dict) and message.get("method") == "initialize"
    if is_initialize and services.mcp.sessions_of(key) >= MAX_SESSIONS:
        message_text = f"This key has {MAX_SESSIONS} MCP sessions open; end one first."
        raise Problem(429, "TooManySessions", message_text, {"Retry-After": "60"})


def _stream_slot(scope: ASGIScope, message: Any, services: Services, key: Key) -> AbstractContextManager[object]:
    """A stream slot for requests that open an event stream of their own: GET, or `subscriptions/listen`."""
    is_stream = scope["method"] == "GET" or (isinstance(message, dict) and message.get("method") == LISTEN)
    return services.stream_slots.slot(key) if is_stream else nullcontext()


class ResponseGuard:
    """A response in progress. When its key is revoked, both sides see a disconnect."""

    def __init__(self, services: Services, key: Key, receive: Receive, send: Send) -> None:
        self._services = services
        self._key = key
        self._receive = receive
        self._send = send
        self._is_revoked = asyncio.Event()
        self._is_open = False

    async def send(self, message: Message) -> None:
        if self._is_revoked.is_set():
            return
        if self._is_open and not self._services.keyring.has(self._key.id):
            self._is_revoked.set()
            return
        self._is_open = message["type"] == "http.response.start" or message.get("more_body", False)
        await self._send(message)

    async def receive(self) -> Message:
        message, revoked = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._is_revoked.wait())
        try:
            await asyncio.wait({message, revoked}, return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else {"type": "http.disconnect"}
        finally:
            message.cancel()
            revoked.cancel()

    async def finish(self) -> None:
        """End a response that was cut off."""
        if self._is_open:
            self._is_open = False
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _replay(body: bytes, receive: Receive) -> Receive:
    """Receives the body again, then what follows it."""
    is_replayed = False

    async def replaying_receive() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replaying_receive
