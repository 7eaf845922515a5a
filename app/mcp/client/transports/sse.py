"""The SSE transport of 2024-11-05: one long event stream from the server, which names the URL to POST to."""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from app.core.util.json_codec import Raw, dumps
from app.core.util.urls import ParsedUrl
from app.mcp.client.interfaces import AuthRevoked, ConnectionLost, JsonRpcError, Log
from app.mcp.client.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, JsonRpcPeer, Transport
from app.mcp.client.transports.http import HttpEndpoint, Unauthorized, Unreachable
from app.mcp.client.transports.sse_parser import SseParser

if TYPE_CHECKING:
    from aiohttp import ClientResponse

log = logging.getLogger(__name__)

JSON, STREAM = "application/json", "text/event-stream"
CLOSED = "The server closed its event stream."


class SseTransport(Transport):
    """The transport to an HTTP endpoint with an event stream."""

    def __init__(self, endpoint: HttpEndpoint, peer: JsonRpcPeer, server_log: Log) -> None:
        self._endpoint = endpoint
        self._peer = peer
        self._log = server_log
        self._version: str | None = None
        self._is_started = False
        self._post_url: asyncio.Future[ParsedUrl] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        """Open the stream and wait for the POST URL. Raises `ConnectionLost`, `JsonRpcError`, `NeedsAuth`."""
        response = await self._endpoint.open("GET", {"Accept": STREAM})
        if response.status != 200 or response.content_type != STREAM:
            response.release()
            raise JsonRpcError(
                INVALID_REQUEST, f"{self._endpoint.host} opens no event stream (HTTP {response.status})."
            )
        self._reading = asyncio.create_task(self._read(response))
        try:
            await asyncio.shield(self._post_url)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])

    def set_protocol_version(self, version: str | None) -> None:
        self._version = version

    def start(self) -> None:
        self._is_started = True

    async def send(self, message: Raw) -> None:
        headers = {"Content-Type": JSON, "Accept": f"{JSON}, {STREAM}"}
        if self._version is not None:
            headers["MCP-Protocol-Version"] = self._version
        target = self._post_url.result().target
        try:
            response = await self._endpoint.open("POST", headers, body=dumps(message), target=target)
        except Unreachable as error:
            self._peer.close_with(str(error))
            raise
        except Unauthorized as refusal:
            if not self._is_started:
                raise
            if refusal.status != 401:
                raise JsonRpcError(INVALID_REQUEST, str(refusal)) from None
            self._peer.close_with(str(refusal))
            raise AuthRevoked(str(refusal)) from None
        response.release()
        if response.status >= 300:
            what = message.get("method", "an answer")
            code = INTERNAL_ERROR if response.status >= 500 else INVALID_REQUEST
            raise JsonRpcError(code, f"The server answered {what} with HTTP {response.status}.")

    async def _read(self, response: "ClientResponse") -> None:
        from aiohttp import ClientError

        events = SseParser(lambda: self._log.write("The server sent an event that is too large; it was dropped.\n"))
        try:
            with suppress(ClientError, OSError):
                async for chunk in response.content.iter_any():
                    for event in events.feed(chunk):
                        if event.name == "message":
                            self._peer.receive(event.data)
                        elif event.name == "endpoint" and not self._post_url.done():
                            target = event.data.decode("utf-8", "replace").strip()
                            self._post_url.set_result(self._endpoint.resolve(target))
        except JsonRpcError as error:
            self._fail(error)
        except Exception:
            log.exception("the event stream of an MCP server could not be read")
        finally:
            response.close()
            self._fail(ConnectionLost(CLOSED))
            self._peer.close_with(CLOSED)

    def _fail(self, error: Exception) -> None:
        if not self._post_url.done():
            self._post_url.set_exception(error)
