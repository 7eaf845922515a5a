"""Callers of the egress proxy: one connection from behind walls, and what it is served with."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from app.core.walls import Decision, Leave
from app.net.admission import Admission
from app.net.bodies import PIECE
from app.net.meters import Limits
from app.net.placeholders import Find
from app.net.refusals import Refused, to_answer
from app.net.streams import end_output, send
from app.net.targets import Target

LINGER_SECONDS = 2.0
LINGER_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a connection is served with. `https`: the port where only TLS passes, and where aliases lead."""

    admission: Admission
    find: Find
    trust: Callable[[], Awaitable[ssl.SSLContext]]
    limits: Limits
    https: int


@dataclass(slots=True)
class Caller:
    """Who asks. Of each caller one decision is told, as soon as it is known what was asked for."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    leave: Leave
    asked: Target | None = None
    has_answered: bool = False
    _is_told: bool = field(default=False, init=False)

    def tell(self, is_allowed: bool, reason: str) -> None:
        if self.asked is not None and not self._is_told:
            self._is_told = True
            self.leave.tell(Decision(self.asked.host, self.asked.port, is_allowed, reason))

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
