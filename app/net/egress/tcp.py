"""TCP and TLS connections to checked addresses; every connection is closed."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from app.net.egress.errors import Refused, failed, timed_out
from app.net.egress.http1 import READ_BYTES
from app.net.resolver import Address

CONNECT_SECONDS = 5.0
MAX_ADDRESSES = 6
FLUSH_SECONDS = 2.0

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(
    host: str, port: int, addresses: Sequence[Address], trust: ssl.SSLContext | None = None
) -> AsyncIterator[Stream]:
    """A connection to the first address that accepts; with `trust`, by TLS with the host's name verified.

    Raises `Refused`.
    """
    reader, writer = await _connect(host, port, addresses[:MAX_ADDRESSES], trust)
    async with closing(writer):
        yield reader, writer


@asynccontextmanager
async def closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Flush and close at the end, with a timeout; abort after an error."""
    try:
        yield
    except BaseException:
        writer.transport.abort()
        raise
    finally:
        await _close(writer)


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write with backpressure. Raises `OSError`."""
    if writer.transport.is_closing():  # not every event loop reports it
        raise ConnectionResetError
    writer.write(data)
    await writer.drain()


def end_output(writer: asyncio.StreamWriter) -> None:
    """Close the sending direction only."""
    if not writer.transport.is_closing():
        writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(FLUSH_SECONDS):
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass  # aborted below
    finally:
        writer.transport.abort()


async def _connect(host: str, port: int, addresses: Sequence[Address], trust: ssl.SSLContext | None) -> Stream:
    failure = failed("unreachable", f"{host}:{port} cannot be reached.")
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                # AI_NUMERICHOST: nothing is resolved again.
                return await asyncio.open_connection(
                    str(address),
                    port,
                    limit=READ_BYTES,
                    flags=socket.AI_NUMERICHOST,
                    ssl=trust,
                    server_hostname=host if trust is not None else None,
                )
        except TimeoutError:
            failure = timed_out(f"Connecting to {host}:{port} timed out.")
        except OSError as error:
            failure = _to_failure(host, port, error)
    raise failure


def _to_failure(host: str, port: int, error: OSError) -> Refused:
    if isinstance(error, ssl.SSLCertVerificationError):
        return failed("tls-failed", f"The certificate of {host} is not trusted: {error.verify_message}.")
    if isinstance(error, ssl.SSLError):
        return failed("tls-failed", f"The TLS handshake with {host}:{port} failed.")
    if isinstance(error, ConnectionRefusedError):
        return failed("unreachable", f"{host}:{port} refused the connection.")
    return failed("unreachable", f"{host}:{port} cannot be reached.")
