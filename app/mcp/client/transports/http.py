"""Sites: servers elsewhere, by their address and what lets us in. The one place that opens connections for MCP.

To the server of a principal only checked addresses are connected to; everybody's servers are the operator's word.
The HTTP client is loaded when the first of them is opened.
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
KEEP_SECONDS = 4.0
"""Idle connections are let go before servers do it: most close them after five seconds, maybe just as we send."""
MOST_HOPS = 5
MUCH = 256 * 1024
SAME_METHOD = frozenset({307, 308})
REDIRECTS = frozenset({301, 302, 303}) | SAME_METHOD
OURS_TO_SOLVE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})

Find = Callable[[str, int], Awaitable[Sequence[object]]]
"""The addresses of a host that may be connected to. Raises a `CallError` when there are none."""
HeaderOf = Callable[[str | None, SecretHeader, str], str]
"""An owner's secret as a header carries it to a host. Raises a `CallError` when it may not."""


class Unreachable(RequestNotSent):
    """No connection came about. With `is_final` it would be the same the next time."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class Unauthorized(NeedsAuth):
    """The server answered 401 or 403, and there is nothing better to show."""

    def __init__(self, message: str, status: int, challenge: str | None) -> None:
        super().__init__(message, challenge)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpDeps:
    """How servers elsewhere are reached."""

    find: Find
    header: HeaderOf
    trust: Callable[[], ssl.SSLContext]
    credentials: Credentials


class HttpEndpoint:
    """One server's address, and what lets us in there."""

    def __init__(self, server: HttpServer, owner: str | None, ways: HttpDeps, http: "ClientSession") -> None:
        self.where = read_url(server.url)
        self._server = server
        self._owner = owner
        self._ways = ways
        self._http = http

    @property
    def host(self) -> str:
        return self.where.host

    async def open(
        self, method: str, headers: Mapping[str, str], *, body: bytes | None = None, target: str | None = None
    ) -> "ClientResponse":
        """The head of an answer; who asked lets go of it. Redirects on the same site are followed.

        Raises `Unreachable`, `NeedsAuth`, `ConnectionLost` when the connection broke, and `JsonRpcError`.
        """
        where = self.where if target is None else self.within(target)
        is_refused = False
        for _ in range(MOST_HOPS):
            response = await self._send(method, where, headers, body)
            if response.status in (401, 403):
                response.release()
                challenge = response.headers.get("WWW-Authenticate")
                if is_refused or not await self._is_better(response.status, challenge):
                    raise Unauthorized(self._why_not(response.status, challenge), response.status, challenge)
                is_refused = True
            elif response.status in REDIRECTS:
                response.release()
                where = self._followed(response, method)
            else:
                return response
        raise JsonRpcError(INVALID_REQUEST, f"{self.host} redirects in a circle.")

    def within(self, target: str) -> ParsedUrl:
        """An address of this site. Raises `JsonRpcError` for one elsewhere."""
        try:
            where = read_url(urljoin(str(self.where), target))
        except ValueError:
            raise JsonRpcError(INVALID_REQUEST, f"{self.host} names an address that is none.") from None
        if where.origin != self.where.origin:
            path = where.target.partition("?")[0]
            raise JsonRpcError(
                INVALID_REQUEST,
                f"{self.host} sends us to {where.origin}{path[:200]}, which is not followed; if that is the right "
                "server, use its address.",
            )
        return where

    async def _is_better(self, status: int, challenge: str | None) -> bool:
        if isinstance(self._server.auth, BearerAuth):
            return False
        try:
            return await self._ways.credentials.refused(self._server, self._owner, status, challenge)
        except (CallError, CannotConnect) as error:
            raise Unreachable(str(error)) from None

    def _why_not(self, status: int, challenge: str | None) -> str:
        if status == 403 and "insufficient_scope" in (challenge or ""):
            return (
                f"{self.host} wants to be allowed more for this; somebody has to sign in to {self._server.name} again."
            )
        return f"{self.host} does not let us in (HTTP {status})."

    def _followed(self, response: "ClientResponse", method: str) -> ParsedUrl:
        where = self.within(response.headers.get("Location", ""))
        if method != "GET" and response.status not in SAME_METHOD:
            raise JsonRpcError(INVALID_REQUEST, f"{self.host} answered with a redirect (HTTP {response.status}).")
        return where

    async def _send(
        self, method: str, where: ParsedUrl, headers: Mapping[str, str], body: bytes | None
    ) -> "ClientResponse":
        from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError
        from yarl import URL

        ours = {name.lower() for name in headers}
        given = {name: text for name, text in (await self._lets_in()).items() if name.lower() not in ours}
        url = URL(str(where), encoded=True)
        data = BytesIO(body) if body is not None and len(body) >= MUCH else body  # which is sent piece by piece
        try:
            return await self._http.request(method, url, headers={**given, **headers}, data=data, allow_redirects=False)
        except ConnectionTimeoutError:
            raise Unreachable(f"{self.host} could not be reached within {CONNECT_SECONDS:g} s.") from None
        except ClientConnectorError as error:
            if error.errno in OURS_TO_SOLVE:
                raise RequestNotSent(f"No connection could be opened: {os.strerror(error.errno)}.") from None
            raise Unreachable(f"{self.host} could not be reached: {_reason(error)}.") from None
        except (ClientError, OSError) as error:
            raise ConnectionLost(f"The connection to {self.host} broke: {broke(error)}.") from None

    async def _lets_in(self) -> dict[str, str]:
        """The server's own headers, with the secrets among them."""
        auth, given = self._server.auth, dict[str, str]()
        try:
            for name, value in self._server.headers.items():
                given[name] = value if isinstance(value, str) else self._secret(value)
            if isinstance(auth, BearerAuth):
                if auth.secret is not None:
                    given["Authorization"] = self._secret(SecretHeader(secret=auth.secret, form="bearer"))
                elif auth.token is not None:
                    given["Authorization"] = f"Bearer {auth.token}"
            else:
                given.update(await self._ways.credentials.headers(self._server, self._owner))
            for name, value in given.items():
                check_header(name, value)
        except ValueError as error:
            raise Unreachable(str(error), is_final=True) from None
        except (CallError, CannotConnect) as error:
            raise Unreachable(str(error)) from None
        return given

    def _secret(self, header: SecretHeader) -> str:
        return self._ways.header(self._owner, header, self.host)


