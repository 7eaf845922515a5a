"""The gate: a FIFO readers/writer lock per lane, with nested holds."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from app.core.errors import Overloaded
from app.core.tools import Effect


class Gate:
    """One lane's FIFO readers/writer lock."""

    __slots__ = ("_readers", "_waiting", "_writing")

    def __init__(self) -> None:
        self._readers = 0
        self._writing = False
        self._waiting: deque[tuple[Effect, asyncio.Future[None]]] = deque()

    @property
    def is_idle(self) -> bool:
        return not (self._readers or self._writing or self._waiting)

    def try_enter(self, effect: Effect, *, beside: bool = False) -> bool:
        """Enter if that is possible without waiting and without overtaking a waiting call.

        A reader `beside` a reader that is inside overtakes none: the waiting calls wait for that one anyway.
        """
        if self._writing or (self._waiting and not beside):
            return False
        if effect is Effect.READ:
            self._readers += 1
            return True
        self._writing = not self._readers
        return self._writing

    async def enter(self, effect: Effect) -> None:
        if self.try_enter(effect):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((effect, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(effect)  # admitted and cancelled in the same tick: give it back
            else:
                with suppress(ValueError):  # a call left in the same tick, and the wake took it out already
                    self._waiting.remove((effect, turn))
                self._wake()
            raise

    def leave(self, effect: Effect) -> None:
        if effect is Effect.WRITE:
            self._writing = False
        else:
            self._readers -= 1
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        """Admit the waiting calls that can enter now, in order."""
        while self._waiting:
            effect, turn = self._waiting[0]
            if not turn.done():
                if not self.try_enter(effect, beside=True):
                    return
                turn.set_result(None)
            self._waiting.popleft()


class GateHold:
    """The right to work in a lane. Children of a writer work inside it, ordered by a gate of its own; children of a
    reader read beside it, and for one that writes it is released. While it is released, its other children wait."""

    __slots__ = (
        "_changed",
        "_gate",
        "_gates",
        "_inner",
        "_releases",
        "_returning",
        "effect",
        "is_held",
        "is_over",
        "lane",
        "outer",
    )

    def __init__(self, gates: "Gates", gate: Gate, lane: str, effect: Effect, outer: "GateHold | None") -> None:
        self._gates = gates
        self._gate = gate
        self._releases = 0
        self._returning: asyncio.Lock | None = None  # made when needed, which is rare
        self._changed: asyncio.Event | None = None
        self._inner: Gate | None = None
        self.is_held = True
        self.is_over = False
        self.lane = lane
        self.effect = effect
        self.outer = outer

    @property
    def inner(self) -> Gate:
        """Orders the children of a writer."""
        if self._inner is None:
            self._inner = Gate()
        return self._inner

    def covers(self, effect: Effect) -> bool:
        return self.effect is Effect.WRITE or effect is Effect.READ

    def leave(self) -> None:
        self.is_over = True
        self._release()
        if self._changed is not None:
            self._changed.set()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the lane while the context lasts, for what is awaited inside. `come_back` takes it again."""
        self._releases += 1
        self._release()
        try:
            yield
        finally:
            self._releases -= 1
            if self._changed is not None:
                self._changed.set()

    async def come_back(self) -> None:
        """Take the lane again, unless it is still released elsewhere, or the hold is over."""
        if self._returning is None:
            self._returning = asyncio.Lock()
        async with self._returning:
            if self.is_held or self._releases or self.is_over:
                return
            self._gate = await self._gates.admit(self.lane, self.effect, self.outer)
            self.is_held = True
            if self._releases or self.is_over:
                self._release()

    async def is_back(self) -> bool:
        """Wait until a released hold is held again; False when it is over."""
        while not (self.is_held or self.is_over):
            if self._releases:
                self._changed = self._changed or asyncio.Event()
                self._changed.clear()
                await self._changed.wait()
            else:
                await self.come_back()
        return self.is_held

    def _release(self) -> None:
        if self.is_held:
            self.is_held = False
            self._gate.leave(self.effect)
        self._gates.forget_idle(self.lane)


class Gates:
    """The gates of all lanes that are in use."""

    def __init__(self, queue_seconds: float) -> None:
        self._queue_seconds = queue_seconds
        self._gates: dict[str, Gate] = {}

    @asynccontextmanager
    async def queue_timeout(self) -> AsyncIterator[None]:
        """Raise `Overloaded` when the body takes longer than the queue timeout."""
        try:
            async with asyncio.timeout(self._queue_seconds) as clock:
                yield
        except TimeoutError:
            if not clock.expired():
                raise
            raise Overloaded(
                f"Other calls kept this workspace busy for {self._queue_seconds:g} s; try again later."
            ) from None

    def try_enter(self, lane: str, effect: Effect, held: GateHold | None) -> GateHold | None:
        """A hold, if the lane is free now. `held` is the parent's hold of the same lane, if it has one."""
        if held and not (held.is_held and held.covers(effect)):
            return None
        gate = self._gate_of(lane, held)
        is_beside = held is not None and held.effect is Effect.READ
        return GateHold(self, gate, lane, effect, held) if gate.try_enter(effect, beside=is_beside) else None

    @asynccontextmanager
    async def enter(self, lane: str, effect: Effect, held: GateHold | None) -> AsyncIterator[GateHold]:
        """Wait for the lane, at most the queue timeout."""
        if held and not held.covers(effect):
            with held.released():
                async with self.enter(lane, effect, held.outer) as hold:
                    yield hold
            return
        async with self.queue_timeout():
            gate = await self.admit(lane, effect, held)
        hold = GateHold(self, gate, lane, effect, held)
        try:
            yield hold
        finally:
            hold.leave()

    async def admit(self, lane: str, effect: Effect, held: GateHold | None) -> Gate:
        """Wait until the lane is free: beside a parent that reads there, else in the order of arrival."""
        while held is not None and not await held.is_back():
            held = held.outer
        gate = self._gate_of(lane, held)
        if not gate.try_enter(effect, beside=held is not None and held.effect is Effect.READ):
            await gate.enter(effect)
        return gate

    def forget_idle(self, lane: str) -> None:
        with suppress(KeyError):
            if self._gates[lane].is_idle:
                del self._gates[lane]

    def _gate_of(self, lane: str, held: GateHold | None) -> Gate:
        """The gate for a child of this hold: that of the nearest writer, else the lane's own."""
        while held is not None:
            if held.effect is Effect.WRITE:
                return held.inner
            held = held.outer
        gate = self._gates.get(lane)
        if gate is None:
            gate = self._gates[lane] = Gate()
        return gate


class BatchOrder:
    """The order in one batch: a writer waits for all before it in its lane, and all after a writer wait for it."""

    def __init__(self) -> None:
        self._slots: list[BatchSlot] = []

    def next(self) -> "BatchSlot":
        slot = BatchSlot(tuple(self._slots))
        self._slots.append(slot)
        return slot


class BatchSlot:
    """One call's place in its batch."""

    def __init__(self, earlier: "tuple[BatchSlot, ...]") -> None:
        self._earlier = earlier
        self._known = asyncio.Event()
        self._left = asyncio.Event()
        self._need: tuple[str, Effect] | None = None

    def declare(self, lane: str | None, effect: Effect) -> None:
        """Say which lane this call needs and how; later calls wait for that."""
        self._need = (lane, effect) if lane else None
        self._known.set()

    def leave(self) -> None:
        """This call has ended, whether it ever entered or not."""
        self._known.set()
        self._left.set()

    @property
    def is_clear(self) -> bool:
        """Whether it could continue now without waiting."""
        return self._need is None or all(
            slot._left.is_set() or (slot._known.is_set() and not self._waits_for(slot)) for slot in self._earlier
        )

    async def clear(self) -> None:
        for slot in self._earlier if self._need else ():
            await slot._known.wait()
            if self._waits_for(slot):
                await slot._left.wait()

    def _waits_for(self, earlier: "BatchSlot") -> bool:
        if self._need is None or earlier._need is None or self._need[0] != earlier._need[0]:
            return False
        return Effect.WRITE in (self._need[1], earlier._need[1])
