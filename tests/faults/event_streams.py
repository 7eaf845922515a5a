"""Event streams by the hundred, on raw sockets in one loop: those who read all, and those who read nothing."""

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from tests.faults.fault_service import KEY
from tests.faults.service_processes import HANG

CONNECTED = b": connected\n\n"


class Dechunker:
    """The body inside a chunked answer, as its bytes come."""

    def __init__(self) -> None:
        self.is_ended = False
        self._has_head = False
        self._left = 0  # of a chunk, with the line end behind it
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        data, at = self._rest + data, 0
        if not self._has_head:
            head, found, data = data.partition(b"\r\n\r\n")
            self._rest = head
            if not found:
                return
            assert b" 200 " in head.partition(b"\r\n")[0], head
            self._has_head = True
        while at < len(data) and not self.is_ended:
            if self._left > 2:
                piece = data[at : at + self._left - 2]
                at, self._left = at + len(piece), self._left - len(piece)
                yield piece
            elif self._left:
                skipped = min(self._left, len(data) - at)
                at, self._left = at + skipped, self._left - skipped
            elif (end := data.find(b"\r\n", at)) >= 0:
                size, at = int(data[at:end], 16), end + 2
                self._left, self.is_ended = (size + 2, False) if size else (0, True)
            else:
                break
        self._rest = data[at:]


class FastWatcher(asyncio.Protocol):
    """Reads everything at once and keeps only how much it was and its digest."""

    def __init__(self, after: int) -> None:
        self.size = 0
        self.tail = b""
        self._after = after
        self._digest = hashlib.sha256()
        self._body = Dechunker()
        self.transport: asyncio.Transport | None = None

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    @property
    def is_ended(self) -> bool:
        return self._body.is_ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(request(self._after))

    def data_received(self, data: bytes) -> None:
        for piece in self._body.feed(data):
            self.size += len(piece)
            self._digest.update(piece)
            self.tail = piece[-400:]

    def leave(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class SlowWatcher:
    """Asks for the events and does not read them, until told to."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)

    async def ask(self, port: int, after: int) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", port))
        await loop.sock_sendall(self._socket, request(after))

    async def drain(self) -> bytes:
        """All that is left for it, to the end of the stream."""
        loop, body, text = asyncio.get_running_loop(), Dechunker(), bytearray()
        async with asyncio.timeout(HANG):
            while not body.is_ended and (data := await loop.sock_recv(self._socket, 65_536)):
                for piece in body.feed(data):
                    text += piece
        return bytes(text)

    def leave(self) -> None:
        self._socket.close()


def request(after: int) -> bytes:
    head = f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
    return f"{head}Last-Event-ID: {after}\r\n\r\n".encode()


@asynccontextmanager
async def watching(port: int, afters: Sequence[int]) -> AsyncIterator[list[FastWatcher]]:
    """So many who read, each from where it wants to start."""
    watchers = [FastWatcher(after) for after in afters]
    loop = asyncio.get_running_loop()
    try:
        for watcher in watchers:
            await loop.create_connection(lambda watcher=watcher: watcher, "127.0.0.1", port)  # type: ignore[misc]
        yield watchers
    finally:
        for watcher in watchers:
            watcher.leave()


@asynccontextmanager
async def sleeping(port: int, afters: Sequence[int]) -> AsyncIterator[list[SlowWatcher]]:
    """So many who ask and do not read."""
    watchers = [SlowWatcher() for _ in afters]
    try:
        for watcher, after in zip(watchers, afters, strict=True):
            await watcher.ask(port, after)
        yield watchers
    finally:
        for watcher in watchers:
            watcher.leave()


async def until(question: Callable[[], bool]) -> None:
    """Wait for what no event tells."""
    async with asyncio.timeout(HANG):
        while not question():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
