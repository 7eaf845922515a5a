"""Event streams as raw ASGI answers: bytes that are already encoded go straight to the socket."""

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
    """How many streams each key has open, and may have unless it is bound to another number."""

    def __init__(self, per_key: int) -> None:
        self.per_key = per_key
        self.taken: Counter[str] = Counter()

    def slot(self, key: Key) -> "Slot":
        return Slot(self, key.id, key.bounds.streams or self.per_key)


class Slot:
    """Room for one stream of a key: taken when it is entered, or before, and given back once."""

    def __init__(self, slots: StreamSlots, key: str, most: int) -> None:
        self._slots = slots
        self._key = key
        self._most = most
        self._is_taken = False

    def take(self) -> "Slot":
        if self._is_taken:
            return self
        if self._slots.taken[self._key] >= self._most:
            sentence = f"This key has {self._most} event streams open; close one first."
            raise Problem(429, "TooManyStreams", sentence, {"Retry-After": "1"})
        self._slots.taken[self._key] += 1
        self._is_taken = True
        return self

    def give_back(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._slots.taken[self._key] -= 1
            if not self._slots.taken[self._key]:
                del self._slots.taken[self._key]

    def __enter__(self) -> "Slot":
        return self.take()

    def __exit__(self, *error: object) -> None:
        self.give_back()


class EventStream(Response):
    """Sends frames until they end, the client goes, or its key is revoked. `on_leave` is told when the client went."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        may_go_on: Callable[[], bool],
        on_leave: Callable[[], None] | None = None,
        headers: dict[str, str] | None = None,
        slot: AbstractContextManager[object] | None = None,
    ) -> None:
        super().__init__(media_type="text/event-stream")
        self._frames = frames
        self._may_go_on = may_go_on
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
        """Frames as they come, to the last one. A client that does not take them within a minute or two is let go;
        large ones have a minute more for each MiB."""
        await send({"type": "http.response.body", "body": b": connected\n\n", "more_body": True})
        with Patience() as patience:
            async with aclosing(self._frames) as stream:
                async for frames in stream:
                    if not self._may_go_on():
                        break
                    if frames and not await _sent(send, frames, patience):
                        return False
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


class Patience:
    """How long a client may leave what it is sent. One timer for a whole stream, because a timer for each piece
    would cost as much as sending it."""

    def __init__(self) -> None:
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._until: float | None = None

    def __enter__(self) -> "Patience":
        self._timer = self._loop.call_later(SEND_SECONDS, self._look)
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()

    def begin(self, size: int) -> None:
        self._until = self._loop.time() + SEND_SECONDS * (1 + size // (1024 * 1024))

    def end(self) -> None:
        self._until = None

    def _look(self) -> None:
        if self._until is not None and self._loop.time() >= self._until and self._task is not None:
            self.is_over = True
            self._task.cancel()
        else:
            self._timer = self._loop.call_later(SEND_SECONDS, self._look)


async def _sent(send: Send, frames: bytes, patience: Patience) -> bool:
    """In small parts: what is handed over waits in a buffer that only this client has."""
    patience.begin(len(frames))
    try:
        for start in range(0, len(frames), PIECE_BYTES):
            await send({"type": "http.response.body", "body": frames[start : start + PIECE_BYTES], "more_body": True})
    except asyncio.CancelledError:
        if patience.is_over:
            return False
        raise
    patience.end()
    return True


async def client_left(receive: Receive) -> None:
    """Comes back when the client has closed the connection; raises when it sends beyond all limits instead."""
    while (await receive())["type"] != "http.disconnect":
        pass
