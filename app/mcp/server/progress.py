"""Tellings: what a client hears of its call while it waits: how far it is, and what servers log.

Nobody waits for a client that does not listen: of what it has not taken only so much is kept, and when the call has
ended the rest has a moment to arrive.
"""

import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from app.core.events import EventType
from app.core.util.json_codec import Raw
from app.dispatch.events.hub import EventHub
from app.dispatch.events.subscriptions import Subscription
from app.mcp.server.request_context import is_modern, meta_of
from app.store.events import EventFilter

if TYPE_CHECKING:
    from app.mcp.server.request_context import Ctx

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
MESSAGE = "notifications/message"
PASSED_ON = frozenset({MESSAGE, "notifications/elicitation/complete"})
MOST_WAITING = 256
MOMENT = 2.0
A_WHILE = 3600.0

Send = Callable[[float, float | None, str | None], Awaitable[None]]


class NotificationQueue:
    """What is to be told to the client that waits for a call, in order. `chosen` is the level of logs it once chose."""

    def __init__(self, chosen: str | None = None) -> None:
        self._chosen = chosen
        self._ctx: Ctx | None = None
        self._least = len(LEVELS)
        self._waiting: deque[tuple[str, Raw]] = deque(maxlen=MOST_WAITING)
        self._has_more = asyncio.Event()

    def open(self, ctx: "Ctx") -> None:
        """From now on it is this request that is told."""
        self._ctx = ctx
        level = meta_of(ctx).get(LOG_LEVEL) if is_modern(ctx) else self._chosen or LEVELS[0]
        self._least = LEVELS.index(level) if level in LEVELS else len(LEVELS)

    def put(self, method: str, params: Raw) -> None:
        level = params.get("level")
        is_loud = method != MESSAGE or (level in LEVELS and LEVELS.index(level) >= self._least)
        if self._ctx is not None and method in PASSED_ON and is_loud:
            self._waiting.append((method, params))
            self._has_more.set()

    def close(self, ctx: "Ctx") -> None:
        if self._ctx is ctx:
            self._ctx = None
        self._has_more.set()

    async def pump(self, ctx: "Ctx") -> None:
        """Tell this request, until another one is told or none any more; what waits by then is still sent."""
        while True:
            while self._waiting:
                await self._send(ctx, *self._waiting.popleft())
            if self._ctx is not ctx:
                return
            self._has_more.clear()
            await self._has_more.wait()

    async def _send(self, ctx: "Ctx", method: str, params: Raw) -> None:
        from mcp_types import server_notification_adapter
        from pydantic import ValidationError

        try:
            said = server_notification_adapter.validate_python({"method": method, "params": params})
        except ValidationError:
            return  # not in words of the protocol
        await ctx.session.send_notification(said, related_request_id=ctx.request_id)


class ProgressNotifier:
    """Progress as the protocol wants it: each number is larger than the one before."""

    def __init__(self) -> None:
        self._last = -math.inf
        self._has_numbers = False

    def next(self, data: dict[str, Any]) -> tuple[float, float | None, str | None]:
        about = data.get("metadata") or {}
        given, total = _number(about.get("progress")), _number(about.get("total"))
        self._has_numbers = self._has_numbers or given is not None
        if given is not None and given > self._last:
            self._last = given
        elif self._has_numbers:
            self._last = math.nextafter(self._last, math.inf)
        else:
            self._last = max(self._last, 0.0) + 1
        return self._last, total, data.get("title")


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


@asynccontextmanager
async def telling(ctx: "Ctx", hub: EventHub, call: str, outbox: NotificationQueue) -> AsyncIterator[None]:
    """As long as this lasts, the client hears of the call; what is told by the end of it still arrives."""
    wanted = EventFilter(principal=None, call=call, types=frozenset({EventType.CALL_PROGRESS}))
    listening = hub.subscribe(wanted, False) if "progressToken" in meta_of(ctx) else None
    outbox.open(ctx)
    pumps = [asyncio.create_task(outbox.pump(ctx))]
    if listening is not None:
        pumps.append(asyncio.create_task(_follow(listening, ctx.session.report_progress)))
    try:
        yield
        outbox.close(ctx)
        if listening is not None:
            listening.close()
        await asyncio.wait(pumps, timeout=MOMENT)
    finally:
        outbox.close(ctx)
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
        if listening is not None:
            hub.unsubscribe(listening)


async def _follow(listening: Subscription, send: Send) -> None:
    steps = ProgressNotifier()
    while not listening.is_lagged:
        frames = await listening.take(A_WHILE)
        for data in _data_of(frames):
            await send(*steps.next(data))
        if not frames and listening.is_closed:
            return


def _data_of(frames: bytes) -> list[dict[str, Any]]:
    """What the events in these frames say."""
    lines = (line for line in frames.split(b"\n") if line.startswith(b"data: "))
    return [json.loads(line[6:])["data"] or {} for line in lines]
