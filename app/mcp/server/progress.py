"""Notifications to the client that waits for a call: progress, and log messages of MCP servers.

A client that does not read holds up no call: at most MAX_QUEUED notifications are queued, and after the end of the call
they have LINGER_SECONDS to arrive.
"""

import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from app.core.events import EventType
from app.core.util.json_codec import Raw
from app.dispatch.events.hub import EventHub
from app.dispatch.events.subscriptions import Subscription
from app.mcp.server.request_context import Ctx, is_modern, meta_of
from app.store.events import EventFilter

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
MESSAGE = "notifications/message"
FORWARDED = frozenset({MESSAGE, "notifications/elicitation/complete"})
MAX_QUEUED = 256
LINGER_SECONDS = 2.0
TAKE_SECONDS = 3600.0

ReportProgress = Callable[[float, float | None, str | None], Awaitable[None]]


class NotificationQueue:
    """Notifications for the client that waits for a call, in order. `log_level` is the one set for its session."""

    def __init__(self, log_level: str | None = None) -> None:
        self._log_level = log_level
        self._ctx: Ctx | None = None
        self._min_level = len(LEVELS)
        self._queue: deque[tuple[str, Raw]] = deque(maxlen=MAX_QUEUED)
        self._changed = asyncio.Event()

    def open(self, ctx: Ctx) -> None:
        """From now on notifications go to the stream of this request."""
        self._ctx = ctx
        level = meta_of(ctx).get(LOG_LEVEL) if is_modern(ctx) else self._log_level or LEVELS[0]
        self._min_level = LEVELS.index(level) if level in LEVELS else len(LEVELS)

    def put(self, method: str, params: Raw) -> None:
        level = params.get("level")
        is_logged = method != MESSAGE or (level in LEVELS and LEVELS.index(level) >= self._min_level)
        if self._ctx is not None and method in FORWARDED and is_logged:
            self._queue.append((method, params))
            self._changed.set()

    def close(self, ctx: Ctx) -> None:
        if self._ctx is ctx:
            self._ctx = None
        self._changed.set()

    async def pump(self, ctx: Ctx) -> None:
        """Send to this request until it is closed or another one is opened; what is queued by then is still sent."""
        while True:
            while self._queue:
                await self._send(ctx, *self._queue.popleft())
            if self._ctx is not ctx:
                return
            self._changed.clear()
            await self._changed.wait()

    async def _send(self, ctx: Ctx, method: str, params: Raw) -> None:
        from mcp_types import server_notification_adapter
        from pydantic import ValidationError

        try:
            notification = server_notification_adapter.validate_python({"method": method, "params": params})
        except ValidationError:
            return  # the protocol does not allow it
        await ctx.session.send_notification(notification, related_request_id=ctx.request_id)


class ProgressNotifier:
    """Progress as the protocol wants it: each number is larger than the one before."""

    def __init__(self) -> None:
        self._last = -math.inf
        self._has_numbers = False

    def next(self, data: dict[str, Any]) -> tuple[float, float | None, str | None]:
        metadata = data.get("metadata") or {}
        progress, total = _number(metadata.get("progress")), _number(metadata.get("total"))
        self._has_numbers = self._has_numbers or progress is not None
        if progress is not None and progress > self._last:
            self._last = progress
        elif self._has_numbers:
            self._last = math.nextafter(self._last, math.inf)
        else:
            self._last = max(self._last, 0.0) + 1
        return self._last, total, data.get("title")


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


@asynccontextmanager
async def notifications(ctx: Ctx, hub: EventHub, call: str, queue: NotificationQueue) -> AsyncIterator[None]:
    """Send the notifications of a call to this request for as long as the block lasts."""
    filter = EventFilter(principal=None, call=call, types=frozenset({EventType.CALL_PROGRESS}))
    subscription = hub.subscribe(filter, False) if "progressToken" in meta_of(ctx) else None
    queue.open(ctx)
    tasks = [asyncio.create_task(queue.pump(ctx))]
    if subscription is not None:
        tasks.append(asyncio.create_task(_report_progress(subscription, ctx.session.report_progress)))
    try:
        yield
        queue.close(ctx)
        if subscription is not None:
            subscription.close()
        await asyncio.wait(tasks, timeout=LINGER_SECONDS)
    finally:
        queue.close(ctx)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if subscription is not None:
            hub.unsubscribe(subscription)


async def _report_progress(subscription: Subscription, send: ReportProgress) -> None:
    notifier = ProgressNotifier()
    while not subscription.is_lagged:
        frames = await subscription.take(TAKE_SECONDS)
        for line in frames.split(b"\n"):
            if line.startswith(b"data: "):
                await send(*notifier.next(json.loads(line[6:])["data"] or {}))
        if not frames and subscription.is_closed:
            return
