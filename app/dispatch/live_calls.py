"""Calls under way in this process: who owns which part of their state, and the table of them.

A request only waits for a call: the call goes on when its request ends.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.asks import Ask
from app.core.back_channel import BackChannel
from app.core.calls import Call, CallRequest, Status
from app.core.errors import (
    CallError,
    Canceled,
    Interrupted,
    NotRecorded,
    Stopping,
    StoreError,
    TimedOut,
    TooBusy,
    TooManyCalls,
)
from app.core.ports import Clock, Trace
from app.core.principals import Key
from app.core.results import Result
from app.core.rules import Need
from app.core.sessions import Session
from app.dispatch.client_run import ClientRun
from app.dispatch.events.output_spool import Spool
from app.dispatch.gate import BatchSlot, GateHold
from app.store import calls
from app.store.calls import Claim, Claimed

log = logging.getLogger(__name__)

CANCEL_SECONDS = 5.0
RATE_WINDOW_SECONDS = 60.0
STOPPING = "The service is stopping."
STOPPED = "The service was stopped while the call was running; it is not run again."


class Suspended(CallError):
    """Not an end: the service stops, and the call continues at the next start."""


class TimeLimit:
    """The time a tool has to run. It does not pass while it is paused."""

    def __init__(self, seconds: float, on_timeout: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._left = seconds
        self._on_timeout = on_timeout
        self._pauses = 0
        self._is_over = False
        self._since = self._loop.time()
        self._timer = self._loop.call_later(seconds, on_timeout)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._pauses += 1
        if self._pauses == 1 and not self._is_over:
            self._timer.cancel()
            self._left -= self._loop.time() - self._since
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses and not self._is_over:
                self._run()

    def restart(self) -> None:
        """Give the tool its whole time again."""
        self._left = self._seconds
        if not self._pauses and not self._is_over:
            self._timer.cancel()
            self._run()

    def cancel(self) -> None:
        self._is_over = True
        self._timer.cancel()

    def _run(self) -> None:
        self._since = self._loop.time()
        self._timer = self._loop.call_later(max(self._left, 0), self._on_timeout)


@dataclass(slots=True)
class Recording:
    """What the journal holds of a call besides its row."""

    #: Arguments after hooks and validation, as JSON text.
    effective_arguments: str | None = None
    #: The call that had this idempotency key first; then this one was not accepted.
    claimed: Claimed | None = None
    #: Why the record could not be written.
    failure: BaseException | None = None
    spool: Spool | None = None
    #: Progress that is not published yet.
    progress: dict[str, Any] | None = None
    is_publishing_progress: bool = False
    #: Monotonic time of the start.
    started: float | None = None


@dataclass(slots=True)
class Approval:
    """What the permission stage and the ask queue hold of a call."""

    #: Hash of the tool and its arguments: an approval counts for these only.
    digest: str = ""
    #: The open ask.
    ask: Ask | None = None
    asks: list[Ask] = field(default_factory=list)
    approved: frozenset[Need] = frozenset()
    on_end: Callable[[], None] | None = None
    _lock: asyncio.Lock | None = None

    @property
    def lock(self) -> asyncio.Lock:
        """A call asks one thing at a time."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock


@dataclass(slots=True)
class Execution:
    """What the dispatcher and the running tool hold of a call."""

    abort: asyncio.Event = field(default_factory=asyncio.Event)
    hold: GateHold | None = None
    time_limit: TimeLimit | None = None
    #: Set for a tool that the caller's client runs.
    client: ClientRun | None = None
    children: "set[LiveCall]" = field(default_factory=set)
    has_run: bool = False


