"""HTTP by hand, on raw sockets: fast, kept alive, and cut wherever a test wants."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.faults.fault_service import KEY
from tests.faults.service_processes import HANG

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> Body:
        body: Body = json.loads(self.content)
        return body


class Wire:
    """One kept-alive connection. A service that dies raises `OSError` or `EOFError` here."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def call(self, asked: Body, wait: float | None = None, key: str | None = None) -> Answer:
        path = "/v1/calls" if wait is None else f"/v1/calls?wait={wait:g}"
        return await self.ask("POST", path, asked, {"Idempotency-Key": key} if key else {})

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, None, headers)

    async def ask(self, method: str, path: str, body: Body | None, headers: dict[str, str]) -> Answer:
        async with asyncio.timeout(HANG):
            await self.send(method, path, body, headers)
            status, given = await self.read_head()
            return Answer(status, given, await self.reader.readexactly(int(given["content-length"])))

    async def send(self, method: str, path: str, body: Body | None, headers: dict[str, str]) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {KEY}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}", "", ""]
        self.writer.write("\r\n".join(lines).encode() + content)
        await self.writer.drain()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        named = (line.partition(":") for line in head[1:] if line)
        return int(head[0].split(" ")[1]), {name.lower(): value.strip() for name, _, value in named}

    def cut(self) -> None:
        """Gone, without a word."""
        self.writer.transport.abort()


@asynccontextmanager
async def wired(port: int) -> AsyncIterator[Wire]:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield wire
    finally:
        wire.cut()


class Stream:
    """An event stream, read as bytes: whole frames are kept, what was cut in the middle is not."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._raw = b""
        self._text = b""

    async def open(self, path: str, after: int | None = None) -> None:
        headers = {"Accept": "text/event-stream"} | ({} if after is None else {"Last-Event-ID": str(after)})
        async with asyncio.timeout(HANG):
            await self._wire.send("GET", path, None, headers)
            status, given = await self._wire.read_head()
        assert (status, given["transfer-encoding"]) == (200, "chunked"), (status, given)

    async def frames(self, most: int = 65_536) -> list[bytes]:
        """The frames that the next bytes complete. `EOFError` when there are no more bytes."""
        if self._raw.startswith(b"0\r\n"):
            raise StreamEnded
        data = await self._wire.reader.read(most)
        if not data:
            raise EOFError
        self._raw += data
        self._dechunk()
        *frames, self._text = self._text.split(b"\n\n")
        return frames

    async def follow(self) -> AsyncIterator[bytes]:
        """Frame by frame, to the end that the service gives it."""
        with suppress(StreamEnded):
            while True:
                for frame in await self.frames():
                    yield frame

    def _dechunk(self) -> None:
        while True:
            head, _, rest = self._raw.partition(b"\r\n")
            size = int(head, 16) if rest else 0
            if not size or len(rest) < size + 2:
                return
            self._text += rest[:size]
            self._raw = rest[size + 2 :]


class StreamEnded(EOFError):
    """The service has ended the stream in good order."""


@asynccontextmanager
async def streamed(port: int, path: str, after: int | None = None) -> AsyncIterator[Stream]:
    async with wired(port) as wire:
        stream = Stream(wire)
        await stream.open(path, after)
        yield stream


def id_of(frame: bytes) -> int | None:
    """The sequence number of a stored event; None for what has none."""
    return int(frame[4 : frame.index(b"\n")]) if frame.startswith(b"id: ") else None


def data_of(frame: bytes) -> Body:
    data: Body = json.loads(next(line[6:] for line in frame.split(b"\n") if line.startswith(b"data: ")))
    return data


GONE = (OSError, EOFError)
