"""Queues of subscribers. Frames are shared by all queues; each queue is bounded."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

from app.core.events import Event
from app.store.events import EventFilter

PIECE_BYTES = 32 * 1024
MAX_QUEUE_BYTES = 1024 * 1024
MAX_RECENT_BYTES = 8 * 1024 * 1024
REPLAY_BYTES = 128 * 1024
MAX_LARGE_LOADS = 4
NO_OFFSET = 1 << 62


class Frame:
    """An encoded event, shared by the queues it is in. An output frame has its offsets and can be cut, so that what a
    replay sent is not sent again."""

    __slots__ = ("_rest", "_start", "_stop", "data", "holders")

    def __init__(
        self, data: bytes, start: int = NO_OFFSET, stop: int = NO_OFFSET, rest: Callable[[int], bytes] | None = None
    ) -> None:
        self.data = data
        self.holders = 0
        self._start = start
        self._stop = stop
        self._rest = rest

    def after(self, offset: int) -> bytes:
        """The part of the frame after this offset of the output."""
        if self._start >= offset:
            return self.data
        return self._rest(offset) if self._rest is not None and offset < self._stop else b""


class QueueUsage:
    """Bytes in all queues together, each frame counted once, and how many queues were cut."""

    __slots__ = ("cuts", "size")

    def __init__(self) -> None:
        self.size = 0
        self.cuts = 0

    def add(self, frame: Frame) -> None:
        if not frame.holders:
            self.size += len(frame.data)
        frame.holders += 1

    def remove(self, frame: Frame) -> None:
        frame.holders -= 1
        if not frame.holders:
            self.size -= len(frame.data)


class RecentEvents:
    """The last events that were published live, without a gap; subscribers that were cut read them again."""

    __slots__ = ("_events", "_size")

    def __init__(self) -> None:
        self._events: deque[tuple[Event, bytes]] = deque()
        self._size = 0

    def put(self, event: Event, frame: bytes) -> None:
        if self._events and self._events[-1][0].seq != event.seq - 1:
            self._events.clear()
            self._size = 0
        self._events.append((event, frame))
        self._size += len(frame)
        while self._size > MAX_RECENT_BYTES:
            self._size -= len(self._events.popleft()[1])

    def after(self, seq: int, upto: int) -> list[tuple[Event, bytes]]:
        """The next events after this one, up to a few bytes, so that old frames are not kept in memory."""
        begin = seq + 1 - self._events[0][0].seq if self._events else -1
        if begin < 0:
            return []
        events, size = list[tuple[Event, bytes]](), 0
        for event, frame in islice(self._events, begin, None):
            if event.seq > upto or (events and size + len(frame) > REPLAY_BYTES):
                break
            events.append((event, frame))
            size += len(frame)
        return events


class LargeEventLoads:
    """Large events that are being replayed: each is loaded once for all streams, and only a few at a time."""

    __slots__ = ("_room", "_shared")

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MAX_LARGE_LOADS)
        self._shared: dict[int, _Shared] = {}

    async def take(self, seq: int, load: Callable[[], Awaitable[bytes]]) -> bytes:
        """The frame of an event; the caller releases it with `give`."""
        shared = self._shared.setdefault(seq, _Shared())
        shared.holders += 1
        try:
            async with shared.loading:
                if not shared.has_room:
                    await self._room.acquire()
                    shared.has_room = True
                if shared.data is None:
                    shared.data = await load()
        except BaseException:
            self.release(seq)
            raise
        return shared.data

    def release(self, seq: int) -> None:
        shared = self._shared[seq]
        shared.holders -= 1
        if not shared.holders:
            del self._shared[seq]
            if shared.has_room:
                self._room.release()


class _Shared:
    __slots__ = ("data", "has_room", "holders", "loading")

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.holders = 0
        self.has_room = False
        self.loading = asyncio.Lock()


class Subscription:
    """One subscriber's queue."""

    __slots__ = (
        "_frames",
        "_silent_at",
        "_timer",
        "_usage",
        "_wakeup",
        "is_closed",
        "is_lagged",
        "output_from",
        "since",
        "size",
        "wanted",
        "with_output",
    )

    def __init__(self, wanted: EventFilter, since: int, with_output: bool, usage: QueueUsage) -> None:
        self.wanted = wanted
        self.since = since
        self.with_output = with_output
        self.output_from = 0
        self.is_lagged = False
        self.is_closed = False
        self.size = 0
        self._frames: deque[Frame] = deque()
        self._usage = usage
        self._wakeup: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silent_at = 0.0

    def push(self, frame: Frame) -> None:
        if self.is_lagged or self.is_closed:
            return
        self.size += len(frame.data)
        if self.size > MAX_QUEUE_BYTES and self._frames:
            self.cut()
            return
        self._frames.append(frame)
        self._usage.add(frame)
        self._wake()

    def cut(self) -> None:
        """Too slow: drop the queue; the subscriber gets `lagged`."""
        self.is_lagged = True
        self._usage.cuts += 1
        self.drop()
        self._wake()

    def drop(self) -> None:
        while self._frames:
            self._usage.remove(self._frames.popleft())
        self.size = 0

    def close(self) -> None:
        """Nothing more will come; what is queued is still handed out."""
        self.is_closed = True
        self._wake()

    async def take(self, seconds: float) -> bytes:
        """The next frames, as one bounded piece unless a single frame is larger; empty after `seconds` without events
        or at the end."""
        if not self._frames and not self.is_closed and not self.is_lagged:
            loop = asyncio.get_running_loop()
            self._wakeup = loop.create_future()
            self._set_timer(loop, loop.time() + seconds)
            try:
                await self._wakeup
            finally:
                self._wakeup = None
        taken, size = list[bytes](), 0
        while self._frames and (not taken or size + len(self._frames[0].data) <= PIECE_BYTES):
            frame = self._frames.popleft()
            self._usage.remove(frame)
            self.size -= len(frame.data)
            if left := frame.after(self.output_from):
                taken.append(left)
                size += len(left)
        return b"".join(taken)

    def leave(self) -> None:
        """The subscriber has left."""
        self.drop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, loop: asyncio.AbstractEventLoop, silent_at: float) -> None:
        """One timer serves many waits: replaced only for an earlier time, and postponed when it fires too early."""
        self._silent_at = silent_at
        if self._timer is not None and self._timer.when() <= silent_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(silent_at, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._wakeup is None:
            return
        if loop.time() < self._silent_at:
            self._timer = loop.call_at(self._silent_at, self._on_timer, loop)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
