"""The streamable HTTP transport: one POST for each message, in both protocol generations.

Each request has its own POST and task, so one that fails does not affect the others. Up to 2025-11-25 there may be a
session and a stream for messages that belong to no request; in 2026-07-28 closing the stream cancels the request.
"""

import asyncio
import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from app.core.util.json_codec import Raw, dumps
from app.mcp.client.interfaces import MODERN, AuthRevoked, ConnectionLost, JsonRpcError, Log, NeedsAuth, RequestNotSent
from app.mcp.client.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    JsonRpcPeer,
    Transport,
    parse_json,
    to_error,
)
from app.mcp.client.transports.header_params import HeaderParams
from app.mcp.client.transports.http import HttpEndpoint, Unauthorized, Unreachable, read_all
from app.mcp.client.transports.sse_parser import SseParser

if TYPE_CHECKING:
    from aiohttp import ClientResponse

log = logging.getLogger(__name__)

JSON, STREAM = "application/json", "text/event-stream"
SESSION_HEADER = "Mcp-Session-Id"
SESSION_ID = re.compile(r"[\x21-\x7e]{1,4096}")
NO_SESSION = re.compile("session|not initialized", re.IGNORECASE)
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
MAX_RESUMES = 5
PAUSE_SECONDS, MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS = 1.0, 30.0, 0.01
STABLE_SECONDS = 10.0
"""After a stream that lasted this long the pause before the next one is short again."""
DELETE_SECONDS = 2.0
STREAM_END_SECONDS = 1.0
"""How long the end of a stream is waited for after its answer, so that the connection can be reused."""
MAX_EXCERPT = 200


class SessionLost(RequestNotSent):
    """The server does not know the session any more, and has not executed the request."""


