"""HTTP for OAuth: to checked addresses only, limited in size and time.

The URLs come from the MCP server and its authorization server, which are not trusted.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING

from app.core.errors import CallError, DNSError
from app.core.mcp_servers import HttpServer
from app.core.util.urls import InvalidUrl, ParsedUrl, read_url

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Request, Response

Find = Callable[[str, int], Awaitable[Sequence[IPv4Address | IPv6Address]]]
"""The addresses of a host that may be connected to. Raises `CallError`."""
Trust = Callable[[], ssl.SSLContext]

TIMEOUT_SECONDS = 20.0
MAX_BODY_BYTES = 256 * 1024
MAX_REDIRECTS = 3
HEADERS = ("content-type", "location", "www-authenticate")


class AuthFailed(Exception):
    """Authorization failed; the message says why, and contains no secret."""


class Unreachable(AuthFailed):
    """A server did not answer as it should. A retry may succeed."""


class OAuthHttp:
    """Sends requests for one MCP server. A shared server with a private address may name private addresses;
    all others are limited to checked addresses."""

    def __init__(self, find: Find, trust: Trust | None = None) -> None:
        self._find = find
        self._trust = trust
        self._context: ssl.SSLContext | None = None

    async def send(self, request: "Request", server: HttpServer, owner: str | None) -> "Response":
        """The whole response. Raises `AuthFailed`. Only GET is redirected, and only within the origin."""
        import httpx2

        url = require_https(str(request.url))
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                for _ in range(MAX_REDIRECTS + 1):
                    response = await self._send(request, url, await self._addresses(url, server, owner))
                    location = _redirect_of(request, url, response)
                    if location is None:
                        return response
                    request, url = httpx2.Request("GET", str(location), headers=request.headers), location
        except TimeoutError:
            raise Unreachable(f"{url.origin} did not answer within {TIMEOUT_SECONDS:g} s.") from None
        raise Unreachable(f"{url.origin} redirects in a loop.")

    async def _addresses(self, url: ParsedUrl, server: HttpServer, owner: str | None) -> list[str]:
        if owner is None and await self._is_private(server):
            return [url.host]
        try:
            return [str(address) for address in await self._find(url.host, url.port)]
        except CallError as error:
            raise Unreachable(str(error)) from None

    async def _is_private(self, server: HttpServer) -> bool:
        """Whether the operator's MCP server has an address that may not be reached otherwise."""
        url = read_url(server.url)
        try:
            await self._find(url.host, url.port)
        except DNSError:
            return False
        except CallError:
            return True
        return False

    async def _send(self, request: "Request", url: ParsedUrl, addresses: Sequence[str]) -> "Response":
        """A client for each request, so that no checked address can be mixed with another."""
        import httpx2

        verify: ssl.SSLContext | bool = False
        if url.scheme == "https":
            if self._context is None:
                self._context = await asyncio.to_thread(self._trust or ssl.create_default_context)
            verify = self._context
        async with httpx2.AsyncClient(
            verify=verify, trust_env=False, timeout=TIMEOUT_SECONDS, follow_redirects=False
        ) as client:
            for address in addresses:
                try:
                    return await _exchange(client, request, url, address)
                except httpx2.ConnectError as error:
                    failure: httpx2.TransportError = error
                except httpx2.TransportError as error:
                    failure = error
                    break
        raise Unreachable(f"{url.origin} cannot be reached: {type(failure).__name__}.") from None


def require_https(url: str) -> ParsedUrl:
    """A URL that may get tokens and secrets: https, or a loopback address. Raises `AuthFailed`."""
    try:
        parsed = read_url(url)
    except InvalidUrl as error:
        raise AuthFailed(f"A URL of the authorization cannot be used. {error}") from None
    if parsed.scheme != "https" and not is_loopback(parsed.host):
        raise AuthFailed(f"{parsed.origin} is not https, so no secrets are sent there.")
    return parsed


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


async def _exchange(client: "AsyncClient", request: "Request", url: ParsedUrl, address: str) -> "Response":
    """One request to one address; the host name is only in the Host header and SNI."""
    import httpx2

    headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
    host = f"[{address}]" if ":" in address else address
    pinned = client.build_request(
        request.method,
        f"{url.scheme}://{host}:{url.port}{url.target}",
        headers=headers | {"Host": url.authority, "Accept-Encoding": "identity"},
        content=request.content,
        extensions={"sni_hostname": url.host},
    )
    response = await client.send(pinned, stream=True)
    body = bytearray()
    try:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise AuthFailed(f"The response of {url.origin} is larger than {MAX_BODY_BYTES // 1024} KiB.")
    finally:
        await response.aclose()
    headers = {name: response.headers[name] for name in HEADERS if name in response.headers}
    return httpx2.Response(response.status_code, headers=headers, content=bytes(body), request=request)


def _redirect_of(request: "Request", url: ParsedUrl, response: "Response") -> ParsedUrl | None:
    location = response.headers.get("location")
    if request.method != "GET" or response.status_code not in (301, 302, 303, 307, 308) or not location:
        return None
    try:
        target = read_url(str(response.url.join(location)))
    except ValueError:
        return None
    return target if target.origin == url.origin else None
