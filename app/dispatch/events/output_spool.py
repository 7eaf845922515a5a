"""The spool: writes a call's output to the store in few and bounded chunks.

Chunks are flushed at 256 KiB or after a quarter second, one at a time, and published once they are committed. A tool
that writes faster than the disk waits; a chunk that the store cannot take is tried again. Output beyond the limit is
counted and dropped.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.errors import StoreUnavailable
from app.core.redaction import OutputStream
from app.core.results import Result, Truncation, truncate, truncate_ends
from app.core.util.head_tail import encoded, size_of, whole_characters
from app.dispatch.events.hub import EventHub
from app.dispatch.events.output_throttle import OutputThrottle
from app.dispatch.retries import submit_until_stored
from app.store import outputs
from app.store.writer import Batch, Writer

Rows = list[tuple[int, str, bytes]]

CHUNK_BYTES = 256 * 1024
FLUSH_SECONDS = 0.25
MAX_CHARACTER_BYTES = 4


class Spool:
    def __init__(
        self, call: Call, writer: Writer, hub: EventHub, limit: int, redaction: Callable[[], OutputStream]
    ) -> None:
        self._call = call
        self._redaction = redaction
        self._streams: dict[str, OutputStream] = {}
        self._writer = writer
        self._throttle = OutputThrottle(call, hub)
        self._room = limit
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[tuple[str, bytearray]] = deque()
        self._size = 0
        self._offset = 0
        self._in_flight: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_flush = float("-inf")
        self.dropped = 0

    @property
    def total(self) -> int:
        """Bytes that are stored or being stored."""
        return self._offset + self._size

    async def write(self, text: str, stream: str) -> None:
        if not self._room:
            held = self._streams.pop(stream, None)
            self.dropped += size_of(text) + (size_of(held.finish()) if held else 0)
            return
        if stream not in self._streams:
            self._streams[stream] = self._redaction()
        self._add(stream, self._streams[stream].feed(text))
        while self._size >= CHUNK_BYTES:
            await self._flush_one()
        if self._size and self._timer is None and self._in_flight is None:
            wait = self._last_flush + FLUSH_SECONDS - self._loop.time()
            self._timer = self._loop.call_later(max(wait, 0), self._send)

    async def finish(self) -> None:
        """Store everything, also what the redaction held back."""
        for stream, held in self._streams.items():
            self._add(stream, held.finish())
        while self._size or self._in_flight:
            await self._flush_one()
        self._throttle.finish()

    def _add(self, stream: str, text: str) -> None:
        data = self._fit(encoded(text))
        if not data:
            return
        if not self._chunks or self._chunks[-1][0] != stream:
            self._chunks.append((stream, bytearray()))
        self._chunks[-1][1].extend(data)
        self._size += len(data)

    def _fit(self, data: bytes) -> bytes:
        if len(data) <= self._room:
            self._room -= len(data)
            return data
        fitting = data[: whole_characters(data, self._room)]
        self._room = 0  # also when a byte is left: what came later would have a gap before it
        self.dropped += len(data) - len(fitting)
        return fitting

    async def _flush_one(self) -> None:
        if self._in_flight is None:
            self._send()
        if self._in_flight is not None:
            await asyncio.wait([self._in_flight])

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._in_flight is not None or not self._chunks:
            return
        rows = self._take()
        self._last_flush = self._loop.time()

        def store(batch: Batch) -> None:
            for start, stream, data in rows:
                outputs.add(batch, self._call.id, start, stream, data)

        self._track(self._writer.submit(store), store, rows)

    def _track(self, stored: "asyncio.Future[None]", store: Callable[[Batch], None], rows: Rows) -> None:
        self._in_flight = stored
        stored.add_done_callback(lambda done: self._sent(done, store, rows))

    def _take(self) -> Rows:
        """At most one chunk's worth of bytes, without splitting a character."""
        rows: Rows = []
        room = CHUNK_BYTES
        while self._chunks and (cut := whole_characters(self._chunks[0][1], room)):
            stream, data = self._chunks[0]
            rows.append((self._offset, stream, bytes(data[:cut])))
            self._offset += cut
            self._size -= cut
            room -= cut
            del data[:cut]
            if not data:
                self._chunks.popleft()
        return rows

    def _sent(self, done: "asyncio.Future[None]", store: Callable[[Batch], None], rows: Rows) -> None:
        self._in_flight = None
        refused = None if done.cancelled() else done.exception()
        if isinstance(refused, StoreUnavailable) and not self._writer.is_closed:
            self._track(self._loop.create_task(submit_until_stored(self._writer, store)), store, rows)
            return
        if done.cancelled() or refused is not None:
            self._give_up(rows)
            return
        self._throttle.publish(rows)
        if self._size and self._timer is None:
            self._timer = self._loop.call_later(FLUSH_SECONDS, self._send)

    def _give_up(self, rows: Rows) -> None:
        """The store cannot take a chunk: what follows would have a gap before it, so all is counted as dropped."""
        lost = sum(len(data) for _, _, data in rows)
        self._offset -= lost
        self.dropped += lost + self._size
        self._chunks.clear()
        self._size = self._room = 0


async def load_shown(engine: AsyncEngine, call: str, policy: Truncation) -> Result:
    """The stored output of a call, truncated for the model. Of a long one only both ends are read."""
    size, limit = await outputs.size(engine, call), MAX_CHARACTER_BYTES * policy.limit
    head = await outputs.read(engine, call, 0, limit)
    if size <= limit:
        return truncate(Result(output=head.decode("utf-8", "replace")), policy)
    tail = await outputs.read(engine, call, size - limit, limit)
    count = await outputs.characters(engine, call)
    return truncate_ends(head.decode("utf-8", "ignore"), tail.decode("utf-8", "ignore"), count, policy)
