"""Sends one HTTP request on its own connection to a checked address, and reads a bounded response."""

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpcore

from app.core.errors import NetworkError, NetworkTimeout
from app.core.util.urls import ParsedUrl
from app.net.decompress import Broken, decoder_of
from app.net.resolver import Address

CONNECT_SECONDS = 5.0
"""Timeout for an address while there are others to try."""
MAX_ADDRESSES = 6
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_ENCODING_OVERHEAD = 64 * 1024
"""Bytes that an encoding may use without producing output."""


@dataclass(frozen=True, slots=True)
class PinnedRequest:
    """A request with all its headers; `Host` and the framing are added."""

    method: str
    where: ParsedUrl
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class PinnedResponse:
    """A response; a redirect has its `location` and no body."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    is_cut: bool = False
    location: str | None = None


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """Connects to the checked addresses only, whatever the host name, and closes every connection."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses[:MAX_ADDRESSES]
        self._backend = httpcore.AnyIOBackend()
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's parameter
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
        """Also closes connections canceled during a TLS handshake, which httpcore leaves open."""
        for stream in self._opened:
            await stream.aclose()

    async def _connect(self, address: Address, port: int, seconds: float | None) -> httpcore.AsyncNetworkStream:
        stream = await self._backend.connect_tcp(str(address), port, timeout=seconds)
        self._opened.append(stream)
        return stream


async def exchange(
    request: PinnedRequest, addresses: Sequence[Address], trust: ssl.SSLContext | None, limit: int
) -> PinnedResponse:
    """Send a request and read its response. Raises `NetworkError`, `NetworkTimeout`."""
    try:
        async with _open_response(request, addresses, trust) as response:
            return await _read(response, limit)
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        raise _unreachable(request.where, error) from None
    except httpcore.TimeoutException:
        raise NetworkTimeout(f"{request.where.host} did not respond in time.") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, Broken) as error:
        raise _failed(request.where, error) from None


@asynccontextmanager
async def _open_response(
    request: PinnedRequest, addresses: Sequence[Address], trust: ssl.SSLContext | None
) -> AsyncIterator[httpcore.Response]:
    """The `Host` header and TLS use the host name; only the backend uses addresses."""
    where = request.where
    headers = [(b"Host", where.authority.encode()), (b"Connection", b"close"), *request.headers]
    if request.body is not None or request.method in ("POST", "PUT", "PATCH"):
        headers.append((b"Content-Length", str(len(request.body or b"")).encode()))
    url = httpcore.URL(
        scheme=where.scheme.encode(), host=where.host.encode(), port=where.port, target=where.target.encode()
    )
    backend = PinnedBackend(addresses)
    try:
        async with (
            httpcore.AsyncConnectionPool(ssl_context=trust, network_backend=backend) as pool,
            pool.stream(request.method, url, headers=headers, content=request.body) as response,
        ):
            yield response
    finally:
        await backend.close()


async def _read(response: httpcore.Response, limit: int) -> PinnedResponse:
    headers = _headers(response.headers)
    if response.status in REDIRECTS and "location" in headers:
        return PinnedResponse(response.status, headers, location=headers["location"])
    decoder = decoder_of(headers.get("content-encoding", ""))
    if decoder is None:
        raise Broken
    received, body, is_over = 0, bytearray(), False
    async for chunk in response.aiter_stream():
        received += len(chunk)
        body += decoder.feed(chunk, limit + 1 - len(body))
        is_over = len(body) > limit or received > 2 * limit + MAX_ENCODING_OVERHEAD
        if is_over:
            break
    if received and not is_over:
        decoder.finish()
    return PinnedResponse(response.status, headers, bytes(body[:limit]), is_over)


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Names in lower case; repeated headers are joined with commas."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("ascii").lower(), value.decode("utf-8", "replace")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _unreachable(where: ParsedUrl, error: Exception) -> NetworkError:
    causes = _causes(error)
    if untrusted := next((cause for cause in causes if isinstance(cause, ssl.SSLCertVerificationError)), None):
        failed = NetworkError(f"The certificate of {where.host} is not trusted: {untrusted.verify_message}.")
        failed.retryable = False
        return failed
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return NetworkError(f"The TLS handshake with {where.authority} failed.")
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return NetworkError(f"{where.authority} refused the connection.")
    if isinstance(error, httpcore.ConnectTimeout):
        return NetworkTimeout(f"Connecting to {where.authority} timed out.")
    return NetworkError(f"{where.authority} cannot be reached.")


def _failed(where: ParsedUrl, error: Exception) -> NetworkError:
    if isinstance(error, Broken):
        return NetworkError(f"The response of {where.host} has an encoding that cannot be decoded.")
    if isinstance(error, httpcore.RemoteProtocolError):
        return NetworkError(f"{where.host} closed the connection early, or its response is not HTTP.")
    if isinstance(error, httpcore.LocalProtocolError):
        failed = NetworkError(f"The request to {where.host} is not valid HTTP.")
        failed.retryable = False
        return failed
    return NetworkError(f"The connection to {where.host} was lost.")


def _causes(error: BaseException | None) -> list[BaseException]:
    """An error and its causes, including the members of exception groups."""
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                causes += _causes(member)
        error = error.__cause__ or error.__context__
    return causes