class LiveCall:
    """A call in this process: its record, its task, and the requests that wait for it."""

    __slots__ = (
        "_back_channel",
        "_is_interruptible",
        "_open_waiters",
        "_waiters",
        "approval",
        "batch_slot",
        "call",
        "claim",
        "execution",
        "fault",
        "is_done",
        "is_open",
        "is_resumed",
        "key",
        "parent",
        "record",
        "request",
        "session",
        "stop",
        "task",
        "trace",
    )

    def __init__(
        self,
        call: Call,
        request: CallRequest,
        session: Session,
        *,
        key: Key | None = None,
        claim: Claim | None = None,
        parent: "LiveCall | None" = None,
        batch_slot: BatchSlot | None = None,
        back_channel: BackChannel | None = None,
        fault: CallError | None = None,
        is_resumed: bool = False,
    ) -> None:
        self.call = call
        self.request = request
        self.session = session
        self.key = key
        self.claim = claim
        self.parent = parent
        self.batch_slot = batch_slot
        self._back_channel = back_channel
        #: What is wrong with a call that a model wrote unreadably.
        self.fault = fault
        self.is_resumed = is_resumed
        self.record = Recording()
        self.approval = Approval()
        self.execution = Execution()
        self.trace: Trace | None = None
        self.task: asyncio.Task[None] | None = None
        #: Why the call is being stopped.
        self.stop: CallError | None = None
        self.is_open = self.is_done = False
        self._is_interruptible = False
        self._waiters: list[asyncio.Future[None]] = []
        self._open_waiters: list[asyncio.Future[None]] = []

    def trace_stage(self, name: str) -> None:
        if self.trace is not None:
            self.trace.stage(name)

    @property
    def back_channel(self) -> BackChannel | None:
        """The MCP client that waits for this call, or for the call that made it."""
        if self._back_channel is None and self.parent is not None:
            return self.parent.back_channel
        return self._back_channel

    def attach(self, back_channel: BackChannel) -> None:
        """An MCP client waits for the call again, after a restart; it learns of the open ask now."""
        self._back_channel = back_channel
        if self.approval.ask is not None:
            back_channel.opened(self.approval.ask)

    @contextmanager
    def uninterruptible(self) -> Iterator[None]:
        """Around a commit: a cancel that comes now takes effect right after it, never in the middle."""
        self._is_interruptible = False
        yield
        self.allow_interrupts()

    def allow_interrupts(self) -> None:
        """From here on the call can be interrupted; a cancel that came before takes effect now."""
        self._is_interruptible = True
        if self.stop is not None:
            if self.task is not None and asyncio.current_task() is not self.task:
                self.task.cancel()  # another task did the commit; both are canceled
            raise self.stop

    def block_interrupts(self) -> None:
        """The end is being written: a cancel has no effect any more."""
        self._is_interruptible = False

    def interrupt(self, reason: CallError) -> None:
        """Stop the call for this reason. The first reason counts; an end that is being written is not disturbed."""
        client = self.execution.client
        if self.is_done or self.stop is not None or (client is not None and client.is_answered):
            return
        self.stop = reason
        self.execution.abort.set()
        if self._is_interruptible and self.task is not None:
            self.task.cancel()

    def time_out(self, seconds: float) -> None:
        self.interrupt(TimedOut(f"{self.call.tool} was stopped after {seconds:g} s; its output so far is stored."))

    def answer(self, outcome: Result | CallError) -> bool:
        """Take the result that the caller's client posted; False when the call has ended or is being stopped."""
        client = self.execution.client
        if client is None or client.is_answered or self.stop is not None or self.is_done:
            return False
        client.answer(outcome)
        return True

    @property
    def survives_restart(self) -> bool:
        """Whether it can continue at the next start: nothing of it runs here, and no other call needs it."""
        return self.parent is None and (self.call.status is Status.PENDING or self.call.deadline is not None)

    def inherited_hold(self, lane: str) -> GateHold | None:
        """The nearest hold of this lane among the parents of this call."""
        parent = self.parent
        while parent is not None:
            hold = parent.execution.hold
            if hold is not None and hold.lane == lane and not hold.is_over:
                return hold
            parent = parent.parent
        return None

    async def pause(self, seconds: float) -> None:
        """Between two tries of a commit: here the call can be interrupted, in the commit it cannot."""
        self.allow_interrupts()
        await asyncio.sleep(seconds)
        self.block_interrupts()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until the call is done; returns whether it is."""
        if not self.is_done:
            await _wait_in(self._waiters, seconds)
        return self.is_done

    async def wait_open(self) -> None:
        """Wait until the call is committed, or could not be."""
        if not self.is_open and not self.is_done:
            await _wait_in(self._open_waiters, None)

    def mark_open(self) -> None:
        self.is_open = True
        _wake_all(self._open_waiters)

    def mark_done(self) -> None:
        self.is_done = True
        if self.approval.on_end is not None:
            self.approval.on_end()
        _wake_all(self._open_waiters)
        _wake_all(self._waiters)
        if self.trace is not None and self.record.claimed is None:  # a repeated request is not a call
            self.trace.end(self.call, self.record.failure)


async def _wait_in(waiters: "list[asyncio.Future[None]]", seconds: float | None) -> None:
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    waiters.append(waiter)
    timer = loop.call_later(seconds, _wake_all, [waiter]) if seconds is not None else None
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        waiters.remove(waiter)


def _wake_all(waiters: "list[asyncio.Future[None]]") -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


async def committed_call(engine: AsyncEngine, live: LiveCall) -> Call:
    """The call as it is committed: from memory when it has ended, else from the store."""
    failure = live.record.failure
    if live.is_done and failure is None and live.call.is_final:
        return live.call
    await live.wait_open()
    failure = live.record.failure
    if isinstance(failure, StoreError) and not live.is_open:
        raise failure
    stored = await calls.get(engine, live.call.id, None)
    if stored is None:
        raise NotRecorded("The call could not be recorded and was not run.", retry_after=5)
    return stored


class Capacity:
    """How many calls may be under way, in all and per key, and how many a key may start in a minute."""

    def __init__(self, per_key: int, total: int, clock: Clock) -> None:
        self._per_key = per_key
        self._total = total
        self._clock = clock
        self.under_way = 0
        self.by_key: Counter[str] = Counter()
        self._starts: dict[str, deque[float]] = {}

    def admit(self, key: Key | None, calls: int = 1) -> None:
        """Raise `TooManyCalls` or `TooBusy` when there is no room for these calls of this key. Counts nothing yet."""
        if key is not None:
            limit = key.bounds.concurrent_calls or self._per_key
            if self.by_key[key.id] + calls > limit:
                raise TooManyCalls(f"A key may have {limit} calls under way; wait until some have ended.")
            if key.bounds.calls_per_minute is not None:
                self._check_rate(key.id, calls, key.bounds.calls_per_minute)
        if self.under_way + calls > self._total:
            raise TooBusy(f"The service has its {self._total} calls under way; try again in a moment.")

    def enter(self, key: Key | None) -> None:
        """Count one more call of this key. Calls resumed after a restart are counted too, without `admit`."""
        self.under_way += 1
        if key is not None:
            self.by_key[key.id] += 1
            if key.bounds.calls_per_minute is not None:
                self._starts.setdefault(key.id, deque()).append(self._clock.monotonic())

    def leave(self, key: Key | None) -> None:
        self.under_way -= 1
        if key is not None:
            self.by_key[key.id] -= 1
            if not self.by_key[key.id]:
                del self.by_key[key.id]

    def _check_rate(self, key: str, calls: int, limit: int) -> None:
        """A sliding window: every call that started within the last sixty seconds counts."""
        starts, now = self._starts.get(key, deque()), self._clock.monotonic()
        while starts and starts[0] <= now - RATE_WINDOW_SECONDS:
            starts.popleft()
        if not starts:
            self._starts.pop(key, None)
        excess = len(starts) + calls - limit
        if excess <= 0:
            return
        if calls > limit:
            raise TooManyCalls(
                f"This key may make {limit} calls in a minute, so {calls} at once never fit.", int(RATE_WINDOW_SECONDS)
            )
        seconds = max(1, ceil(starts[excess - 1] + RATE_WINDOW_SECONDS - now))
        raise TooManyCalls(f"This key may make {limit} calls in a minute; try again in {seconds} s.", seconds)


class LiveCalls:
    """All calls under way, by id."""

    def __init__(self, run: Callable[[LiveCall], Awaitable[None]], capacity: Capacity) -> None:
        self._run = run
        self._capacity = capacity
        self._calls: dict[str, LiveCall] = {}
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[LiveCall]:
        return iter(self._calls.values())

    def get(self, id: str) -> LiveCall | None:
        return self._calls.get(id)

    def require_accepting(self) -> None:
        """Raises `Stopping` when the service takes no more calls."""
        if self.is_draining:
            raise Stopping("The service is stopping and takes no more calls.", retry_after=5)

    def start(self, live: LiveCall) -> None:
        """Run the call in a task of its own."""
        if live.parent is None:
            self._capacity.enter(live.key)
        else:
            self._capacity.enter(None)
            live.parent.execution.children.add(live)
        self._calls[live.call.id] = live
        live.task = asyncio.get_running_loop().create_task(self._run_to_end(live))

    async def cancel(self, live: LiveCall, reason: CallError | None = None) -> None:
        """Stop a call and wait up to `CANCEL_SECONDS` for its end."""
        live.interrupt(reason or Canceled("The call was canceled."))
        await live.wait(CANCEL_SECONDS)

    async def end_children(self, live: LiveCall) -> None:
        """Stop the calls that a tool made and did not wait for: no child outlives its parent."""
        children = list(live.execution.children)
        for child in children:
            child.interrupt(live.stop or Canceled("The call that made this one has ended."))
        await asyncio.wait([child.task for child in children if child.task], timeout=CANCEL_SECONDS)

    async def drain(self, grace: float) -> None:
        """Let calls finish within `grace` seconds, then interrupt them; some continue at the next start."""
        self.is_draining = True
        for live in list(self._calls.values()):
            if live.survives_restart:
                live.interrupt(Suspended(STOPPING))
        await self._wait_for_all(grace)
        self.interrupt_all()
        await self._wait_for_all(CANCEL_SECONDS)

    def interrupt_all(self) -> None:
        """The service stops: interrupt every call now."""
        for live in list(self._calls.values()):
            live.interrupt(Suspended(STOPPING) if live.survives_restart else Interrupted(STOPPED))

    async def _wait_for_all(self, seconds: float) -> None:
        if tasks := [live.task for live in self._calls.values() if live.task]:
            await asyncio.wait(tasks, timeout=seconds)

    async def _run_to_end(self, live: LiveCall) -> None:
        try:
            await self._run(live)
        except BaseException as error:  # noqa: BLE001 - the record could not be written; waiting requests must learn it
            log.error("call %s could not be recorded: %s", live.call.id, error)
            live.record.failure = error
        finally:
            if live.batch_slot is not None:
                live.batch_slot.leave()
            self._calls.pop(live.call.id, None)
            self._capacity.leave(live.key if live.parent is None else None)
            if live.parent is not None:
                live.parent.execution.children.discard(live)
            live.mark_done()
