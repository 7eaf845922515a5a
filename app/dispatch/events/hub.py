"""The event hub: sends committed events to all subscribers, in order, each event encoded once.

A subscriber that falls behind gets `lagged` and is disconnected; it reconnects with its Last-Event-ID and reads the
rest from the store. Memory is bounded: each queue by its bytes, all queues together by the bytes of the frames in
them, a replay by how much it reads at a time.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.events import FINAL, Event, EventType, encode, encode_passing
from app.dispatch.events.subscriptions import (
    PIECE_BYTES,
    REPLAY_BYTES,
    Frame,
    LargeEventLoads,
    QueueUsage,
    RecentEvents,
    Subscription,
)
from app.store import calls, events, outputs
from app.store.events import EventFilter, Span
from app.store.writer import CommittedEvent

PAGE_SIZE = 500
MAX_QUEUED_BYTES = 64 * 1024 * 1024
LARGE_EVENT_BYTES = 1024 * 1024
HEARTBEAT = b": keep-alive\n\n"
NO_LIMIT = 1 << 62
LAGGED = encode_passing(EventType.LAGGED, {"reason": "too slow; reconnect with Last-Event-ID to continue"})


class HasOwner(Protocol):
    """Something that belongs to a session."""

    @property
    def principal(self) -> str: ...

    @property
    def session(self) -> str: ...


class TerminalOwner(HasOwner, Protocol):
    """A terminal, and the call that opened it."""

    @property
    def id(self) -> int: ...

    @property
    def call(self) -> str: ...


class _Overtaken(Exception):
    """Retention removed what a stream had not read yet."""


class EventHub:
    """All subscribers. Lives on the event loop; the writer calls `publish` after each commit.

    `floor` is the highest number that retention may have removed: above it the log is complete.
    """

    def __init__(self, last_seq: int, floor: int, heartbeat: float) -> None:
        self.last_seq = last_seq
        self.floor = floor
        self._heartbeat = heartbeat
        self._usage = QueueUsage()
        self._recent = RecentEvents()
        self._large_events = LargeEventLoads()
        self._all_calls: set[Subscription] = set()
        self._by_call: dict[str, set[Subscription]] = {}
        self._is_closed = False

    def publish(self, committed: list[CommittedEvent]) -> None:
        self.last_seq = committed[-1][0].seq
        if not self._all_calls and not self._by_call:
            return
        for event, call in committed:
            self._publish_one(event, call)
        self._relieve()

    def publish_output(self, call: Call, start: int, stream: str, data: bytes) -> None:
        """Live output of a call. It is stored as output, not as an event, so it has no number."""
        listeners = self._output_listeners(call)
        if not listeners:
            return

        def rest(offset: int) -> bytes:
            return encode_output(call, offset, stream, data[offset - start :])

        frame = Frame(rest(start), start, start + len(data), rest)
        for subscription in listeners:
            subscription.push(frame)
        self._relieve()

    def has_output_listeners(self, call: Call) -> bool:
        """Whether a subscriber wants the output of this call."""
        return bool(self._output_listeners(call))

    def publish_terminal(self, at: TerminalOwner, start: int, text: str) -> None:
        """Live output of a terminal, for subscribers that asked for it. It is not stored."""
        wanting = [s for s in self._all_calls if EventType.TERMINAL_OUTPUT in (s.wanted.types or ())]
        listeners = [s for s in wanting if _may_see(s.wanted, at)]
        if not listeners:
            return
        frame = Frame(encode_terminal(at, start, text))
        for subscription in listeners:
            subscription.push(frame)
        self._relieve()

    def subscribe(self, wanted: EventFilter, with_output: bool) -> Subscription:
        """Subscribe to events from now on; earlier ones are in the store up to `since`."""
        subscription = Subscription(wanted, self.last_seq, with_output, self._usage)
        if self._is_closed:
            subscription.close()
        elif wanted.call is None:
            self._all_calls.add(subscription)
        else:
            self._by_call.setdefault(wanted.call, set()).add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        subscription.leave()
        self._all_calls.discard(subscription)
        call = subscription.wanted.call
        if call is not None and call in self._by_call:
            self._by_call[call].discard(subscription)
            if not self._by_call[call]:
                del self._by_call[call]

    def close(self) -> None:
        """The service stops: every stream ends after what is queued."""
        self._is_closed = True
        for subscription in self._all():
            subscription.close()

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._all_calls) + sum(map(len, self._by_call.values()))

    @property
    def overruns(self) -> int:
        """How many streams were cut because they were too slow."""
        return self._usage.cuts

    @property
    def largest_queue(self) -> int:
        """Bytes in the longest queue."""
        return max((subscription.size for subscription in self._all()), default=0)

    async def follow(
        self, engine: AsyncEngine, wanted: EventFilter, after: int | None, *, output_after: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """A stream without gap or repeat: the store first, then live. A single call's stream ends with the call."""
        subscription = self.subscribe(wanted, output_after is not None)
        cursor = subscription.since if after is None else after
        try:
            while True:
                is_over = wanted.call is not None and await _has_ended(engine, wanted.call)
                upto = NO_LIMIT if is_over else subscription.since
                async with aclosing(self._replay(engine, wanted, cursor, upto)) as replay:
                    async for frames in replay:
                        yield frames
                if is_over:
                    return
                cursor = max(cursor, subscription.since)
                if not subscription.is_lagged:
                    break
                self.unsubscribe(subscription)  # overrun during the replay: continue from the cursor
                subscription = self.subscribe(wanted, output_after is not None)
            if output_after is not None and wanted.call is not None:
                async for frames in _replay_output(engine, subscription, wanted.call, output_after):
                    yield frames
            async for frames in self._live(subscription):
                yield frames
        except _Overtaken:
            yield LAGGED
        finally:
            self.unsubscribe(subscription)

    def has_lost(self, after: int) -> bool:
        """Whether retention may have removed events after this one. After 0 means all that are left."""
        return 0 < after < self.floor

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
        yield LAGGED

    async def _replay(
        self, engine: AsyncEngine, wanted: EventFilter, after: int, upto: int
    ) -> AsyncGenerator[bytes, None]:
        """The stored events, as much at a time as may be held for one stream."""
        while after < upto:
            if recent := self._recent.after(after, upto):
                for piece in _pieces(frame for event, frame in recent if wanted.matches(event)):
                    yield piece
                after = recent[-1][0].seq
                continue
            spans = await events.spans(engine, wanted, after, upto, limit=PAGE_SIZE, max_bytes=REPLAY_BYTES)
            self._check(wanted, after)
            for span in spans:
                if span.size > LARGE_EVENT_BYTES and span.count == 1:
                    frame = await self._large_events.take(span.upto, partial(_load, engine, wanted, after, span))
                    try:
                        self._check(wanted, after)
                        yield frame
                    finally:
                        self._large_events.release(span.upto)
                else:
                    page = await events.page(engine, wanted, after, span.upto, span.count)
                    self._check(wanted, after)
                    for piece in _pieces(encode(event.view(call)) for event, call in page):
                        yield piece
                after = span.upto
            after = after if sum(span.count for span in spans) == PAGE_SIZE else upto

    def _check(self, wanted: EventFilter, after: int) -> None:
        """The events of one call go together, so only a stream of all can be overtaken by retention."""
        if wanted.call is None and self.has_lost(after):
            raise _Overtaken

    def _publish_one(self, event: Event, call: Call | None) -> None:
        frame: Frame | None = None
        for subscription in self._listeners(event.call):
            if not subscription.wanted.matches(event):
                continue
            if frame is None:
                frame = Frame(encode(event.view(call)))
                self._recent.put(event, frame.data)
            subscription.push(frame)
        if event.type in FINAL and event.call in self._by_call:
            for subscription in self._by_call[event.call]:
                subscription.close()

    def _relieve(self) -> None:
        """Cut the slowest streams until all queues together are small enough."""
        if self._usage.size <= MAX_QUEUED_BYTES:
            return
        for subscription in sorted(self._all(), key=lambda s: s.size, reverse=True):
            if self._usage.size <= MAX_QUEUED_BYTES:
                return
            subscription.cut()

    def _all(self) -> list[Subscription]:
        return [*self._all_calls, *(s for some in self._by_call.values() for s in some)]

    def _output_listeners(self, call: Call) -> list[Subscription]:
        matching = (s for s in self._listeners(call.id) if s.with_output and not s.is_lagged)
        return [subscription for subscription in matching if _may_see(subscription.wanted, call)]

    def _listeners(self, call: str | None) -> list[Subscription]:
        return [*self._all_calls, *self._by_call.get(call or "", ())]


