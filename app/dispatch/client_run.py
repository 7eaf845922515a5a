"""Calls that the caller's client runs: the service waits for the result until the deadline."""

import asyncio
from collections.abc import Callable

from app.core.errors import CallError, TimedOut
from app.core.results import Result

SECOND = 1_000_000


class ClientRun:
    """The wait for a client's result: how many seconds it has, and how many are left."""

    __slots__ = ("_answer", "_left", "_seconds")

    def __init__(self, seconds: float, left: float | None = None) -> None:
        self._seconds = seconds
        self._left = seconds if left is None else left
        self._answer: asyncio.Future[Result | CallError] = asyncio.get_running_loop().create_future()

    @property
    def is_answered(self) -> bool:
        return self._answer.done() and not self._answer.cancelled()

    def deadline(self, started_at: int) -> int:
        return started_at + int(self._seconds * SECOND)

    def answer(self, outcome: Result | CallError) -> None:
        self._answer.set_result(outcome)

    async def result(self, tool: str, stop: Callable[[CallError], None]) -> Result:
        """Wait for the client; at the deadline `stop` is called with the error."""
        late = TimedOut(f"The client that runs {tool} posted no result within {self._seconds:g} s.")
        timer = asyncio.get_running_loop().call_later(self._left, stop, late)
        try:
            outcome = await self._answer
        finally:
            timer.cancel()
        if isinstance(outcome, CallError):
            raise outcome
        return outcome


def resume_client_run(started_at: int, deadline: int, now: int) -> ClientRun:
    """The rest of a wait that an earlier start began. A clock that was set back gives the client no extra time."""
    whole = deadline - started_at
    return ClientRun(whole / SECOND, min(max(deadline - now, 0), whole) / SECOND)
