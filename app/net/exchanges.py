"""One HTTP request on a connection of its own, to exactly the address that was checked, and its bounded answer."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from app.core.errors import NetworkError, NetworkTimeout
from app.core.hosts import Where
from app.net.encodings import Broken, decoder_of
from app.net.resolver import Address

CONNECT_SECONDS = 5.0
"""How long one address is tried while there are others."""
MAX_ADDRESSES = 6
REDIRECTS = frozenset({301, 302, 303, 307, 308})
LOOSE = 64 * 1024
"""Bytes that an encoding may cost without saying anything."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it goes over the wire, but for the address."""

    method: str
    where: Where
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Answer:
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


async def exchange(sent: Sent, addresses: Sequence[Address], trust: ssl.SSLContext, limit: int) -> Answer:
    """Send it to the first address that can be connected to. Raises `NetworkError`, `NetworkTimeout`."""
    tried = addresses[:MAX_ADDRESSES]
    for left, address in zip(reversed(range(len(tried))), tried, strict=True):
        try:
            return await _exchange(sent, address, trust, limit, CONNECT_SECONDS if left else None)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if not left:
                raise _unreachable(sent.where, error) from None
        except httpx.TimeoutException:
            raise NetworkTimeout(f"{sent.where.host} did not answer in time.") from None
        except (httpx.TransportError, httpx.InvalidURL, Broken) as error:
            raise _failed(sent.where, error) from None
    raise AssertionError("there is always an address")


async def _exchange(
    sent: Sent, address: Address, trust: ssl.SSLContext, limit: int, connect_seconds: float | None
) -> Answer:
    """The URL names the address, so that nothing is looked up again; TLS and the request name the host."""
    place = f"[{address}]" if address.version == 6 else str(address)
    where = sent.where
    request = httpx.Request(
        sent.method,
        f"{where.scheme}://{place}:{where.port}{where.target}",
        headers=[(b"Host", where.authority.encode()), (b"Connection", b"close"), *sent.headers],
        content=sent.body,
        extensions={"sni_hostname": where.host, "timeout": {"connect": connect_seconds}},
    )
    async with httpx.AsyncHTTPTransport(verify=trust, trust_env=False) as transport:
        response = await transport.handle_async_request(request)
        try:
            return await _read(response, limit)
        finally:
            await response.aclose()


async def _read(response: httpx.Response, limit: int) -> Answer:
    headers = dict(response.headers)
    if response.status_code in REDIRECTS and "location" in headers:
        return Answer(response.status_code, headers, location=headers["location"])
    decoder = decoder_of(headers.get("content-encoding", ""))
    if decoder is None:
        raise Broken
    body = Body(limit)
    async for piece in response.aiter_raw():
        body.read += len(piece)
        body.kept += decoder.feed(piece, limit + 1 - len(body.kept))
        if body.is_over:
            break
    if not body.is_over and body.read:
        decoder.finish()
    return Answer(response.status_code, headers, bytes(body.kept[:limit]), body.is_over)


def _unreachable(where: Where, error: Exception) -> NetworkError:
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
    if isinstance(error, httpx.ConnectTimeout):
        return NetworkTimeout(f"No connection to {where.authority} came about in time.")
    return NetworkError(f"{where.authority} cannot be reached.")


def _failed(where: Where, error: Exception) -> NetworkError:
    if isinstance(error, Broken):
        return NetworkError(f"The answer of {where.host} is in an encoding that cannot be read.")
    if isinstance(error, httpx.RemoteProtocolError):
        return NetworkError(f"{where.host} ended the connection early, or does not speak HTTP.")
    if isinstance(error, httpx.LocalProtocolError | httpx.InvalidURL):
        failed = NetworkError(f"The request to {where.host} cannot be written as HTTP.")
        failed.retryable = False
        return failed
    return NetworkError(f"The connection to {where.host} broke.")


def _causes(error: BaseException | None) -> "list[BaseException]":
    """An error and all that led to it, groups opened."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                found += _causes(one)
        error = error.__cause__ or error.__context__
    return found
