"""Calls that the caller's own client runs: here they are only waited for, until their deadline."""

import asyncio
from collections.abc import Callable

from app.core.errors import CallError, TimedOut
from app.core.results import Result

SECOND = 1_000_000


class ClientRun:
    """What a client has to do: within how many seconds, how many of them are left, and what came of it."""

    __slots__ = ("_given", "_left", "_seconds")

    def __init__(self, seconds: float, left: float | None = None) -> None:
        self._seconds = seconds
        self._left = seconds if left is None else left
        self._given: asyncio.Future[Result | CallError] = asyncio.get_running_loop().create_future()

    @property
    def is_answered(self) -> bool:
        return self._given.done() and not self._given.cancelled()

    def deadline(self, started_at: int) -> int:
        return started_at + int(self._seconds * SECOND)

    def answer(self, given: Result | CallError) -> None:
        self._given.set_result(given)

    async def result(self, tool: str, stop: Callable[[CallError], None]) -> Result:
        """Wait for the client; when its time is over, the call is told to stop."""
        late = TimedOut(f"The client that runs {tool} posted no result within {self._seconds:g} s.")
        timer = asyncio.get_running_loop().call_later(self._left, stop, late)
        try:
            given = await self._given
        finally:
            timer.cancel()
        if isinstance(given, CallError):
            raise given
        return given


def left_of(started_at: int, deadline: int, now: int) -> ClientRun:
    """What an earlier start left for the client to do. A clock that was set back gives it no more time than it had."""
    whole = deadline - started_at
    return ClientRun(whole / SECOND, min(max(deadline - now, 0), whole) / SECOND)
