"""Leaves: the egress proxy on a real listener, and raw bytes to it and from it."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from app.core.network_policy import BoundSecret, NetworkPolicy
from app.core.sandbox import EgressGrant, NetworkDecision
from app.net.egress.proxy import EgressProxy
from app.net.egress.proxy_client import ProxyLimits
from app.net.resolver import Resolve

LOOPBACK = ("127.0.0.0/8",)
Manners = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
GUARD = 30.0
"""Seconds until a test that hangs is given up."""


async def everywhere(host: str, port: int) -> list[str]:
    """Every name of the tests is on this machine."""
    return ["127.0.0.1"]


def nothing(owner: str, name: str) -> tuple[tuple[str, ...], str] | None:
    return None


@dataclass(frozen=True)
class Heard:
    """An answer of the proxy, as its client understands it."""

    status: int
    headers: dict[str, str]
    body: bytes
    raw: bytes = field(repr=False)

    @property
    def reason(self) -> str | None:
        return self.headers.get("x-proxy-error")


@dataclass
class Way:
    """The way out as a process behind walls has it."""

    port: int
    decisions: list[NetworkDecision] = field(default_factory=list)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, data: bytes) -> bytes:
        """All that comes back for these bytes."""
        reader, writer = await self.open()
        try:
            async with asyncio.timeout(GUARD):
                writer.write(data)
                return await reader.read()
        finally:
            writer.close()

    async def ask(self, start: str, *headers: str, body: bytes = b"") -> Heard:
        head = "\r\n".join([f"{start} HTTP/1.1", *headers, "", ""]).encode()
        return hear(await self.send(head + body))

    async def connect(self, target: str) -> tuple[Heard, asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.open()
        async with asyncio.timeout(GUARD):
            writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            return hear(await reader.readuntil(b"\r\n\r\n")), reader, writer


def hear(raw: bytes) -> Heard:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
    return Heard(int(first.split(" ")[1]), headers, unchunked(body) if "transfer-encoding" in headers else body, raw)


def unchunked(data: bytes) -> bytes:
    """A body without its chunks; one that is cut off is an error."""
    whole = b""
    while True:
        line, _, data = data.partition(b"\r\n")
        size = int(line, 16)
        assert data[size : size + 2] == b"\r\n"
        if not size:
            return whole
        whole, data = whole + data[:size], data[size + 2 :]


def allowing(*domains: str) -> NetworkPolicy:
    return NetworkPolicy("allowlist", domains)


@asynccontextmanager
async def way_out(
    *domains: str,
    ports: Collection[int] = (80, 443),
    https: int = 443,
    policies: Sequence[NetworkPolicy | None] = (),
    secrets: tuple[BoundSecret, ...] = (),
    find: Callable[[str, str], tuple[tuple[str, ...], str] | None] = nothing,
    resolve: Resolve = everywhere,
    opened: Sequence[str] = LOOPBACK,
    limits: ProxyLimits | None = None,
    token: str | None = None,
    trust: ssl.SSLContext | None = None,
) -> AsyncIterator[Way]:
    """The proxy for processes that may reach these domains."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    way = Way(listener.getsockname()[1])
    proxy = EgressProxy(
        find, private_networks=opened, resolve=resolve, ports=ports, https_port=https, limits=limits, trust=trust
    )
    leave = EgressGrant(
        owner="anna",
        policies=[allowing(*domains), *policies] if domains else policies,
        report=way.decisions.append,
        secrets=secrets,
        token=token,
    )
    async with proxy.serve(listener.detach(), leave):
        yield way


@asynccontextmanager
async def echoing(*, is_silent: bool = False) -> AsyncIterator[int]:
    """A host that says what it hears, or nothing at all; the answer is its port."""

    async def host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(b"" if is_silent else data)
                await writer.drain()

    async with listening(host) as port:
        yield port


@asynccontextmanager
async def listening(
    host: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A host of these manners; the answer is its port."""
    tasks = set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await host(reader, writer)
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def read_what_comes(reader: asyncio.StreamReader) -> bytes:
    """To the end, which may be a cut."""
    got = b""
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            got = data if len(got) > 1_000_000 else got + data
    return got
