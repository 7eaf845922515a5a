"""The way in for MCP clients: key and body are checked here, the protocol is spoken in `app/mcp`."""

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

MOST_SESSIONS = 256
"""MCP sessions of one key; a client has one."""
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
            receive = _again(body, receive)
        _check_sessions(message, services, key)
        with _room(scope, message, services, key):
            answer = ResponseGuard(services, key, receive, send)
            await services.mcp(scope, answer.receive, answer.send)
            await answer.finish()


def _names(scope: ASGIScope) -> str | None:
    names = QueryParams(scope["query_string"]).get("names") if scope["query_string"] else None
    if names is not None and names not in NAMES:
        raise Problem(422, "InvalidRequest", f"names: one of {', '.join(NAMES)} is needed.")
    return names


def _check_sessions(message: Any, services: Services, key: Key) -> None:
    """One key does not take all the sessions there are."""
    is_hello = isinstance(message, dict) and message.get("method") == "initialize"
    if is_hello and services.mcp.sessions_of(key) >= MOST_SESSIONS:
        sentence = f"This key has {MOST_SESSIONS} MCP sessions open; end one first."
        raise Problem(429, "TooManySessions", sentence, {"Retry-After": "60"})


def _room(scope: ASGIScope, message: Any, services: Services, key: Key) -> AbstractContextManager[object]:
    """What is a stream by itself takes the room of one: what the server has to say, in the way of either era."""
    is_stream = scope["method"] == "GET" or (isinstance(message, dict) and message.get("method") == LISTEN)
    return services.stream_slots.slot(key) if is_stream else nullcontext()


class ResponseGuard:
    """An answer under way. When its key is revoked meanwhile, both sides hear that the other one has gone."""

    def __init__(self, services: Services, key: Key, receive: Receive, send: Send) -> None:
        self._use = services
        self._key = key
        self._receive = receive
        self._send = send
        self._is_revoked = asyncio.Event()
        self._is_open = False

    async def send(self, message: Message) -> None:
        if self._is_revoked.is_set():
            return
        if self._is_open and not self._use.keyring.has(self._key.id):
            self._is_revoked.set()
            return
        self._is_open = message["type"] == "http.response.start" or message.get("more_body", False)
        await self._send(message)

    async def receive(self) -> Message:
        coming, revoked = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._is_revoked.wait())
        try:
            await asyncio.wait({coming, revoked}, return_when=asyncio.FIRST_COMPLETED)
            return coming.result() if coming.done() else {"type": "http.disconnect"}
        finally:
            coming.cancel()
            revoked.cancel()

    async def finish(self) -> None:
        """What was cut short still ends as HTTP has it."""
        if self._is_open:
            self._is_open = False
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


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
