"""One HTTP request on a connection of its own, to exactly an address that was checked, and its bounded answer."""

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpcore

from app.core.errors import NetworkError, NetworkTimeout
from app.core.util.urls import ParsedUrl
from app.net.decompress import Broken, decoder_of
from app.net.resolver import Address

CONNECT_SECONDS = 5.0
"""How long one address is tried while there are others."""
MAX_ADDRESSES = 6
REDIRECTS = frozenset({301, 302, 303, 307, 308})
LOOSE = 64 * 1024
"""Bytes that an encoding may cost without saying anything."""


@dataclass(frozen=True, slots=True)
class PinnedRequest:
    """A request as it goes over the wire, but for the address."""

    method: str
    where: ParsedUrl
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class PinnedResponse:
    """What came back; of a redirect, its place and no body."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    is_cut: bool = False
    location: str | None = None


@dataclass(slots=True)
class Body:
    """A body as far as it was read."""

    limit: int
    read: int = 0
    kept: bytearray = field(default_factory=bytearray)

    @property
    def is_over(self) -> bool:
        return len(self.kept) > self.limit or self.read > 2 * self.limit + LOOSE


class Dialer(httpcore.AsyncNetworkBackend):
    """Connects to the checked addresses, whatever name is asked for, and sees to it that nothing stays open."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses[:MAX_ADDRESSES]
        self._backend = httpcore.AnyIOBackend()
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's own name
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        *others, last = self._addresses
        for address in others:
            try:
                return await self._connect(address, port, CONNECT_SECONDS)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._connect(last, port, None)

    async def close(self) -> None:
        """Also what was given up in the middle of a handshake, which the library forgets."""
        for stream in self._opened:
            await stream.aclose()

    async def _connect(self, address: Address, port: int, seconds: float | None) -> httpcore.AsyncNetworkStream:
        stream = await self._backend.connect_tcp(str(address), port, timeout=seconds)
        self._opened.append(stream)
        return stream


async def exchange(
    sent: PinnedRequest, addresses: Sequence[Address], trust: ssl.SSLContext | None, limit: int
) -> PinnedResponse:
    """Send it and read the answer. Raises `NetworkError`, `NetworkTimeout`."""
    try:
        async with _sending(sent, addresses, trust) as response:
            return await _read(response, limit)
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        raise _unreachable(sent.where, error) from None
    except httpcore.TimeoutException:
        raise NetworkTimeout(f"{sent.where.host} did not answer in time.") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, Broken) as error:
        raise _failed(sent.where, error) from None


@asynccontextmanager
async def _sending(
    sent: PinnedRequest, addresses: Sequence[Address], trust: ssl.SSLContext | None
) -> AsyncIterator[httpcore.Response]:
    """The request names the host, and so does TLS; only the dialer knows addresses."""
    where = sent.where
    headers = [(b"Host", where.authority.encode()), (b"Connection", b"close"), *sent.headers]
    if sent.body is not None or sent.method in ("POST", "PUT", "PATCH"):
        headers.append((b"Content-Length", str(len(sent.body or b"")).encode()))
    url = httpcore.URL(
        scheme=where.scheme.encode(), host=where.host.encode(), port=where.port, target=where.target.encode()
    )
    dialer = Dialer(addresses)
    try:
        async with (
            httpcore.AsyncConnectionPool(ssl_context=trust, network_backend=dialer) as pool,
            pool.stream(sent.method, url, headers=headers, content=sent.body) as response,
        ):
            yield response
    finally:
        await dialer.close()


async def _read(response: httpcore.Response, limit: int) -> PinnedResponse:
    headers = _headers(response.headers)
    if response.status in REDIRECTS and "location" in headers:
        return PinnedResponse(response.status, headers, location=headers["location"])
    decoder = decoder_of(headers.get("content-encoding", ""))
    if decoder is None:
        raise Broken
    body = Body(limit)
    async for piece in response.aiter_stream():
        body.read += len(piece)
        body.kept += decoder.feed(piece, limit + 1 - len(body.kept))
        if body.is_over:
            break
    if not body.is_over and body.read:
        decoder.finish()
    return PinnedResponse(response.status, headers, bytes(body.kept[:limit]), body.is_over)


def _headers(given: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Names in lower case; what comes several times is one value with commas."""
    headers: dict[str, str] = {}
    for name, value in given:
        key, text = name.decode("ascii").lower(), value.decode("utf-8", "replace")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _unreachable(where: ParsedUrl, error: Exception) -> NetworkError:
    """Why no connection came about, as far as it is anybody's business."""
    reasons = list(_causes(error))
    if found := next((one for one in reasons if isinstance(one, ssl.SSLCertVerificationError)), None):
        failed = NetworkError(f"The certificate of {where.host} is not trusted: {found.verify_message}.")
        failed.retryable = False
        return failed
    if any(isinstance(one, ssl.SSLError) for one in reasons):
        return NetworkError(f"No TLS connection to {where.authority} came about.")
    if any(isinstance(one, ConnectionRefusedError) for one in reasons):
        return NetworkError(f"{where.authority} refused the connection.")
    if isinstance(error, httpcore.ConnectTimeout):
        return NetworkTimeout(f"No connection to {where.authority} came about in time.")
    return NetworkError(f"{where.authority} cannot be reached.")


def _failed(where: ParsedUrl, error: Exception) -> NetworkError:
    if isinstance(error, Broken):
        return NetworkError(f"The answer of {where.host} is in an encoding that cannot be read.")
    if isinstance(error, httpcore.RemoteProtocolError):
        return NetworkError(f"{where.host} ended the connection early, or does not speak HTTP.")
    if isinstance(error, httpcore.LocalProtocolError):
        failed = NetworkError(f"The request to {where.host} cannot be written as HTTP.")
        failed.retryable = False
        return failed
    return NetworkError(f"The connection to {where.host} broke.")


def _causes(error: BaseException | None) -> list[BaseException]:
    """An error and all that led to it, groups opened."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                found += _causes(one)
        error = error.__cause__ or error.__context__
    return found
