"""The first message of TLS: whom a client says that it wants to speak to."""

import asyncio

HANDSHAKE, CLIENT_HELLO, SERVER_NAME, HOST_NAME = 22, 1, 0, 0
MAX_RECORD = 16 * 1024
MAX_HELLO = 16 * 1024
RECORDS = 8
"""A hello may be cut into some records, but not into crumbs."""


class NoClientHello(Exception):
    """What comes is no hello of TLS."""


class _Cursor:
    """Reads vectors with their lengths; what is too short is no hello."""

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
    """The bytes of a client's hello as they came, and the name in it. Raises `NoClientHello`."""
    raw, message = b"", b""
    for _ in range(RECORDS):
        try:
            header = await reader.readexactly(5)
            size = int.from_bytes(header[3:], "big")
            if header[0] != HANDSHAKE or header[1] != 3 or not 0 < size <= MAX_RECORD:
                raise NoClientHello
            body = await reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise NoClientHello from None
        raw, message = raw + header + body, message + body
        if len(message) >= 4:
            length = int.from_bytes(message[1:4], "big")
            if message[0] != CLIENT_HELLO or length > MAX_HELLO:
                raise NoClientHello
            if len(message) >= 4 + length:
                return raw, server_name(message[4 : 4 + length])
    raise NoClientHello


def server_name(hello: bytes) -> str | None:
    """The one name in the body of a hello; None when it says none. Raises `NoClientHello`."""
    cursor = _Cursor(hello)
    cursor.take(2 + 32)  # the version and the random bytes
    cursor.vector(1)  # the session
    cursor.vector(2)  # the ciphers
    cursor.vector(1)  # the compressions
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
