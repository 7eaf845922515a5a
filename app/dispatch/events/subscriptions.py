"""Subscriptions: what waits for those who listen. Frames are shared by all queues; what a queue holds is bounded."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

from app.core.events import Event
from app.store.events import EventFilter

PIECE = 32 * 1024
QUEUE_BYTES = 1024 * 1024
RECENT_BYTES = 8 * 1024 * 1024
REPLAY_BYTES = 128 * 1024
HUGE_AT_ONCE = 4
ALWAYS = 1 << 62


class Frame:
    """An encoded event, one for all the queues it waits in. One of output says where it starts and stops, and can be
    told from a place in between on, so that what a replay showed is not shown again."""

    __slots__ = ("_rest", "_start", "_stop", "data", "holders")

    def __init__(
        self, data: bytes, start: int = ALWAYS, stop: int = ALWAYS, rest: Callable[[int], bytes] | None = None
    ) -> None:
        self.data = data
        self.holders = 0
        self._start = start
        self._stop = stop
        self._rest = rest

    def after(self, offset: int) -> bytes:
        """What is left of it behind this place of the output."""
        if self._start >= offset:
            return self.data
        return self._rest(offset) if self._rest is not None and offset < self._stop else b""


class QueueUsage:
    """How much waits in all queues together, each frame counted once, and how many queues were given up."""

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
    """The last events that were told live, without a gap. Those who were cut all come back for the same ones."""

    __slots__ = ("_size", "_told")

    def __init__(self) -> None:
        self._told: deque[tuple[Event, bytes]] = deque()
        self._size = 0

    def put(self, event: Event, frame: bytes) -> None:
        if self._told and self._told[-1][0].seq != event.seq - 1:
            self._told.clear()
            self._size = 0
        self._told.append((event, frame))
        self._size += len(frame)
        while self._size > RECENT_BYTES:
            self._size -= len(self._told.popleft()[1])

    def after(self, seq: int, upto: int) -> list[tuple[Event, bytes]]:
        """The next ones behind an event: not many bytes, so that who holds them does not keep the past alive."""
        begin = seq + 1 - self._told[0][0].seq if self._told else -1
        if begin < 0:
            return []
        found, size = list[tuple[Event, bytes]](), 0
        for event, frame in islice(self._told, begin, None):
            if event.seq > upto or (found and size + len(frame) > REPLAY_BYTES):
                break
            found.append((event, frame))
            size += len(frame)
        return found


class LargeEventLoads:
    """Huge events that are being replayed: each is there once for all who are at it, and only some are at a time."""

    __slots__ = ("_room", "_shared")

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(HUGE_AT_ONCE)
        self._shared: dict[int, _Shared] = {}

    async def take(self, seq: int, load: Callable[[], Awaitable[bytes]]) -> bytes:
        """The frame of an event; who took it gives it back."""
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
            self.give(seq)
            raise
        return shared.data

    def give(self, seq: int) -> None:
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
    """One listener's queue."""

    __slots__ = (
        "_frames",
        "_held",
        "_silent_at",
        "_timer",
        "_wakeup",
        "is_closed",
        "is_lagged",
        "output_from",
        "since",
        "size",
        "wanted",
        "with_output",
    )

    def __init__(self, wanted: EventFilter, since: int, with_output: bool, held: QueueUsage) -> None:
        self.wanted = wanted
        self.since = since
        self.with_output = with_output
        self.output_from = 0
        self.is_lagged = False
        self.is_closed = False
        self.size = 0
        self._frames: deque[Frame] = deque()
        self._held = held
        self._wakeup: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silent_at = 0.0

    def push(self, frame: Frame) -> None:
        if self.is_lagged or self.is_closed:
            return
        self.size += len(frame.data)
        if self.size > QUEUE_BYTES and self._frames:
            self.cut()
            return
        self._frames.append(frame)
        self._held.add(frame)
        self._wake()

    def cut(self) -> None:
        """Too slow: what is queued is given up, and the listener is told so."""
        self.is_lagged = True
        self._held.cuts += 1
        self.drop()
        self._wake()

    def drop(self) -> None:
        while self._frames:
            self._held.remove(self._frames.popleft())
        self.size = 0

    def close(self) -> None:
        """Nothing more will come; what is queued is still handed out."""
        self.is_closed = True
        self._wake()

    async def take(self, seconds: float) -> bytes:
        """The next frames, as one piece that is not large unless its one frame is; empty after `seconds` of silence
        or at the end."""
        if not self._frames and not self.is_closed and not self.is_lagged:
            loop = asyncio.get_running_loop()
            self._wakeup = loop.create_future()
            self._listen_until(loop, loop.time() + seconds)
            try:
                await self._wakeup
            finally:
                self._wakeup = None
        taken, size = list[bytes](), 0
        while self._frames and (not taken or size + len(self._frames[0].data) <= PIECE):
            frame = self._frames.popleft()
            self._held.remove(frame)
            self.size -= len(frame.data)
            if left := frame.after(self.output_from):
                taken.append(left)
                size += len(left)
        return b"".join(taken)

    def leave(self) -> None:
        """Nobody listens any more."""
        self.drop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _listen_until(self, loop: asyncio.AbstractEventLoop, silent_at: float) -> None:
        """One timer serves many waits: made anew only for an earlier time, and put off when it comes too soon."""
        self._silent_at = silent_at
        if self._timer is not None and self._timer.when() <= silent_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(silent_at, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._wakeup is None:
            return
        if loop.time() < self._silent_at:
            self._timer = loop.call_at(self._silent_at, self._ring, loop)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
