"""HTTP connections to MCP servers: credentials, redirects and address checks. Nothing else here opens connections.

Servers of a principal may only be reached at checked addresses; shared servers are configured by the operator.
The HTTP client is imported when the first server is opened.
"""

import asyncio
import errno
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from app import __version__
from app.core.custom_tools import SecretHeader
from app.core.errors import CallError
from app.core.mcp_servers import BearerAuth, HttpServer
from app.core.util.headers import check_header
from app.core.util.urls import InvalidUrl, ParsedUrl, read_url
from app.mcp.client.interfaces import (
    CannotConnect,
    ConnectionLost,
    Credentials,
    JsonRpcError,
    NeedsAuth,
    RequestNotSent,
)
from app.mcp.client.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from aiohttp.abc import AbstractResolver

CONNECT_SECONDS = 15.0
KEEP_ALIVE_SECONDS = 4.0
"""Idle connections are closed before the server does it: most servers close after five seconds."""
MAX_REDIRECTS = 5
CHUNKED_BODY_BYTES = 256 * 1024
"""Larger bodies are sent in chunks."""
SAME_METHOD = frozenset({307, 308})
REDIRECTS = frozenset({301, 302, 303}) | SAME_METHOD
LOCAL_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})

Find = Callable[[str, int], Awaitable[Sequence[object]]]
"""The addresses of a host that may be connected to. Raises a `CallError` when there are none."""
HeaderOf = Callable[[str | None, SecretHeader, str], str]
"""An owner's secret as a header value for a host. Raises a `CallError` when the host may not get it."""


class Unreachable(RequestNotSent):
    """No connection could be made. With `is_final` a retry would fail in the same way."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class Unauthorized(NeedsAuth):
    """The server answered 401 or 403, and there are no other credentials."""

    def __init__(self, message: str, status: int, challenge: str | None) -> None:
        super().__init__(message, challenge)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpDeps:
    """What HTTP connections need of the service."""

    find: Find
    header: HeaderOf
    trust: Callable[[], ssl.SSLContext]
    credentials: Credentials


class HttpEndpoint:
    """One server's URL, its credentials and its HTTP session."""

    def __init__(self, server: HttpServer, owner: str | None, deps: HttpDeps, http: "ClientSession") -> None:
        self.url = read_url(server.url)
        self.host = self.url.host
        self._server = server
        self._owner = owner
        self._deps = deps
        self._http = http

    async def open(
        self, method: str, headers: Mapping[str, str], *, body: bytes | None = None, target: str | None = None
    ) -> "ClientResponse":
        """The head of a response, which the caller releases. Redirects within the origin are followed.

        Raises `Unreachable`, `NeedsAuth`, `ConnectionLost` when the connection broke, and `JsonRpcError`.
        """
        url = self.url if target is None else self.resolve(target)
        is_retry = False
        for _ in range(MAX_REDIRECTS):
            response = await self._send(method, url, headers, body)
            if response.status in (401, 403):
                response.release()
                challenge = response.headers.get("WWW-Authenticate")
                if is_retry or not await self._has_new_credentials(response.status, challenge):
                    raise Unauthorized(self._refusal(response.status, challenge), response.status, challenge)
                is_retry = True
            elif response.status in REDIRECTS:
                response.release()
                url = self.resolve(response.headers.get("Location", ""))
                if method != "GET" and response.status not in SAME_METHOD:
                    raise JsonRpcError(INVALID_REQUEST, f"{self.host} redirected {method} (HTTP {response.status}).")
            else:
                return response
        raise JsonRpcError(INVALID_REQUEST, f"{self.host} redirects in a loop.")

    def resolve(self, target: str) -> ParsedUrl:
        """A URL of this origin. Raises `JsonRpcError` for another origin."""
        try:
            url = read_url(urljoin(str(self.url), target))
        except ValueError:
            raise JsonRpcError(INVALID_REQUEST, f"{self.host} sent an invalid URL.") from None
        if url.origin != self.url.origin:
            path = url.target.partition("?")[0]
            raise JsonRpcError(
                INVALID_REQUEST,
                f"{self.host} redirects to {url.origin}{path[:200]}, another origin, which is not followed; if that "
                "is the right server, configure its URL.",
            )
        return url

    async def _has_new_credentials(self, status: int, challenge: str | None) -> bool:
        if isinstance(self._server.auth, BearerAuth):
            return False
        try:
            return await self._deps.credentials.handle_refusal(self._server, self._owner, status, challenge)
        except (CallError, CannotConnect) as error:
            raise Unreachable(str(error)) from None

    def _refusal(self, status: int, challenge: str | None) -> str:
        if status == 403 and "insufficient_scope" in (challenge or ""):
            return f"{self.host} requires more scopes for this; a person has to sign in to {self._server.name} again."
        return f"{self.host}: authorization failed (HTTP {status})."

    async def _send(
        self, method: str, url: ParsedUrl, headers: Mapping[str, str], body: bytes | None
    ) -> "ClientResponse":
        from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError
        from yarl import URL

        protocol_headers = {name.lower() for name in headers}
        own = {
            name: value for name, value in (await self._own_headers()).items() if name.lower() not in protocol_headers
        }
        data = BytesIO(body) if body is not None and len(body) >= CHUNKED_BODY_BYTES else body
        try:
            return await self._http.request(
                method, URL(str(url), encoded=True), headers={**own, **headers}, data=data, allow_redirects=False
            )
        except ConnectionTimeoutError:
            raise Unreachable(f"Connecting to {self.host} timed out after {CONNECT_SECONDS:g} s.") from None
        except ClientConnectorError as error:
            if error.errno in LOCAL_ERRORS:
                raise RequestNotSent(f"No connection could be opened: {os.strerror(error.errno)}.") from None
            raise Unreachable(f"{self.host} could not be reached: {_connect_failure(error)}.") from None
        except (ClientError, OSError) as error:
            raise self.broken_connection(error) from None

    def broken_connection(self, error: BaseException) -> ConnectionLost:
        number = getattr(error, "errno", None)
        reason = os.strerror(number).lower() if number else "it was closed"
        return ConnectionLost(f"The connection to {self.host} broke: {reason}.")

    async def _own_headers(self) -> dict[str, str]:
        """The server's configured headers and its credentials."""
        auth, headers = self._server.auth, dict[str, str]()
        try:
            for name, value in self._server.headers.items():
                headers[name] = value if isinstance(value, str) else self._secret_header(value)
            if isinstance(auth, BearerAuth):
                if auth.secret is not None:
                    headers["Authorization"] = self._secret_header(SecretHeader(secret=auth.secret, form="bearer"))
                elif auth.token is not None:
                    headers["Authorization"] = f"Bearer {auth.token}"
            else:
                headers.update(await self._deps.credentials.headers(self._server, self._owner))
            for name, value in headers.items():
                check_header(name, value)
        except ValueError as error:
            raise Unreachable(str(error), is_final=True) from None
        except (CallError, CannotConnect) as error:
            raise Unreachable(str(error)) from None
        return headers

    def _secret_header(self, header: SecretHeader) -> str:
        return self._deps.header(self._owner, header, self.host)


