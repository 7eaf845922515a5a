"""One client connection of the egress proxy."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from app.core.sandbox import EgressGrant, NetworkDecision
from app.net.egress.errors import Refused, to_answer
from app.net.egress.http1 import PIECE
from app.net.egress.limits import ProxyLimits
from app.net.egress.policy import EgressPolicy
from app.net.egress.target import Target
from app.net.egress.tcp import end_output, send
from app.net.secret_placeholders import Find

LINGER_SECONDS = 2.0


LINGER_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyDeps:
    """What a connection is served with. `https`: the port where only TLS passes, and where aliases lead."""

    admission: EgressPolicy
    find: Find
    trust: Callable[[], Awaitable[ssl.SSLContext]]
    limits: ProxyLimits
    https: int


@dataclass(slots=True)
class ProxyClient:
    """Who asks. Of each caller one decision is told, as soon as it is known what was asked for."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    leave: EgressGrant
    asked: Target | None = None
    has_answered: bool = False
    _is_told: bool = field(default=False, init=False)

    def tell(self, is_allowed: bool, reason: str) -> None:
        if self.asked is not None and not self._is_told:
            self._is_told = True
            self.leave.report(NetworkDecision(self.asked.host, self.asked.port, is_allowed, reason))

    async def send(self, data: bytes) -> None:
        await send(self.writer, data)

    async def refuse(self, refused: Refused) -> None:
        """Say no, or cut the connection when something else was said already."""
        self.tell(refused.is_allowed, refused.reason)
        if self.has_answered:
            self.writer.transport.abort()
            return
        self.has_answered = True
        await self.send(to_answer(refused))
        await self.linger()

    async def linger(self) -> None:
        """Take what is still being sent: a connection closed before that would take the answer with it."""
        end_output(self.writer)
        left = LINGER_BYTES
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while left > 0 and (data := await self.reader.read(PIECE)):
                    left -= len(data)
        except TimeoutError:
            return
