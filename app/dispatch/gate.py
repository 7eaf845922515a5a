"""The gate: readers of a lane together, a writer alone, all in the order they came."""

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
        """Enter if that is possible without waiting and without overtaking anybody.

        A reader `beside` one that is inside overtakes nobody: those who wait, wait for that one anyway.
        """
        if (self._waiting and not beside) or not self._is_free_for(effect):
            return False
        self._admit(effect)
        return True

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
                with suppress(ValueError):  # somebody left in the same tick, and the wake took it out already
                    self._waiting.remove((effect, turn))
                self._wake()
            raise

    def leave(self, effect: Effect) -> None:
        if effect is Effect.WRITE:
            self._writing = False
        else:
            self._readers -= 1
        self._wake()

    def _is_free_for(self, effect: Effect) -> bool:
        return not self._writing and (effect is Effect.READ or not self._readers)

    def _admit(self, effect: Effect) -> None:
        if effect is Effect.WRITE:
            self._writing = True
        else:
            self._readers += 1

    def _wake(self) -> None:
        while self._waiting and self._is_free_for(self._waiting[0][0]):
            effect, turn = self._waiting.popleft()
            if not turn.done():
                self._admit(effect)
                turn.set_result(None)


class GateHold:
    """The right to work in a lane. Children of a writer work inside it, ordered by a gate of its own; children of a
    reader read beside it, and for one that writes it steps aside. While it is aside, its other children wait."""

    __slots__ = (
        "_aside",
        "_gate",
        "_gates",
        "_inner",
        "_moved",
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
        self._aside = 0
        self._returning: asyncio.Lock | None = None  # made when they are needed, which is hardly ever
        self._moved: asyncio.Event | None = None
        self._inner: Gate | None = None
        self.is_held = True
        self.is_over = False
        self.lane = lane
        self.effect = effect
        self.outer = outer

    @property
    def inner(self) -> Gate:
        """Where the children of a writer take turns."""
        if self._inner is None:
            self._inner = Gate()
        return self._inner

    def covers(self, effect: Effect) -> bool:
        return self.effect is Effect.WRITE or effect is Effect.READ

    def leave(self) -> None:
        self.is_over = True
        self._let_go()
        self._move()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let go of the lane for a while, so that what is awaited meanwhile may need it. `come_back` takes it again."""
        self._aside += 1
        self._let_go()
        try:
            yield
        finally:
            self._aside -= 1
            self._move()

    async def come_back(self) -> None:
        """Take the lane again, unless it is wanted aside still, or its holder has gone."""
        if self._returning is None:
            self._returning = asyncio.Lock()
        async with self._returning:
            if self.is_held or self._aside or self.is_over:
                return
            self._gate = await self._gates.admit(self.lane, self.effect, self.outer)
            self.is_held = True
            if self._aside or self.is_over:
                self._let_go()

    async def is_back(self) -> bool:
        """See to it that a holder who stepped aside is there again; False when it is gone for good."""
        while not (self.is_held or self.is_over):
            if self._aside:
                self._moved = self._moved or asyncio.Event()
                self._moved.clear()
                await self._moved.wait()
            else:
                await self.come_back()
        return self.is_held

    def _move(self) -> None:
        if self._moved is not None:
            self._moved.set()

    def _let_go(self) -> None:
        if self.is_held:
            self.is_held = False
            self._gate.leave(self.effect)
        self._gates.forget_idle(self.lane)


class Gates:
    """The gates of all lanes that are in use."""

    def __init__(self, queue_timeout: float) -> None:
        self._queue_timeout = queue_timeout
        self._gates: dict[str, Gate] = {}

    @asynccontextmanager
    async def patience(self) -> AsyncIterator[None]:
        """Waiting is bounded; what is awaited inside takes at most `queue_timeout` seconds."""
        try:
            async with asyncio.timeout(self._queue_timeout) as clock:
                yield
        except TimeoutError:
            if not clock.expired():
                raise
            raise Overloaded(
                f"Other calls kept this place busy for {self._queue_timeout:g} s; try again later."
            ) from None

    def try_enter(self, lane: str, effect: Effect, held: GateHold | None) -> GateHold | None:
        """A pass, if the lane is free now. `held` is the caller's own pass of the same lane, if it has one."""
        if held and not (held.is_held and held.covers(effect)):
            return None
        gate = self._gate_of(lane, held)
        return GateHold(self, gate, lane, effect, held) if gate.try_enter(effect, beside=_reads(held)) else None

    @asynccontextmanager
    async def enter(self, lane: str, effect: Effect, held: GateHold | None) -> AsyncIterator[GateHold]:
        """Wait for the lane, at most `queue_timeout` seconds."""
        if held and not held.covers(effect):
            with held.aside():
                async with self.enter(lane, effect, held.outer) as mine:
                    yield mine
            return
        async with self.patience():
            gate = await self.admit(lane, effect, held)
        mine = GateHold(self, gate, lane, effect, held)
        try:
            yield mine
        finally:
            mine.leave()

    async def admit(self, lane: str, effect: Effect, held: GateHold | None) -> Gate:
        """Wait until the lane lets this in: beside a caller who reads there, else in the order of arrival."""
        while held is not None and not await held.is_back():
            held = held.outer
        gate = self._gate_of(lane, held)
        if not gate.try_enter(effect, beside=_reads(held)):
            await gate.enter(effect)
        return gate

    def forget_idle(self, lane: str) -> None:
        with suppress(KeyError):
            if self._gates[lane].is_idle:
                del self._gates[lane]

    def _gate_of(self, lane: str, held: GateHold | None) -> Gate:
        """Where a child of this pass goes: inside the nearest writer, else to the lane's own gate."""
        while held is not None:
            if held.effect is Effect.WRITE:
                return held.inner
            held = held.outer
        gate = self._gates.get(lane)
        if gate is None:
            gate = self._gates[lane] = Gate()
        return gate


def _reads(held: GateHold | None) -> bool:
    return held is not None and held.effect is Effect.READ


class BatchOrder:
    """The order within one batch: a writer comes after all before it in its lane, all after a writer wait for it."""

    def __init__(self) -> None:
        self._places: list[BatchSlot] = []

    def next(self) -> "BatchSlot":
        place = BatchSlot(tuple(self._places))
        self._places.append(place)
        return place


class BatchSlot:
    """One call's place in its batch."""

    def __init__(self, earlier: "tuple[BatchSlot, ...]") -> None:
        self._earlier = earlier
        self._known = asyncio.Event()
        self._left = asyncio.Event()
        self._wish: tuple[str, Effect] | None = None

    def declare(self, lane: str | None, effect: Effect) -> None:
        """Say where this call is going; those behind need to know."""
        self._wish = (lane, effect) if lane else None
        self._known.set()

    def leave(self) -> None:
        """This call has ended, whether it ever entered or not."""
        self._known.set()
        self._left.set()

    @property
    def is_clear(self) -> bool:
        """Whether it could go on now without waiting."""
        return self._wish is None or all(
            place._left.is_set() or (place._known.is_set() and not self._minds(place)) for place in self._earlier
        )

    async def clear(self) -> None:
        for place in self._earlier if self._wish else ():
            await place._known.wait()
            if self._minds(place):
                await place._left.wait()

    def _minds(self, earlier: "BatchSlot") -> bool:
        if self._wish is None or earlier._wish is None or self._wish[0] != earlier._wish[0]:
            return False
        return Effect.WRITE in (self._wish[1], earlier._wish[1])
