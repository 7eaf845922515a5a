"""Server-sent event streams as raw ASGI responses of encoded bytes."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing, nullcontext

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.http.problems import Problem
from app.core.principals import Key
from app.dispatch.events.subscriptions import PIECE_BYTES

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
SEND_SECONDS = 60.0


class StreamSlots:
    """Counts the open streams of each key. `per_key` is the limit unless the key's bounds have another."""

    def __init__(self, per_key: int) -> None:
        self.per_key = per_key
        self.taken: Counter[str] = Counter()

    def slot(self, key: Key) -> "Slot":
        return Slot(self, key.id, key.bounds.streams or self.per_key)


class Slot:
    """A slot for one stream of a key: taken on enter or by `take`, and released once."""

    def __init__(self, slots: StreamSlots, key: str, limit: int) -> None:
        self._slots = slots
        self._key = key
        self._limit = limit
        self._is_taken = False

    def take(self) -> "Slot":
        if self._is_taken:
            return self
        if self._slots.taken[self._key] >= self._limit:
            message = f"This key has {self._limit} event streams open; close one first."
            raise Problem(429, "TooManyStreams", message, {"Retry-After": "1"})
        self._slots.taken[self._key] += 1
        self._is_taken = True
        return self

    def release(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._slots.taken[self._key] -= 1
            if not self._slots.taken[self._key]:
                del self._slots.taken[self._key]

    def __enter__(self) -> "Slot":
        return self.take()

    def __exit__(self, *error: object) -> None:
        self.release()


class EventStream(Response):
    """Sends frames until they end, the client disconnects (then `on_leave` is called), or its key is revoked."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        is_allowed: Callable[[], bool],
        on_leave: Callable[[], None] | None = None,
        headers: dict[str, str] | None = None,
        slot: AbstractContextManager[object] | None = None,
    ) -> None:
        super().__init__(media_type="text/event-stream")
        self._frames = frames
        self._is_allowed = is_allowed
        self._on_leave = on_leave
        self._all_headers = [*HEADERS, *((k.encode(), v.encode()) for k, v in (headers or {}).items())]
        self._slot = slot or nullcontext()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            await self._stream(receive, send)

    async def _stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._all_headers})
        pump = asyncio.create_task(self._pump(send))
        leave = asyncio.create_task(client_left(receive))
        try:
            await asyncio.wait({pump, leave}, return_when=asyncio.FIRST_COMPLETED)
            is_complete = pump.done() and pump.result()
            if not is_complete and self._on_leave is not None:
                self._on_leave()
        finally:
            pump.cancel()
            leave.cancel()
            await asyncio.wait({pump, leave})

    async def _pump(self, send: Send) -> bool:
        """Send all frames. A client that does not read them within a minute or two is disconnected; large frames have a
        minute more for each MiB."""
        await send({"type": "http.response.body", "body": b": connected\n\n", "more_body": True})
        with SendTimeout() as timeout:
            async with aclosing(self._frames) as stream:
                async for frames in stream:
                    if not self._is_allowed():
                        break
                    if frames and not await _send_frames(send, frames, timeout):
                        return False
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


class SendTimeout:
    """How long a client may take to read what it is sent. One timer for the whole stream, because a timer for each send
    would cost as much as the send."""

    def __init__(self) -> None:
        self.has_expired = False
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._deadline: float | None = None

    def __enter__(self) -> "SendTimeout":
        self._timer = self._loop.call_later(SEND_SECONDS, self._check)
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()

    def begin(self, size: int) -> None:
        self._deadline = self._loop.time() + SEND_SECONDS * (1 + size // (1024 * 1024))

    def end(self) -> None:
        self._deadline = None

    def _check(self) -> None:
        if self._deadline is not None and self._loop.time() >= self._deadline and self._task is not None:
            self.has_expired = True
            self._task.cancel()
        else:
            self._timer = self._loop.call_later(SEND_SECONDS, self._check)


async def _send_frames(send: Send, frames: bytes, send_timeout: SendTimeout) -> bool:
    """Send in small parts, because what is sent waits in a buffer of this client."""
    send_timeout.begin(len(frames))
    try:
        for start in range(0, len(frames), PIECE_BYTES):
            await send({"type": "http.response.body", "body": frames[start : start + PIECE_BYTES], "more_body": True})
    except asyncio.CancelledError:
        if send_timeout.has_expired:
            return False
        raise
    send_timeout.end()
    return True


async def client_left(receive: Receive) -> None:
    """Returns when the client has closed the connection; raises when it sends a body over the limit instead."""
    while (await receive())["type"] != "http.disconnect":
        pass
