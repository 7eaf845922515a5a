"""Streams to addresses that were checked, and how they end: nothing stays open."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from app.net.egress.errors import Refused, failed, late
from app.net.egress.http1 import PIECE
from app.net.resolver import Address

CONNECT_SECONDS = 5.0
MAX_ADDRESSES = 6
FLUSH_SECONDS = 2.0

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(
    host: str, port: int, addresses: Sequence[Address], trust: ssl.SSLContext | None = None
) -> AsyncIterator[Stream]:
    """A connection to the first address that takes one; with `trust` by TLS, to who proves to be the host.

    Raises `Refused`.
    """
    reader, writer = await _connect(host, port, addresses[:MAX_ADDRESSES], trust)
    async with ending(writer):
        yield reader, writer


@asynccontextmanager
async def ending(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """At the end what was written goes out, but who does not take it soon is cut; after an error at once."""
    try:
        yield
    except BaseException:
        writer.transport.abort()
        raise
    finally:
        await _close(writer)


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write, and wait as long as the other side has enough to do. Raises `OSError`."""
    if writer.transport.is_closing():  # which one loop says itself, and another one not so
        raise ConnectionResetError
    writer.write(data)
    await writer.drain()


def end_output(writer: asyncio.StreamWriter) -> None:
    """Nothing more is said on it; what comes back may go on."""
    if not writer.transport.is_closing():
        writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(FLUSH_SECONDS):
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass  # it is as closed as can be
    finally:
        writer.transport.abort()


async def _connect(host: str, port: int, addresses: Sequence[Address], trust: ssl.SSLContext | None) -> Stream:
    trouble = failed("unreachable", f"{host}:{port} cannot be reached.")
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await _open(host, port, address, trust)
        except TimeoutError:
            trouble = late(f"{host}:{port} takes no connection in time.")
        except OSError as error:
            trouble = _trouble(host, port, error)
    raise trouble


async def _open(host: str, port: int, address: Address, trust: ssl.SSLContext | None) -> Stream:
    # The flag makes sure that nothing is looked up once more.
    return await asyncio.open_connection(
        str(address),
        port,
        limit=PIECE,
        flags=socket.AI_NUMERICHOST,
        ssl=trust,
        server_hostname=host if trust is not None else None,
    )


def _trouble(host: str, port: int, error: OSError) -> Refused:
    if isinstance(error, ssl.SSLCertVerificationError):
        return failed("tls-failed", f"The certificate of {host} is not trusted: {error.verify_message}.")
    if isinstance(error, ssl.SSLError):
        return failed("tls-failed", f"No TLS connection to {host}:{port} came about.")
    if isinstance(error, ConnectionRefusedError):
        return failed("unreachable", f"{host}:{port} refused the connection.")
    return failed("unreachable", f"{host}:{port} cannot be reached.")
