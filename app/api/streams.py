"""Event streams as raw ASGI answers: bytes that are already encoded go straight to the socket."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
SEND_SECONDS = 60.0


class EventStream(Response):
    """Sends frames until they end, the client goes, or its key is revoked. `on_leave` is told when the client went."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        may_go_on: Callable[[], bool],
        on_leave: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(media_type="text/event-stream")
        self._frames = frames
        self._may_go_on = may_go_on
        self._on_leave = on_leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
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
        """Frames as they come, to the last one. A client that does not take one within a minute is let go."""
        await send({"type": "http.response.body", "body": b": connected\n\n", "more_body": True})
        async with aclosing(self._frames) as stream:
            async for frames in stream:
                if not self._may_go_on():
                    break
                if frames and not await _sent(send, frames):
                    return False
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


async def _sent(send: Send, frames: bytes) -> bool:
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": frames, "more_body": True})
    except TimeoutError:
        return False
    return True


async def client_left(receive: Receive) -> None:
    """Comes back when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
