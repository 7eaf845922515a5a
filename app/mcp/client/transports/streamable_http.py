"""Posts: a server that is spoken to with one HTTP request for each message (streamable HTTP), in both eras.

Each request of ours has a POST and a task of its own: one that fails is one call that fails. In the older era there
may be a session, and a stream for what belongs to no request; in the newer one who closes the stream cancels.
"""

import asyncio
import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from app.core.util.json_codec import Raw, dumps
from app.mcp.client.interfaces import MODERN, AuthRevoked, ConnectionLost, JsonRpcError, Log, NeedsAuth, RequestNotSent
from app.mcp.client.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, JsonRpcPeer, parsed, said
from app.mcp.client.transports.header_params import RepeatedArguments
from app.mcp.client.transports.http import HttpEndpoint, Unauthorized, Unreachable, broke, read_all
from app.mcp.client.transports.sse_parser import SseParser

if TYPE_CHECKING:
    from aiohttp import ClientResponse

log = logging.getLogger(__name__)

JSON, STREAM = "application/json", "text/event-stream"
SESSION_HEADER = "Mcp-Session-Id"
SESSION_ID = re.compile(r"[\x21-\x7e]{1,4096}")
NO_SESSION = re.compile("session|not initialized", re.IGNORECASE)
MOST_ANSWER = 64 * 1024 * 1024
MOST_REFUSAL = 64 * 1024
MOST_TRIES = 5
PAUSE, MOST_PAUSE, LEAST_PAUSE = 1.0, 30.0, 0.01
LASTS = 10.0
"""A stream that lived so many seconds was a good one: the next pause is a short one again."""
GOODBYE_SECONDS = 2.0
REST_SECONDS = 1.0
"""How long the end of a stream is waited for after its answer, so that the connection can be used again."""
EXCERPT = 200


class SessionLost(RequestNotSent):
    """The server does not know our session any more, and so did nothing."""


