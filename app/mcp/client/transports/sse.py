"""Streams: the oldest way over HTTP. One long stream brings what the server says, and names where to post to."""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from app.core.util.json_codec import Raw, dumps
from app.core.util.urls import ParsedUrl
from app.mcp.client.interfaces import AuthRevoked, ConnectionLost, JsonRpcError, Log
from app.mcp.client.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, JsonRpcPeer
from app.mcp.client.transports.http import HttpEndpoint, Unauthorized, Unreachable
from app.mcp.client.transports.sse_parser import SseParser

if TYPE_CHECKING:
    from aiohttp import ClientResponse

log = logging.getLogger(__name__)

JSON, STREAM = "application/json", "text/event-stream"
ENDED = "The server closed its stream of events."


class SseTransport:
    """The `Wire` to a site of the oldest kind."""

    def __init__(self, site: HttpEndpoint, peer: JsonRpcPeer, journal: Log) -> None:
        self._site = site
        self._peer = peer
        self._log = journal
        self._version: str | None = None
        self._is_open = False
        self._where: asyncio.Future[ParsedUrl] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        """Open the stream, and hear where to post to. Raises `ConnectionLost`, `JsonRpcError`, `NeedsAuth`."""
        response = await self._site.open("GET", {"Accept": STREAM})
        if response.status != 200 or response.content_type != STREAM:
            response.release()
            raise JsonRpcError(
                INVALID_REQUEST, f"{self._site.host} opens no stream of events (HTTP {response.status})."
            )
        self._reading = asyncio.create_task(self._read(response))
        try:
            await asyncio.shield(self._where)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])

    def speak(self, version: str | None) -> None:
        self._version = version

    def begin(self) -> None:
        self._is_open = True

    def learn(self, listed: Any) -> None:
        """Nothing is repeated beside a message."""

    def drop(self, number: int) -> bool:
        return False

    async def send(self, message: Raw) -> None:
        headers = {"Content-Type": JSON, "Accept": f"{JSON}, {STREAM}"}
        if self._version is not None:
            headers["MCP-Protocol-Version"] = self._version
        try:
            response = await self._site.open("POST", headers, body=dumps(message), target=self._where.result().target)
        except Unreachable as error:
            self._peer.lose(str(error))
            raise
        except Unauthorized as no:
            if not self._is_open:
                raise
            if no.status != 401:
                raise JsonRpcError(INVALID_REQUEST, str(no)) from None
            self._peer.lose(str(no))
            raise AuthRevoked(str(no)) from None
        response.release()
        if response.status >= 300:
            what = message.get("method", "an answer")
            code = INTERNAL_ERROR if response.status >= 500 else INVALID_REQUEST
            raise JsonRpcError(code, f"The server answered {what} with HTTP {response.status}.")

    async def _read(self, response: "ClientResponse") -> None:
        from aiohttp import ClientError

        events = SseParser(lambda: self._log.write("The server sent an event that is too large; it was left out.\n"))
        try:
            with suppress(ClientError, OSError):
                async for chunk in response.content.iter_any():
                    for event in events.feed(chunk):
                        self._take(event.name, event.data)
        except JsonRpcError as error:
            self._fail(error)
        except Exception:
            log.exception("the stream of an MCP server could not be read")
        finally:
            response.close()
            self._fail(ConnectionLost(ENDED))
            self._peer.lose(ENDED)

    def _take(self, name: str, data: bytes) -> None:
        if name == "endpoint" and not self._where.done():
            self._where.set_result(self._site.within(data.decode("utf-8", "replace").strip()))
        elif name == "message":
            self._peer.hear(data)

    def _fail(self, error: Exception) -> None:
        if not self._where.done():
            self._where.set_exception(error)
