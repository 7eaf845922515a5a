"""Running: the owner of every call under way. Requests only wait here; a call does not end with its request."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.asks import Ask
from app.core.back_channel import BackChannel
from app.core.calls import Call, CallRequest, Status
from app.core.errors import CallError, Canceled, Interrupted, NotRecorded, Stopping, StoreError, TimedOut
from app.core.ports import Trace
from app.core.principals import Key
from app.core.results import Result
from app.core.rules import Need
from app.core.sessions import Session
from app.dispatch.capacity import Capacity
from app.dispatch.client_run import ClientRun
from app.dispatch.events.output_spool import Spool
from app.dispatch.gate import BatchSlot, GateHold
from app.store import calls
from app.store.calls import Claim, Claimed

log = logging.getLogger(__name__)

CANCEL_SECONDS = 5.0
STOPPING = "The service is stopping."
STOPPED = "The service was stopped while the call was running; it is not run again."


class Suspended(CallError):
    """Not an end: the service stops, and the call goes on at the next start."""


class TimeLimit:
    """The time a tool has. While somebody has stopped it, it does not pass."""

    def __init__(self, seconds: float, over: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._left = seconds
        self._over = over
        self._stops = 0
        self._is_over = False
        self._run()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self._stops += 1
        if self._stops == 1 and not self._is_over:
            self._timer.cancel()
            self._left -= self._loop.time() - self._since
        try:
            yield
        finally:
            self._stops -= 1
            if not self._stops and not self._is_over:
                self._run()

    def restart(self) -> None:
        """All the time it had at first is there again."""
        self._left = self._seconds
        if not self._stops and not self._is_over:
            self._timer.cancel()
            self._run()

    def cancel(self) -> None:
        self._is_over = True
        self._timer.cancel()

    def _run(self) -> None:
        self._since = self._loop.time()
        self._timer = self._loop.call_later(max(self._left, 0), self._over)


class LiveCall:
    """A call in this process: its record, the task that carries it, and those who wait for it."""

    def __init__(
        self,
        call: Call,
        request: CallRequest,
        session: Session,
        *,
        key: Key | None = None,
        claim: Claim | None = None,
        parent: "LiveCall | None" = None,
        place: BatchSlot | None = None,
        attendant: BackChannel | None = None,
        fault: CallError | None = None,
        is_resumed: bool = False,
    ) -> None:
        self.call = call
        self.request = request
        self.session = session
        self.key = key
        self.claim = claim
        self.parent = parent
        self.place = place
        self._attendant = attendant
        self.fault = fault
        self.is_resumed = is_resumed
        self.settled: str | None = None
        self.children: set[LiveCall] = set()
        self.trace: Trace | None = None
        self.held: GateHold | None = None
        self.limit: TimeLimit | None = None
        self.digest = ""
        self.ask: Ask | None = None
        self.at_end: Callable[[], None] | None = None
        self.asks: list[Ask] = []
        self.approved: frozenset[Need] = frozenset()
        self._asking: asyncio.Lock | None = None
        self.spool: Spool | None = None
        self.progress: dict[str, Any] | None = None
        self.is_telling = False
        self.abort = asyncio.Event()
        self.claimed: Claimed | None = None
        self.failure: BaseException | None = None
        self.stop: CallError | None = None
        self.started: float | None = None
        self.client: ClientRun | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_open = self.is_executed = self.is_done = False
        self._is_steady = True
        self._waiters: list[asyncio.Future[None]] = []
        self._open_waiters: list[asyncio.Future[None]] = []

    def stage(self, name: str) -> None:
        """Tell where on the line it is, if anybody follows."""
        if self.trace is not None:
            self.trace.stage(name)

    @property
    def attendant(self) -> BackChannel | None:
        """Who waits for it, or for the call that made it, and can be asked things."""
        if self._attendant is None and self.parent is not None:
            return self.parent.attendant
        return self._attendant

    def attend(self, attendant: BackChannel) -> None:
        """Somebody waits for it again, after a restart; what is asked already they hear of now."""
        self._attendant = attendant
        if self.ask is not None:
            attendant.opened(self.ask)

    @property
    def asking(self) -> asyncio.Lock:
        """A call asks one thing at a time."""
        if self._asking is None:
            self._asking = asyncio.Lock()
        return self._asking

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Around a commit: a cancel that comes now takes effect right after it, never in the middle."""
        self._is_steady = True
        yield
        self.loosen()

    def loosen(self) -> None:
        """From here on it can be interrupted; a wish that came before takes effect now."""
        self._is_steady = False
        if self.stop is not None:
            if self.task is not None and asyncio.current_task() is not self.task:
                self.task.cancel()  # a task beside the call's own did the commit; both hear of it
            raise self.stop

    def interrupt(self, reason: CallError) -> None:
        """Ask the call to stop for this reason. The first reason stays; an end already under way is not disturbed."""
        if self.is_done or self.stop is not None or (self.client is not None and self.client.is_answered):
            return
        self.stop = reason
        self.abort.set()
        if not self._is_steady and self.task is not None:
            self.task.cancel()

    def time_out(self, seconds: float) -> None:
        self.interrupt(TimedOut(f"{self.call.tool} was stopped after {seconds:g} s; its output so far is kept."))

    def answer(self, given: Result | CallError) -> bool:
        """What its client gave, if that is still waited for: the first answer or the first reason to stop wins."""
        if self.client is None or self.client.is_answered or self.stop is not None or self.is_done:
            return False
        self.client.answer(given)
        return True

    @property
    def can_be_kept(self) -> bool:
        """Whether it can go on at the next start: nothing of it runs here, and no other call needs it."""
        return self.parent is None and (self.call.status is Status.PENDING or self.call.deadline is not None)

    def held_above(self, lane: str) -> GateHold | None:
        """The nearest pass of this lane among the callers of this call."""
        above = self.parent
        while above is not None:
            if above.held is not None and above.held.lane == lane and not above.held.is_over:
                return above.held
            above = above.parent
        return None

    def tighten(self) -> None:
        """The end is being written: nothing interrupts it any more."""
        self._is_steady = True

    async def pause(self, seconds: float) -> None:
        """Between two tries of a commit: here the call can be interrupted, in the commit it cannot."""
        self.loosen()
        await asyncio.sleep(seconds)
        self.tighten()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until the call is done; the answer is whether it is."""
        if not self.is_done:
            await _wait_in(self._waiters, seconds)
        return self.is_done

    async def wait_open(self) -> None:
        """Wait until the call is committed, or has failed to be."""
        if not self.is_open and not self.is_done:
            await _wait_in(self._open_waiters, None)

    def opened(self) -> None:
        self.is_open = True
        _wake_all(self._open_waiters)

    def done(self) -> None:
        self.is_done = True
        if self.at_end is not None:
            self.at_end()
        _wake_all(self._open_waiters)
        _wake_all(self._waiters)
        if self.trace is not None and self.claimed is None:  # a repeat of a call is no call
            self.trace.end(self.call, self.failure)


async def _wait_in(waiters: "list[asyncio.Future[None]]", seconds: float | None) -> None:
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    waiters.append(waiter)
    timer = loop.call_later(seconds, _wake, waiter) if seconds is not None else None
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        waiters.remove(waiter)


def _wake_all(waiters: "list[asyncio.Future[None]]") -> None:
    for waiter in waiters:
        _wake(waiter)


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


async def committed_call(engine: AsyncEngine, live: LiveCall) -> Call:
    """The call as it is committed: from memory when it has ended, else from the store."""
    if live.is_done and live.failure is None and live.call.is_final:
        return live.call
    await live.wait_open()
    if isinstance(live.failure, StoreError) and not live.is_open:
        raise live.failure
    stored = await calls.get(engine, live.call.id, None)
    if stored is None:
        raise NotRecorded("The call could not be recorded and was not run.", retry_after=5)
    return stored


class LiveCalls:
    """All live calls by id."""

    def __init__(self, carry: Callable[[LiveCall], Awaitable[None]], capacity: Capacity) -> None:
        self._carry = carry
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
        self._capacity.enter(live.key if live.parent is None else None)
        self._calls[live.call.id] = live
        if live.parent is not None:
            live.parent.children.add(live)
        live.task = asyncio.get_running_loop().create_task(self._own(live))

    async def cancel(self, live: LiveCall, reason: CallError | None = None) -> None:
        """Stop a call and wait a moment for its end."""
        live.interrupt(reason or Canceled("The call was canceled."))
        await live.wait(CANCEL_SECONDS)

    async def end_children(self, live: LiveCall) -> None:
        """Stop what a tool has called and not waited for: no child outlives its parent."""
        children = list(live.children)
        for child in children:
            child.interrupt(live.stop or Canceled("The call that made this one has ended."))
        await asyncio.wait([child.task for child in children if child.task], timeout=CANCEL_SECONDS)

    async def drain(self, grace: float) -> None:
        """Let calls finish; those that do not are interrupted, and what can be kept waits for the next start."""
        self.is_draining = True
        for live in list(self._calls.values()):
            if live.can_be_kept:
                live.interrupt(Suspended(STOPPING))
        await self._ended(grace)
        self.interrupt_all()
        await self._ended(CANCEL_SECONDS)

    def interrupt_all(self) -> None:
        """The service stops, and what runs here has no more time."""
        for live in list(self._calls.values()):
            live.interrupt(Suspended(STOPPING) if live.can_be_kept else Interrupted(STOPPED))

    async def _ended(self, seconds: float) -> None:
        """Wait until no call is left, at most so long."""
        if tasks := [live.task for live in self._calls.values() if live.task]:
            await asyncio.wait(tasks, timeout=seconds)

    async def _own(self, live: LiveCall) -> None:
        try:
            await self._carry(live)
        except BaseException as error:  # noqa: BLE001 - the record could not be written; those who wait must know
            log.error("call %s could not be recorded: %s", live.call.id, error)
            live.failure = error
        finally:
            if live.place is not None:
                live.place.leave()
            self._calls.pop(live.call.id, None)
            self._capacity.leave(live.key if live.parent is None else None)
            if live.parent is not None:
                live.parent.children.discard(live)
            live.done()