@asynccontextmanager
async def open_endpoint(server: HttpServer, owner: str | None, deps: HttpDeps) -> AsyncIterator[HttpEndpoint]:
    """An endpoint with an HTTP session of its own. Raises `Unreachable` for an invalid URL or address."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    try:
        url = read_url(server.url)
    except InvalidUrl as error:
        raise Unreachable(str(error), is_final=True) from None
    resolver = None if owner is None else await _checked_resolver(url, deps.find)
    context = await asyncio.to_thread(deps.trust) if url.scheme == "https" else True
    connector = TCPConnector(resolver=resolver, ssl=context, limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
    timeout = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    headers = {"User-Agent": f"toolcrib/{__version__}", "Accept-Encoding": "identity"}
    async with ClientSession(connector=connector, timeout=timeout, headers=headers, trust_env=False) as http:
        yield HttpEndpoint(server, owner, deps, http)


async def read_all(response: "ClientResponse", limit: int) -> bytes:
    """The whole body. Raises `JsonRpcError` when it is too large."""
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            raise JsonRpcError(INTERNAL_ERROR, f"The server's answer is larger than {limit // 1024 // 1024} MiB.")
    return b"".join(parts)


async def _checked_resolver(url: ParsedUrl, find: Find) -> "AbstractResolver":
    """A resolver that returns only checked addresses. An IP address in the URL is checked here, because the client
    does not ask its resolver for those."""
    from aiohttp import ThreadedResolver
    from aiohttp.abc import ResolveResult

    class CheckedResolver(ThreadedResolver):
        async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
            try:
                addresses = await find(host, port)
            except CallError as error:
                raise OSError(None, str(error)) from error
            results = []
            for address in addresses:
                results += await super().resolve(str(address), port, family)
            return [result | {"hostname": host} for result in results]

    if ":" in url.host or url.host.replace(".", "").isdigit():
        try:
            await find(url.host, url.port)
        except CallError as error:
            raise Unreachable(str(error), is_final=not error.retryable) from None
    return CheckedResolver()


def _connect_failure(error: Any) -> str:
    inner = error.os_error
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({inner.verify_message})"
    if isinstance(inner, ssl.SSLError):
        return "the TLS handshake failed"
    if isinstance(inner.__cause__, CallError):
        return str(inner.__cause__).rstrip(".")
    if inner.errno and inner.errno > 0:
        return os.strerror(inner.errno).lower()
    return "its host name has no address"
