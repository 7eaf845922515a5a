"""Tellings: a call's output as it is told to those who listen while it runs, at most twenty times a second.

What comes in quick succession is told as one piece. What two streams wrote in turns, in more pieces than may be told,
is told as one that is `mixed`. Where nobody listens nothing is held: who comes later reads what is stored.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from app.core.calls import Call

MIXED = "mixed"
BURST = 5
A_SECOND = 15.0
"""Together they are the most that is told within any second."""


class OutputListeners(Protocol):
    """Who listens."""

    def hears_output(self, call: Call) -> bool: ...

    def publish_output(self, call: Call, start: int, stream: str, data: bytes) -> None: ...


class _Run(NamedTuple):
    """Neighbouring pieces of one stream."""

    start: int
    stream: str
    pieces: list[bytes]


class OutputThrottle:
    """Each telling takes one from a store of allowances that fills up again. The last one is kept for the end."""

    def __init__(self, call: Call, hub: OutputListeners) -> None:
        self._call = call
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._runs: deque[_Run] = deque()
        self._allowed = float(BURST)
        self._counted_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, rows: Iterable[tuple[int, str, bytes]]) -> None:
        """These pieces are stored now, one after the other and after all before."""
        if not self._hub.hears_output(self._call):
            self._forget()
            return
        for start, stream, data in rows:
            if self._runs and self._runs[-1].stream == stream:
                self._runs[-1].pieces.append(data)
            else:
                self._runs.append(_Run(start, stream, [data]))
        if self._timer is None:
            self._go_on()

    def finish(self) -> None:
        """Nothing more comes, so that nothing is waited for."""
        self._count()
        self._publish(kept=0)
        self._forget()

    def _go_on(self) -> None:
        self._timer = None
        self._count()
        self._publish(kept=1)
        if self._runs:
            self._timer = self._loop.call_later(max(2 - self._allowed, 0) / A_SECOND, self._go_on)

    def _publish(self, kept: int) -> None:
        """As much as is allowed; when there are more runs than that, the last telling has all that are left."""
        while self._runs and self._allowed >= 1 + kept:
            self._allowed -= 1
            if len(self._runs) > 1 and self._allowed < 1 + kept:
                self._publish_all()
            else:
                self._publish_one(self._runs.popleft())

    def _publish_all(self) -> None:
        pieces = [piece for run in self._runs for piece in run.pieces]
        self._publish_one(_Run(self._runs[0].start, MIXED, pieces))
        self._runs.clear()

    def _publish_one(self, run: _Run) -> None:
        self._hub.publish_output(self._call, run.start, run.stream, b"".join(run.pieces))

    def _count(self) -> None:
        now = self._loop.time()
        self._allowed = min(BURST, self._allowed + (now - self._counted_at) * A_SECOND)
        self._counted_at = now

    def _forget(self) -> None:
        self._runs.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