class StreamableHttpTransport:
    """The `Wire` to a site."""

    def __init__(self, site: HttpEndpoint, peer: JsonRpcPeer, journal: Log) -> None:
        self._site = site
        self._peer = peer
        self._log = journal
        self._version: str | None = None
        self._session: str | None = None
        self._is_open = False
        self._is_lost = False
        self._repeated = RepeatedArguments()
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
                async with asyncio.timeout(GOODBYE_SECONDS):
                    (await self._site.open("DELETE", self._headers())).release()

    @property
    def _is_modern(self) -> bool:
        return self._version is not None and self._version >= MODERN

    def speak(self, version: str | None) -> None:
        self._version = version

    def begin(self) -> None:
        self._is_open = True
        if self._session is not None and not self._is_modern:
            self._listening = asyncio.create_task(self._listen())

    def learn(self, listed: Any) -> None:
        self._repeated.learn(listed)

    async def send(self, message: Raw) -> None:
        number = message.get("id") if "method" in message else None
        if number is not None:
            task = asyncio.create_task(self._exchange(message, number))
            self._exchanges[number] = task
            task.add_done_callback(lambda _: self._exchanges.pop(number, None))
        elif not self._is_modern:  # the newer era has nothing to tell a server
            await self._deliver(message)

    def drop(self, number: int) -> bool:
        if (task := self._exchanges.get(number)) is not None:
            task.cancel()
        return self._is_modern

    async def _exchange(self, message: Raw, number: int) -> None:
        """One request, whatever comes of it."""
        from aiohttp import ClientError

        try:
            await self._post(message, number)
            error: Exception = ConnectionLost(
                f"The server ended its answer to {message['method']} before it was there."
            )
        except (Unreachable, SessionLost) as lost:
            error = lost
        except Unauthorized as no:
            error = self._outside(no) if self._is_open else no
        except (ConnectionLost, JsonRpcError) as no:
            error = no
        except (ClientError, OSError) as reason:
            error = ConnectionLost(f"The connection to {self._site.host} broke: {broke(reason)}.")
        except Exception:
            log.exception("a request to an MCP server could not be made")
            error = ConnectionLost("The request could not be made; the service's log has the details.")
        self._peer.fail(number, error)
        if isinstance(error, Unreachable | SessionLost | AuthRevoked):
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        self._is_lost = True
        self._peer.lose(str(error))

    def _outside(self, no: Unauthorized) -> Exception:
        """We were in, and are not any more; where it is only this request (403), only that fails."""
        return AuthRevoked(str(no)) if no.status == 401 else JsonRpcError(INVALID_REQUEST, str(no))

    async def _post(self, message: Raw, number: int) -> None:
        method = message["method"]
        response = await self._site.open("POST", self._headers(message), body=dumps(message))
        try:
            if response.status >= 400:
                raise await self._refusal(response, method)
            if response.status in (202, 204):
                raise JsonRpcError(
                    INVALID_REQUEST, f"The server takes {method} for no request (HTTP {response.status})."
                )
            if method == "initialize":
                self._take_session(response)
            if response.content_type == JSON:
                self._peer.hear(await read_all(response, MOST_ANSWER), number)
                if self._peer.is_waiting(number):
                    raise JsonRpcError(INTERNAL_ERROR, f"What the server answered to {method} is no answer to it.")
            elif response.content_type == STREAM:
                response = await self._follow(response, number, method)
            else:
                kind = response.content_type[:80]
                raise JsonRpcError(INVALID_REQUEST, f"The server answered {method} with {kind} instead of JSON.")
        finally:
            response.release()

    async def _deliver(self, message: Raw) -> None:
        """What has no answer."""
        try:
            response = await self._site.open("POST", self._headers(message), body=dumps(message))
        except Unreachable as error:
            self._lose(error)
            raise
        except NeedsAuth as error:
            raise ConnectionLost(str(error)) from None
        try:
            if response.status >= 400:
                no = await self._refusal(response, message.get("method", "an answer"))
                if isinstance(no, SessionLost):
                    self._lose(no)
                    raise no
                self._log.write(f"{no}\n")
        finally:
            response.release()

    async def _follow(self, response: "ClientResponse", number: int, method: str) -> "ClientResponse":
        """Hear a stream until the answer has come; one that breaks is taken up again where the server lets us."""
        events = SseParser(self._dropped)
        while True:
            await self._hear(response, events, number)
            if not self._peer.is_waiting(number):
                return response
            response.release()
            if self._is_modern or events.last_id is None:
                raise ConnectionLost(f"The stream with the answer to {method} broke off.")
            response = await self._resumed(events, method)

    async def _hear(self, response: "ClientResponse", events: SseParser, number: int | None) -> None:
        """Until the stream ends, or a moment longer than its answer."""
        from aiohttp import ClientError

        events.restart()
        loop = asyncio.get_running_loop()
        with suppress(ClientError, OSError):  # also a TimeoutError
            async with asyncio.timeout(None) as clock:
                async for chunk in response.content.iter_any():
                    for event in events.feed(chunk):
                        if event.name == "message":
                            self._peer.hear(event.data, number)
                    if number is not None and not self._peer.is_waiting(number) and clock.when() is None:
                        clock.reschedule(loop.time() + REST_SECONDS)

    async def _resumed(self, events: SseParser, method: str) -> "ClientResponse":
        pause = PAUSE / 2
        for tries in range(MOST_TRIES):
            await asyncio.sleep(_pause(events, pause * 2**tries))
            try:
                response = await self._site.open("GET", self._headers() | _since(events))
            except ConnectionLost as error:
                log.debug("a stream could not be taken up again: %s", error)
                continue
            if response.status == 200 and response.content_type == STREAM:
                return response
            try:
                no = await self._refusal(response, method)
            finally:
                response.release()
            if isinstance(no, SessionLost):
                raise no
            if response.status < 500:
                break
        raise ConnectionLost(f"The stream with the answer to {method} broke off, and cannot be taken up again.")

    async def _listen(self) -> None:
        """The stream for what belongs to no request. A server without one says so, and that is fine."""
        events, pause, loop = SseParser(self._dropped), PAUSE, asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                if not await self._listen_once(events):
                    return
            except Unauthorized as no:
                if no.status == 401:
                    self._lose(no)
                return
            except (Unreachable, SessionLost) as error:
                self._lose(error)
                return
            except (ConnectionLost, JsonRpcError) as error:
                self._log.write(f"The server's stream of news: {error}\n")
            pause = PAUSE if loop.time() - began > LASTS else min(pause * 2, MOST_PAUSE)
            await asyncio.sleep(_pause(events, pause / 2))

    async def _listen_once(self, events: SseParser) -> bool:
        """Whether it makes sense to try again."""
        response = await self._site.open("GET", self._headers() | _since(events))
        try:
            if response.status == 200 and response.content_type == STREAM:
                await self._hear(response, events, None)
                return True
            no = await self._refusal(response, "GET")
            if isinstance(no, SessionLost):
                raise no
            return response.status >= 500
        finally:
            response.release()

    async def _refusal(self, response: "ClientResponse", method: str) -> Exception:
        """What a status that is no success means."""
        from aiohttp import ClientError

        body = b""
        with suppress(ClientError, OSError, JsonRpcError):
            body = await read_all(response, MOST_REFUSAL)
        error = _error_in(body) if response.content_type == JSON else None
        if self._session is not None and not self._is_modern and _is_session_gone(response.status, error):
            return SessionLost("The server does not know our session any more.")
        if error is not None:
            return error
        words = ""
        if response.content_type == "text/plain":
            words = body.decode("utf-8", "replace")[:EXCERPT].strip().rstrip(".")
        sentence = f"The server answered {method} with HTTP {response.status}{f': {words}' if words else ''}."
        code = METHOD_NOT_FOUND if response.status == 404 else INVALID_REQUEST
        return JsonRpcError(code if response.status < 500 else INTERNAL_ERROR, sentence, {"status": response.status})

    def _take_session(self, response: "ClientResponse") -> None:
        session = response.headers.get(SESSION_HEADER)
        if session is not None and not SESSION_ID.fullmatch(session):
            raise JsonRpcError(INVALID_REQUEST, "The server's session id holds characters that it cannot.")
        self._session = session

    def _headers(self, message: Raw | None = None) -> dict[str, str]:
        headers = {"Accept": f"{JSON}, {STREAM}" if message is not None else STREAM}
        if message is not None:
            headers["Content-Type"] = JSON
        if self._version is not None:
            headers["MCP-Protocol-Version"] = self._version
        if self._is_modern:
            return headers if message is None else headers | self._repeated.of(message["method"], message["params"])
        if self._session is not None:
            headers[SESSION_HEADER] = self._session
        return headers

    def _dropped(self) -> None:
        self._log.write("The server sent an event that is too large; it was left out.\n")


def _since(events: SseParser) -> dict[str, str]:
    return {"Last-Event-ID": events.last_id} if events.last_id else {}


def _pause(events: SseParser, otherwise: float) -> float:
    """As long as the server says, or as we think best."""
    return max(LEAST_PAUSE, min(otherwise if events.retry is None else events.retry, MOST_PAUSE))


def _error_in(body: bytes) -> JsonRpcError | None:
    try:
        message = parsed(body)
    except (ValueError, RecursionError):
        return None
    return said(message["error"]) if isinstance(message, dict) and isinstance(message.get("error"), dict) else None


def _is_session_gone(status: int, error: JsonRpcError | None) -> bool:
    """Many servers say it with 400 instead of 404, and in words."""
    return status == 404 or (status == 400 and error is not None and bool(NO_SESSION.search(error.message)))
