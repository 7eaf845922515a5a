"""The courier: the requests of OAuth, to addresses that may be reached, within bounds of size and time.

Where they go is said by the MCP server and its authorization server, so
nobody knows whether they mean well.
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

SECONDS = 20.0
MOST_BYTES = 256 * 1024
MOST_REDIRECTS = 3
KEPT_HEADERS = ("content-type", "location", "www-authenticate")


class AuthFailed(Exception):
    """There is no way in at the moment; the sentence says why, and holds no secret."""


class Unreachable(AuthFailed):
    """Somebody did not answer as they should. It may be better the next time."""


class OAuthHttp:
    """Carries requests for one server. What everybody's server inside our own network names may be inside too;
    all others lead to checked addresses only."""

    def __init__(self, find: Find, trust: Trust | None = None) -> None:
        self._find = find
        self._trust = trust
        self._context: ssl.SSLContext | None = None

    async def carry(self, request: "Request", server: HttpServer, owner: str | None) -> "Response":
        """The whole answer. Raises `AuthFailed`. Redirects are followed only to read, and only to the same origin."""
        where = require_safe(str(request.url))
        try:
            async with asyncio.timeout(SECONDS):
                for _ in range(MOST_REDIRECTS + 1):
                    answer = await self._send(request, where, await self._addresses(where, server, owner))
                    after = _redirected(request, where, answer)
                    if after is None:
                        return answer
                    request, where = _again(request, after), after
        except TimeoutError:
            raise Unreachable(f"{where.origin} did not answer within {SECONDS:g} s.") from None
        raise Unreachable(f"{where.origin} redirects in circles.")

    async def _addresses(self, where: ParsedUrl, server: HttpServer, owner: str | None) -> list[str]:
        if owner is None and await self._is_inside(server):
            return [where.host]
        try:
            return [str(address) for address in await self._find(where.host, where.port)]
        except CallError as error:
            raise Unreachable(str(error)) from None

    async def _is_inside(self, server: HttpServer) -> bool:
        """Whether the operator's server is itself at an address that others may not reach."""
        own = read_url(server.url)
        try:
            await self._find(own.host, own.port)
        except DNSError:
            return False
        except CallError:
            return True
        return False

    async def _send(self, request: "Request", where: ParsedUrl, addresses: Sequence[str]) -> "Response":
        import httpx2

        async with await self._client(where) as client:
            for address in addresses:
                try:
                    return await _exchange(client, request, where, address)
                except httpx2.ConnectError as error:
                    failure: httpx2.TransportError = error
                except httpx2.TransportError as error:
                    failure = error
                    break
        raise Unreachable(f"{where.origin} cannot be reached: {type(failure).__name__}.") from None

    async def _client(self, where: ParsedUrl) -> "AsyncClient":
        """One for each request, so that no checked address can be mixed with another."""
        import httpx2

        verify: ssl.SSLContext | bool = False
        if where.scheme == "https":
            if self._context is None:
                self._context = await asyncio.to_thread(self._trust or ssl.create_default_context)
            verify = self._context
        return httpx2.AsyncClient(verify=verify, trust_env=False, timeout=SECONDS, follow_redirects=False)


def require_safe(url: str) -> ParsedUrl:
    """A URL that tokens and secrets may go to: https, or on this machine. Raises `AuthFailed`."""
    try:
        where = read_url(url)
    except InvalidUrl as error:
        raise AuthFailed(f"An address of the sign-in cannot be used. {error}") from None
    if where.scheme != "https" and not is_loopback(where.host):
        raise AuthFailed(f"{where.origin} is not https, so nothing secret is sent there.")
    return where


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


async def _exchange(client: "AsyncClient", request: "Request", where: ParsedUrl, address: str) -> "Response":
    """One request to one address, with the name only in what is said there."""
    import httpx2

    headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
    name = f"[{address}]" if ":" in address else address
    pinned = client.build_request(
        request.method,
        f"{where.scheme}://{name}:{where.port}{where.target}",
        headers=headers | {"Host": where.authority, "Accept-Encoding": "identity"},
        content=request.content,
        extensions={"sni_hostname": where.host},
    )
    answer = await client.send(pinned, stream=True)
    try:
        body = await _read(answer, where)
    finally:
        await answer.aclose()
    kept = {name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers}
    return httpx2.Response(answer.status_code, headers=kept, content=body, request=request)


async def _read(answer: "Response", where: ParsedUrl) -> bytes:
    """The body as it comes over the wire: packed ones were not asked for, and are not unpacked."""
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > MOST_BYTES:
            raise AuthFailed(f"{where.origin} answers more than {MOST_BYTES // 1024} KiB.")
    return bytes(body)


def _redirected(request: "Request", where: ParsedUrl, answer: "Response") -> ParsedUrl | None:
    location = answer.headers.get("location")
    if request.method != "GET" or answer.status_code not in (301, 302, 303, 307, 308) or not location:
        return None
    try:
        after = read_url(str(answer.url.join(location)))
    except ValueError:
        return None
    return after if after.origin == where.origin else None


def _again(request: "Request", where: ParsedUrl) -> "Request":
    import httpx2

    return httpx2.Request("GET", str(where), headers=request.headers)