class StreamableHttpTransport(Transport):
    """The transport to an HTTP endpoint."""

    def __init__(self, endpoint: HttpEndpoint, peer: JsonRpcPeer, server_log: Log) -> None:
        self._endpoint = endpoint
        self._peer = peer
        self._log = server_log
        self._version: str | None = None
        self._session: str | None = None
        self._is_started = False
        self._is_lost = False
        self._header_params = HeaderParams()
        self._exchanges: dict[int, asyncio.Task[None]] = {}
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._exchanges.values(), *([self._listening] if self._listening else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._session is not None and not self._is_lost:
            with suppress(TimeoutError, ConnectionLost, NeedsAuth, JsonRpcError):
                async with asyncio.timeout(DELETE_SECONDS):
                    (await self._endpoint.open("DELETE", self._headers())).release()

    @property
    def _is_modern(self) -> bool:
        return self._version is not None and self._version >= MODERN

    def set_protocol_version(self, version: str | None) -> None:
        self._version = version

    def start(self) -> None:
        self._is_started = True
        if self._session is not None and not self._is_modern:
            self._listening = asyncio.create_task(self._listen())

    def set_tools(self, tools: Any) -> None:
        self._header_params.set_tools(tools)

    async def send(self, message: Raw) -> None:
        number = message.get("id") if "method" in message else None
        if number is not None:
            task = asyncio.create_task(self._exchange(message, number))
            self._exchanges[number] = task
            task.add_done_callback(lambda _: self._exchanges.pop(number, None))
        elif not self._is_modern:  # 2026-07-28 has no notifications and answers to the server
            await self._send_without_answer(message)

    def discard(self, number: int) -> bool:
        if (task := self._exchanges.get(number)) is not None:
            task.cancel()
        return self._is_modern

    async def _exchange(self, message: Raw, number: int) -> None:
        """Send one request and receive its answer; every error becomes the request's error."""
        from aiohttp import ClientError

        error: Exception
        try:
            await self._post(message, number)
            error = ConnectionLost(f"The server ended its response to {message['method']} without an answer.")
        except Unauthorized as refusal:
            error = self._auth_error(refusal) if self._is_started else refusal
        except (ConnectionLost, JsonRpcError) as failure:
            error = failure
        except (ClientError, OSError) as failure:
            error = self._endpoint.broken_connection(failure)
        except Exception:
            log.exception("a request to an MCP server failed")
            error = ConnectionLost("The request failed; the service's log has the details.")
        self._peer.fail(number, error)
        if isinstance(error, Unreachable | SessionLost | AuthRevoked):
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        self._is_lost = True
        self._peer.close_with(str(error))

    def _auth_error(self, refusal: Unauthorized) -> Exception:
        """401 ends the connection; 403 concerns only this request."""
        return AuthRevoked(str(refusal)) if refusal.status == 401 else JsonRpcError(INVALID_REQUEST, str(refusal))

    async def _post(self, message: Raw, number: int) -> None:
        method = message["method"]
        response = await self._endpoint.open("POST", self._headers(message), body=dumps(message))
        try:
            if response.status >= 400:
                raise await self._read_error(response, method)
            if response.status in (202, 204):
                raise JsonRpcError(INVALID_REQUEST, f"The server did not answer {method} (HTTP {response.status}).")
            if method == "initialize":
                self._set_session(response)
            if response.content_type == JSON:
                self._peer.receive(await read_all(response, MAX_ANSWER_BYTES), number)
                if self._peer.is_pending(number):
                    raise JsonRpcError(INTERNAL_ERROR, f"The response to {method} does not contain its answer.")
            elif response.content_type == STREAM:
                response = await self._follow(response, number, method)
            else:
                kind = response.content_type[:80]
                raise JsonRpcError(INVALID_REQUEST, f"The server answered {method} with {kind} instead of JSON.")
        finally:
            response.release()

    async def _send_without_answer(self, message: Raw) -> None:
        try:
            response = await self._endpoint.open("POST", self._headers(message), body=dumps(message))
        except Unreachable as error:
            self._lose(error)
            raise
        except NeedsAuth as error:
            raise ConnectionLost(str(error)) from None
        try:
            if response.status >= 400:
                failure = await self._read_error(response, message.get("method", "an answer"))
                if isinstance(failure, SessionLost):
                    self._lose(failure)
                    raise failure
                self._log.write(f"{failure}\n")
        finally:
            response.release()

    async def _follow(self, response: "ClientResponse", number: int, method: str) -> "ClientResponse":
        """Read a stream until the answer has arrived; a broken one is resumed where the server allows that."""
        events = self._new_parser()
        while True:
            await self._read_stream(response, events, number)
            if not self._peer.is_pending(number):
                return response
            response.release()
            if self._is_modern or events.last_id is None:
                raise ConnectionLost(f"The stream with the answer to {method} broke off.")
            response = await self._resume(events, method)

    async def _read_stream(self, response: "ClientResponse", events: SseParser, number: int | None) -> None:
        """Until the stream ends, or shortly after the answer."""
        from aiohttp import ClientError

        events.restart()
        loop = asyncio.get_running_loop()
        with suppress(ClientError, OSError):  # also a TimeoutError
            async with asyncio.timeout(None) as timeout:
                async for chunk in response.content.iter_any():
                    for event in events.feed(chunk):
                        if event.name == "message":
                            self._peer.receive(event.data, number)
                    if number is not None and not self._peer.is_pending(number) and timeout.when() is None:
                        timeout.reschedule(loop.time() + STREAM_END_SECONDS)

    async def _resume(self, events: SseParser, method: str) -> "ClientResponse":
        for attempt in range(MAX_RESUMES):
            await asyncio.sleep(_pause(events, PAUSE_SECONDS / 2 * 2**attempt))
            try:
                response = await self._endpoint.open("GET", self._headers() | _last_event_id(events))
            except ConnectionLost as error:
                log.debug("a stream could not be resumed: %s", error)
                continue
            if response.status == 200 and response.content_type == STREAM:
                return response
            try:
                failure = await self._read_error(response, method)
            finally:
                response.release()
            if isinstance(failure, SessionLost):
                raise failure
            if response.status < 500:
                break
        raise ConnectionLost(f"The stream with the answer to {method} broke off and cannot be resumed.")

    async def _listen(self) -> None:
        """Read the stream of messages that belong to no request. A server may have none."""
        events, pause, loop = self._new_parser(), PAUSE_SECONDS, asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                if not await self._listen_once(events):
                    return
            except Unauthorized as refusal:
                if refusal.status == 401:
                    self._lose(refusal)
                return
            except (Unreachable, SessionLost) as error:
                self._lose(error)
                return
            except (ConnectionLost, JsonRpcError) as error:
                self._log.write(f"The server's event stream failed: {error}\n")
            pause = PAUSE_SECONDS if loop.time() - started > STABLE_SECONDS else min(pause * 2, MAX_PAUSE_SECONDS)
            await asyncio.sleep(_pause(events, pause / 2))

    async def _listen_once(self, events: SseParser) -> bool:
        """Whether to try again."""
        response = await self._endpoint.open("GET", self._headers() | _last_event_id(events))
        try:
            if response.status == 200 and response.content_type == STREAM:
                await self._read_stream(response, events, None)
                return True
            failure = await self._read_error(response, "GET")
            if isinstance(failure, SessionLost):
                raise failure
            return response.status >= 500
        finally:
            response.release()

    async def _read_error(self, response: "ClientResponse", method: str) -> Exception:
        """The error that a status without success stands for."""
        from aiohttp import ClientError

        body = b""
        with suppress(ClientError, OSError, JsonRpcError):
            body = await read_all(response, MAX_ERROR_BYTES)
        error = _error_in(body) if response.content_type == JSON else None
        if self._session is not None and not self._is_modern and _is_session_lost(response.status, error):
            return SessionLost("The server does not know the session any more.")
        if error is not None:
            return error
        excerpt = ""
        if response.content_type == "text/plain":
            excerpt = body.decode("utf-8", "replace")[:MAX_EXCERPT].strip().rstrip(".")
        message = f"The server answered {method} with HTTP {response.status}{f': {excerpt}' if excerpt else ''}."
        code = METHOD_NOT_FOUND if response.status == 404 else INVALID_REQUEST
        return JsonRpcError(code if response.status < 500 else INTERNAL_ERROR, message, {"status": response.status})

    def _set_session(self, response: "ClientResponse") -> None:
        session = response.headers.get(SESSION_HEADER)
        if session is not None and not SESSION_ID.fullmatch(session):
            raise JsonRpcError(INVALID_REQUEST, f"The server's {SESSION_HEADER} has invalid characters.")
        self._session = session

    def _headers(self, message: Raw | None = None) -> dict[str, str]:
        headers = {"Accept": f"{JSON}, {STREAM}" if message is not None else STREAM}
        if message is not None:
            headers["Content-Type"] = JSON
        if self._version is not None:
            headers["MCP-Protocol-Version"] = self._version
        if self._is_modern:
            return (
                headers if message is None else headers | self._header_params.of(message["method"], message["params"])
            )
        if self._session is not None:
            headers[SESSION_HEADER] = self._session
        return headers

    def _new_parser(self) -> SseParser:
        return SseParser(lambda: self._log.write("The server sent an event that is too large; it was dropped.\n"))


def _last_event_id(events: SseParser) -> dict[str, str]:
    return {"Last-Event-ID": events.last_id} if events.last_id else {}


def _pause(events: SseParser, default: float) -> float:
    """The server's `retry`, or the default, within bounds."""
    return max(MIN_PAUSE_SECONDS, min(default if events.retry is None else events.retry, MAX_PAUSE_SECONDS))


def _error_in(body: bytes) -> JsonRpcError | None:
    try:
        message = parse_json(body)
    except (ValueError, RecursionError):
        return None
    return to_error(message["error"]) if isinstance(message, dict) and isinstance(message.get("error"), dict) else None


def _is_session_lost(status: int, error: JsonRpcError | None) -> bool:
    """Many servers answer 400 with a message instead of 404."""
    return status == 404 or (status == 400 and error is not None and bool(NO_SESSION.search(error.message)))