def encode_output(call: Call, start: int, stream: str, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    body = {"call": call.id, "session": call.session, "data": {"offset": start, "text": text, "stream": stream}}
    return encode_passing(EventType.CALL_OUTPUT, {"type": EventType.CALL_OUTPUT.value} | body)


def encode_terminal(at: TerminalOwner, start: int, text: str) -> bytes:
    body = {"call": at.call, "session": at.session, "data": {"terminal": at.id, "offset": start, "text": text}}
    return encode_passing(EventType.TERMINAL_OUTPUT, {"type": EventType.TERMINAL_OUTPUT.value} | body)


async def _has_ended(engine: AsyncEngine, id: str) -> bool:
    call = await calls.get(engine, id, None)
    return call is None or call.is_final


async def _load(engine: AsyncEngine, wanted: EventFilter, after: int, span: Span) -> bytes:
    page = await events.page(engine, wanted, after, span.upto, span.count)
    return b"".join(encode(event.view(call)) for event, call in page)


def _pieces(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Frames joined, as long as they stay small together."""
    gathered, size = list[bytes](), 0
    for frame in frames:
        if gathered and size + len(frame) > PIECE_BYTES:
            piece, gathered, size = b"".join(gathered), [], 0
            yield piece
        gathered.append(frame)
        size += len(frame)
    yield b"".join(gathered)


async def _replay_output(engine: AsyncEngine, subscription: Subscription, id: str, offset: int) -> AsyncIterator[bytes]:
    """The stored output of a call. Live chunks that came meanwhile are recognized by their offset."""
    call = await calls.get(engine, id, None)
    assert call is not None, "its stream is open"
    upto = offset
    while offset >= upto:
        upto = offset + REPLAY_BYTES
        for start, stream, data in await outputs.chunks(engine, id, offset, REPLAY_BYTES):
            offset = subscription.output_from = start + len(data)
            yield encode_output(call, start, stream, data)


def _may_see(wanted: EventFilter, what: HasOwner) -> bool:
    is_selected = wanted.principal in (None, what.principal) and wanted.session in (None, what.session)
    return is_selected and (
        wanted.session_filter is None or wanted.session_filter.matches(what.principal, what.session)
    )
