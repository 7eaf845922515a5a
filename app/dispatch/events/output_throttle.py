"""Throttles the live output of a call: at most twenty `call.output` events in any second.

Output in quick succession is published as one chunk. When two streams alternate in more chunks than may be published,
they become one chunk of the stream `mixed`. Without a listener nothing is held: later ones read what is stored.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from app.core.calls import Call

MIXED = "mixed"
BURST = 5
PER_SECOND = 15.0
"""Together they are the most events within any second."""


class OutputListeners(Protocol):
    """The subscribers of a call's output."""

    def has_output_listeners(self, call: Call) -> bool: ...

    def publish_output(self, call: Call, start: int, stream: str, data: bytes) -> None: ...


class _Run(NamedTuple):
    """Consecutive chunks of one stream."""

    start: int
    stream: str
    chunks: list[bytes]


class OutputThrottle:
    """A token bucket: each event takes a token. The last token is reserved for the end of the call."""

    def __init__(self, call: Call, hub: OutputListeners) -> None:
        self._call = call
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._runs: deque[_Run] = deque()
        self._tokens = float(BURST)
        self._counted_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def publish(self, rows: Iterable[tuple[int, str, bytes]]) -> None:
        """Publish chunks that are stored now, in order and after all before."""
        if not self._hub.has_output_listeners(self._call):
            self._clear()
            return
        for start, stream, data in rows:
            if self._runs and self._runs[-1].stream == stream:
                self._runs[-1].chunks.append(data)
            else:
                self._runs.append(_Run(start, stream, [data]))
        if self._timer is None:
            self._flush()

    def finish(self) -> None:
        """No more output comes: publish the rest without waiting."""
        self._refill()
        self._publish_allowed(reserved=0)
        self._clear()

    def _flush(self) -> None:
        self._timer = None
        self._refill()
        self._publish_allowed(reserved=1)
        if self._runs:
            self._timer = self._loop.call_later(max(2 - self._tokens, 0) / PER_SECOND, self._flush)

    def _publish_allowed(self, reserved: int) -> None:
        """As many events as tokens allow; with more runs than tokens, the last event has all that are left."""
        while self._runs and self._tokens >= 1 + reserved:
            self._tokens -= 1
            if len(self._runs) > 1 and self._tokens < 1 + reserved:
                chunks = [chunk for run in self._runs for chunk in run.chunks]
                self._publish_one(_Run(self._runs[0].start, MIXED, chunks))
                self._runs.clear()
            else:
                self._publish_one(self._runs.popleft())

    def _publish_one(self, run: _Run) -> None:
        self._hub.publish_output(self._call, run.start, run.stream, b"".join(run.chunks))

    def _refill(self) -> None:
        now = self._loop.time()
        self._tokens = min(BURST, self._tokens + (now - self._counted_at) * PER_SECOND)
        self._counted_at = now

    def _clear(self) -> None:
        self._runs.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
