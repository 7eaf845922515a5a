"""Peers: real HTTP servers on loopback that answer what a test says, byte by byte, and remember what they were sent."""

import asyncio
import inspect
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl


@dataclass(frozen=True)
class Seen:
    """A request as it came over the wire."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""
    reader: asyncio.StreamReader | None = field(default=None, compare=False, repr=False)

    async def left(self) -> None:
        """Wait until who asked has gone."""
        assert self.reader is not None
        await self.reader.read()

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> list[tuple[str, str]]:
        return parse_qsl(self.target.partition("?")[2], keep_blank_values=True)


Reply = Callable[[Seen, asyncio.StreamWriter], bytes | Awaitable[bytes]]


def reply(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    """An answer as bytes."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(location: str, status: int = 302) -> bytes:
    return reply(b"look there", f"{status} Moved", f"Location: {location}")


@dataclass
class Peer:
    """Answers each path with what `pages` holds for it: bytes, or a function of the request; any other `otherwise`."""

    port: int = 0
    pages: dict[str, bytes | Reply] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    otherwise: bytes = reply(b"nothing here", "404 Not Found")

    def url(self, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while request := await _read(reader):
                self.seen.append(request)
                page = self.pages.get(request.path, self.otherwise)
                answer = page if isinstance(page, bytes) else page(request, writer)
                writer.write(await answer if inspect.isawaitable(answer) else answer)
                await writer.drain()
                if request.headers.get("connection") == "close":
                    break
        except ConnectionError:
            pass  # who asked has gone
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    try:
        start = await reader.readexactly(1)
        if not start.isalpha():
            return None  # no HTTP
        head = (start + await reader.readuntil(b"\r\n\r\n")).decode("utf-8")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(method, target, headers, body, reader)


@asynccontextmanager
async def serving(
    pages: Mapping[str, bytes | Reply] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncIterator[Peer]:
    """A peer on a free port, or on this one."""
    peer = Peer(pages=dict(pages or {}))
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(peer._answer(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, port, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
