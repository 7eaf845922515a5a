"""CONNECT tunnels. On the HTTPS port the server name of the TLS ClientHello must match the target."""

import asyncio

from app.net.egress import secret_hosts
from app.net.egress.errors import Refused
from app.net.egress.http1 import READ_BYTES, Request, request_framing
from app.net.egress.proxy_client import ByteMeter, OverLimit, ProxyClient, ProxyDeps
from app.net.egress.target import Target, is_literal, read_connect, read_name
from app.net.egress.tcp import connected, end_output, send

CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
HANDSHAKE, CLIENT_HELLO, SERVER_NAME, HOST_NAME = 22, 1, 0, 0
MAX_RECORD_BYTES = 16 * 1024
MAX_HELLO_BYTES = 16 * 1024
MAX_RECORDS = 8


async def tunnel(client: ProxyClient, request: Request, deps: ProxyDeps) -> None:
    """Serve a CONNECT to its end. Raises `Refused`, `Malformed`."""
    client.target = target = read_connect(request.target)
    if not request_framing(request).is_empty:
        raise Refused(400, "bad-request", "CONNECT must not have a body.")
    if target.host == secret_hosts.HOST:
        raise Refused(
            403, "alias-needs-http", f"Use http:// URLs for {secret_hosts.HOST}; the proxy sends them by TLS."
        )
    addresses = await deps.policy.check(target.host, target.port)
    async with connected(target.host, target.port, addresses) as (reader, writer):
        client.has_response = True
        await client.send(CONNECTED)
        hello = b""
        if target.port == deps.https_port:
            hello = await _checked_hello(client, target, deps.limits.head_seconds)
        client.report(True, "allowed")
        await send(writer, hello)
        meter = ByteMeter(deps.limits)
        try:
            async with meter.running(), asyncio.TaskGroup() as both:
                both.create_task(_copy(client.reader, writer, meter))
                both.create_task(_copy(reader, client.writer, meter))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        except TimeoutError:
            raise OverLimit from None


async def _checked_hello(client: ProxyClient, target: Target, seconds: float) -> bytes:
    """The ClientHello, if its server name is the target. Raises `Refused`."""
    try:
        async with asyncio.timeout(seconds):
            hello, name = await read_hello(client.reader)
    except (NoClientHello, TimeoutError):
        raise Refused(403, "no-tls", f"Port {target.port} accepts only TLS.") from None
    # A client that connects to an address sends no server name.
    is_match = is_literal(target.host) if name is None else read_name(name) == target.host
    if not is_match:
        raise Refused(403, "sni-mismatch", f"The TLS server name must be {target.host}, as in CONNECT.")
    return hello


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, meter: ByteMeter) -> None:
    """Copy with backpressure; the end of one direction does not end the other."""
    while data := await source.read(READ_BYTES):
        meter.add(len(data))
        await send(sink, data)
    end_output(sink)


class NoClientHello(Exception):
    """The bytes are not a TLS ClientHello."""


class _Cursor:
    """Reads length-prefixed vectors. Raises `NoClientHello` at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_done(self) -> bool:
        return self._at == len(self._data)

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) != count:
            raise NoClientHello
        self._at += count
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))


async def read_hello(reader: asyncio.StreamReader) -> tuple[bytes, str | None]:
    """The bytes of a ClientHello, and its server name. Raises `NoClientHello`."""
    raw, message = b"", b""
    for _ in range(MAX_RECORDS):
        try:
            header = await reader.readexactly(5)
            size = int.from_bytes(header[3:], "big")
            if header[0] != HANDSHAKE or header[1] != 3 or not 0 < size <= MAX_RECORD_BYTES:
                raise NoClientHello
            body = await reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise NoClientHello from None
        raw, message = raw + header + body, message + body
        if len(message) >= 4:
            length = int.from_bytes(message[1:4], "big")
            if message[0] != CLIENT_HELLO or length > MAX_HELLO_BYTES:
                raise NoClientHello
            if len(message) >= 4 + length:
                return raw, server_name(message[4 : 4 + length])
    raise NoClientHello


def server_name(hello: bytes) -> str | None:
    """The server name in a ClientHello; None if it has none. Raises `NoClientHello`."""
    cursor = _Cursor(hello)
    cursor.take(2 + 32)  # version and random
    cursor.vector(1)  # session id
    cursor.vector(2)  # cipher suites
    cursor.vector(1)  # compression methods
    if cursor.is_done:
        return None
    extensions, names = _Cursor(cursor.vector(2)), list[str]()
    while not extensions.is_done:
        kind, body = extensions.number(2), extensions.vector(2)
        if kind == SERVER_NAME:
            names += _names(_Cursor(body))
    if not cursor.is_done or len(names) > 1:
        raise NoClientHello
    return names[0] if names else None


def _names(body: _Cursor) -> list[str]:
    listed, names = _Cursor(body.vector(2)), list[str]()
    while not listed.is_done:
        if listed.number(1) != HOST_NAME:
            raise NoClientHello
        try:
            names.append(listed.vector(2).decode("ascii"))
        except UnicodeDecodeError:
            raise NoClientHello from None
    if not body.is_done or not names:
        raise NoClientHello
    return names
