"""The event hub: tells what was committed to everybody who listens, in order, each event encoded once.

A subscriber has a bounded queue of bytes. One that falls behind is told
`lagged` and let go; it comes back with its Last-Event-ID and reads the rest
from the store, which holds the truth.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.events import FINAL, Event, EventType, encode, encode_passing
from app.store import calls, events, outputs
from app.store.events import EventFilter
from app.store.writer import Told

PAGE = 500
QUEUE_BYTES = 1024 * 1024
HEARTBEAT = b": keep-alive\n\n"
ALWAYS = 1 << 62
EVERYTHING = 1 << 62


class Subscription:
    """One listener's queue."""

    __slots__ = (
        "_frames",
        "_size",
        "_wakeup",
        "is_closed",
        "is_lagged",
        "output_from",
        "since",
        "wanted",
        "with_output",
    )

    def __init__(self, wanted: EventFilter, since: int, with_output: bool) -> None:
        self.wanted = wanted
        self.since = since
        self.with_output = with_output
        self.output_from = 0
        self.is_lagged = False
        self.is_closed = False
        self._frames: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._wakeup: asyncio.Future[None] | None = None

    def push(self, frame: bytes, output_start: int | None = None) -> None:
        """Queue a frame; one of output says where it starts, so that what a replay showed is not shown again."""
        if self.is_lagged or self.is_closed:
            return
        self._size += len(frame)
        if self._size > QUEUE_BYTES and self._frames:
            self.is_lagged = True
            self._frames.clear()
        else:
            self._frames.append((ALWAYS if output_start is None else output_start, frame))
        self._wake()

    def close(self) -> None:
        """Nothing more will come; what is queued is still handed out."""
        self.is_closed = True
        self._wake()

    async def take(self, seconds: float) -> bytes:
        """All that is queued, as one piece; empty after `seconds` of silence or at the end."""
        if not self._frames and not self.is_closed and not self.is_lagged:
            loop = asyncio.get_running_loop()
            self._wakeup = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._wakeup
            finally:
                timer.cancel()
                self._wakeup = None
        taken = b"".join(frame for start, frame in self._frames if start >= self.output_from)
        self._frames.clear()
        self._size = 0
        return taken

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)


class Hub:
    """Everybody who listens. Lives on the event loop; `publish` is called by the writer after each commit."""

    def __init__(self, last_seq: int, heartbeat: float) -> None:
        self.last_seq = last_seq
        self._heartbeat = heartbeat
        self._everything: set[Subscription] = set()
        self._by_call: dict[str, set[Subscription]] = {}
        self._is_closed = False

    def publish(self, told: list[Told]) -> None:
        self.last_seq = told[-1][0].seq
        if not self._everything and not self._by_call:
            return
        for event, call in told:
            self._publish_one(event, call)

    def publish_output(self, call: Call, start: int, stream: str, data: bytes) -> None:
        """Live output of a call. It is stored as output, not as an event, so it has no number."""
        listeners = [s for s in self._listeners(call.id) if s.with_output and _may_see(s.wanted, call)]
        if not listeners:
            return
        frame = encode_output(call, start, stream, data)
        for subscription in listeners:
            subscription.push(frame, start)

    def subscribe(self, wanted: EventFilter, with_output: bool) -> Subscription:
        """Listen from now on; what was told until now is in the store up to `since`."""
        subscription = Subscription(wanted, self.last_seq, with_output)
        if self._is_closed:
            subscription.close()
        elif wanted.call is None:
            self._everything.add(subscription)
        else:
            self._by_call.setdefault(wanted.call, set()).add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._everything.discard(subscription)
        call = subscription.wanted.call
        if call is not None and call in self._by_call:
            self._by_call[call].discard(subscription)
            if not self._by_call[call]:
                del self._by_call[call]

    def close(self) -> None:
        """The service stops: every stream ends after what is queued."""
        self._is_closed = True
        for subscription in [*self._everything, *(s for some in self._by_call.values() for s in some)]:
            subscription.close()

    async def follow(
        self, engine: AsyncEngine, wanted: EventFilter, after: int | None, *, output_after: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """A stream without gap or repeat: the store first, then live. A single call's stream ends with the call."""
        subscription = self.subscribe(wanted, output_after is not None)
        cursor = subscription.since if after is None else after
        try:
            while True:
                if wanted.call is not None and await _has_ended(engine, wanted.call):
                    async for frames in _replay(engine, wanted, cursor, EVERYTHING):
                        yield frames
                    return
                async for frames in _replay(engine, wanted, cursor, subscription.since):
                    yield frames
                cursor = max(cursor, subscription.since)
                if not subscription.is_lagged:
                    break
                self.unsubscribe(subscription)  # overrun while it read the past: read on from where it is
                subscription = self.subscribe(wanted, output_after is not None)
            if output_after is not None and wanted.call is not None:
                async for frames in _replay_output(engine, subscription, wanted.call, output_after):
                    yield frames
            async for frames in self._live(subscription):
                yield frames
        finally:
            self.unsubscribe(subscription)

    async def _live(self, subscription: Subscription) -> AsyncIterator[bytes]:
        while not subscription.is_lagged:
            if frames := await subscription.take(self._heartbeat):
                yield frames
            elif subscription.is_lagged:
                break  # also when its last event has come: it is not in the queue
            elif subscription.is_closed:
                return
            else:
                yield HEARTBEAT
        yield encode_passing(EventType.LAGGED, {"reason": "too slow; reconnect with Last-Event-ID to go on"})

    def _publish_one(self, event: Event, call: Call | None) -> None:
        frame: bytes | None = None
        for subscription in self._listeners(event.call):
            if not subscription.wanted.lets_pass(event):
                continue
            frame = frame or encode(event.view(call))
            subscription.push(frame)
        if event.type in FINAL and event.call in self._by_call:
            for subscription in self._by_call[event.call]:
                subscription.close()

    def _listeners(self, call: str | None) -> list[Subscription]:
        return [*self._everything, *self._by_call.get(call or "", ())]


def encode_output(call: Call, start: int, stream: str, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    body = {"call": call.id, "session": call.session, "data": {"offset": start, "text": text, "stream": stream}}
    return encode_passing(EventType.CALL_OUTPUT, {"type": EventType.CALL_OUTPUT.value} | body)


async def _has_ended(engine: AsyncEngine, id: str) -> bool:
    call = await calls.get(engine, id, None)
    return call is None or call.is_final


async def _replay(engine: AsyncEngine, wanted: EventFilter, after: int, upto: int) -> AsyncIterator[bytes]:
    """The stored events, page by page."""
    while after < upto:
        page = await events.page(engine, wanted, after, upto, PAGE)
        after = page[-1][0].seq if len(page) == PAGE else upto
        yield b"".join(encode(event.view(call)) for event, call in page)


async def _replay_output(engine: AsyncEngine, subscription: Subscription, id: str, offset: int) -> AsyncIterator[bytes]:
    """What is stored of a call's output. Live pieces that came meanwhile are told apart by where they start."""
    call = await calls.get(engine, id, None)
    assert call is not None, "its stream is open"
    for start, stream, data in await outputs.chunks(engine, id, offset):
        subscription.output_from = start + len(data)
        yield encode_output(call, start, stream, data)


def _may_see(wanted: EventFilter, call: Call) -> bool:
    return wanted.principal in (None, call.principal) and wanted.session in (None, call.session)
