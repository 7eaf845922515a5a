"""Turns: how many calls a server gets at once, and how many wait for their turn."""

import asyncio
from collections import deque
from types import TracebackType

from app.core.errors import Overloaded


class Turns:
    """Places that are given out in the order they were asked for. Whoever finds the line full is told so at once."""

    def __init__(self, name: str, places: int, line: int) -> None:
        self._name = name
        self._free = places
        self._most = line
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        if len(self._waiting) >= self._most:
            raise Overloaded(
                f"The MCP server {self._name} has as many calls as it takes, and {self._most:,} wait; try again later."
            )
        await self._wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass_on()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()  # it came in the very moment nobody wanted it any more
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def _pass_on(self) -> None:
        """The place goes to who waits longest, and is free only when nobody does."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