@asynccontextmanager
async def open_site(server: HttpServer, owner: str | None, ways: HttpDeps) -> AsyncIterator[HttpEndpoint]:
    """A site with connections of its own. Raises `Unreachable` where it cannot be one."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    try:
        where = read_url(server.url)
    except InvalidUrl as error:
        raise Unreachable(str(error), is_final=True) from None
    resolver = None if owner is None else await _checked(where, ways.find)
    context = await asyncio.to_thread(ways.trust) if where.scheme == "https" else True
    connector = TCPConnector(resolver=resolver, ssl=context, limit=0, keepalive_timeout=KEEP_SECONDS)
    timeout = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    headers = {"User-Agent": f"toolcrib/{__version__}", "Accept-Encoding": "identity"}
    async with ClientSession(connector=connector, timeout=timeout, headers=headers, trust_env=False) as http:
        yield HttpEndpoint(server, owner, ways, http)


async def read_all(response: "ClientResponse", limit: int) -> bytes:
    """A whole body. Raises `JsonRpcError` when it is too large."""
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            raise JsonRpcError(INTERNAL_ERROR, f"The server's answer is larger than {limit // 1024 // 1024} MiB.")
    return b"".join(parts)


def broke(error: BaseException) -> str:
    """Why a connection broke, without what it was about."""
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if number else "it was closed"


async def _checked(where: ParsedUrl, find: Find) -> "AbstractResolver":
    """The client asks its resolver for names alone, so what is an address already is looked at now."""
    if ":" in where.host or where.host.replace(".", "").isdigit():
        try:
            await find(where.host, where.port)
        except CallError as error:
            raise Unreachable(str(error), is_final=not error.retryable) from None
    return _resolver(find)


def _resolver(find: Find) -> "AbstractResolver":
    from aiohttp import ThreadedResolver
    from aiohttp.abc import ResolveResult

    class Checked(ThreadedResolver):
        """Gives out checked addresses; the system only writes them in the form that is wanted."""

        async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
            try:
                found = await find(host, port)
            except CallError as error:
                raise OSError(None, str(error)) from error
            results = []
            for address in found:
                results += await super().resolve(str(address), port, family)
            return [result | {"hostname": host} for result in results]

    return Checked()


def _reason(error: Any) -> str:
    """Why there is no connection."""
    inner = error.os_error
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted ({inner.verify_message})"
    if isinstance(inner, ssl.SSLError):
        return "no secure connection came about"
    if isinstance(inner.__cause__, CallError):
        return str(inner.__cause__).rstrip(".")
    if inner.errno and inner.errno > 0:
        return os.strerror(inner.errno).lower()
    return "its name has no address"
