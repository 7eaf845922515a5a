"""A client connection of the egress proxy: its grant, its limits, and what is reported of it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.core.sandbox import EgressGrant, NetworkDecision
from app.net.egress.errors import Refused, error_response
from app.net.egress.http1 import READ_BYTES
from app.net.egress.policy import EgressPolicy
from app.net.egress.target import Target
from app.net.egress.tcp import end_output, send
from app.net.secret_placeholders import Find

LINGER_SECONDS = 2.0
MAX_LINGER_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """Limits of one connection, and of the number of connections of a grant; further ones wait."""

    connections: int = 64
    head_seconds: float = 10.0
    idle_seconds: float = 600.0
    total_seconds: float = 3600.0
    bytes: int = 1024 * 1024 * 1024


class OverLimit(Exception):
    """A connection has exceeded a limit."""


class ByteMeter:
    """Counts the bytes of a connection in both directions, and enforces the idle and total timeouts."""

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits
        self._clock: asyncio.Timeout | None = None
        self._end = 0.0
        self.bytes = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises `TimeoutError`."""
        now = asyncio.get_running_loop().time()
        self._end = now + self._limits.total_seconds
        async with asyncio.timeout_at(min(self._end, now + self._limits.idle_seconds)) as self._clock:
            yield

    def add(self, count: int) -> None:
        """Count transferred bytes. Raises `OverLimit`."""
        self.bytes += count
        if self.bytes > self._limits.bytes:
            raise OverLimit
        if self._clock is not None and not self._clock.expired():
            now = asyncio.get_running_loop().time()
            self._clock.reschedule(min(self._end, now + self._limits.idle_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyDeps:
    """What all connections share. `https_port` carries only TLS, and is the port of secret hosts."""

    policy: EgressPolicy
    find: Find
    trust: Callable[[], Awaitable[ssl.SSLContext]]
    limits: ProxyLimits
    https_port: int


@dataclass(slots=True)
class ProxyClient:
    """One connection of a sandboxed process. One decision is reported for it, once its target is known."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    grant: EgressGrant
    target: Target | None = None
    has_response: bool = False
    _is_reported: bool = field(default=False, init=False)

    def report(self, is_allowed: bool, reason: str) -> None:
        if self.target is not None and not self._is_reported:
            self._is_reported = True
            self.grant.report(NetworkDecision(self.target.host, self.target.port, is_allowed, reason))

    async def send(self, data: bytes) -> None:
        await send(self.writer, data)

    async def refuse(self, refused: Refused) -> None:
        """Send an error response, or abort the connection when a response has been started."""
        self.report(refused.is_allowed, refused.reason)
        if self.has_response:
            self.writer.transport.abort()
            return
        self.has_response = True
        await self.send(error_response(refused))
        await self.linger()

    async def linger(self) -> None:
        """Read what is still being sent: closing earlier would reset the connection and lose the response."""
        end_output(self.writer)
        left = MAX_LINGER_BYTES
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while left > 0 and (data := await self.reader.read(READ_BYTES)):
                    left -= len(data)
        except TimeoutError:
            return
