"""Kernels: the interpreters of sessions, each started when it is first needed.

A kernel outlives the call that started it. It ends with its session, with the service, or when it is idle for too
long. One that has ended, or whose session now has another sandbox, is replaced; the next call's output says that its
definitions are gone.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from app.core.errors import InvalidArgs, ToolUnavailable
from app.core.ports import Clock, Workspace
from app.core.sandbox import NetworkDecision, Process, SandboxedProcesses
from app.core.sessions import Session
from app.core.terminals import Kernel, Recipe
from app.dispatch.live_calls import LiveCall

SWEEP_SECONDS = 15.0
BUSY_WITH_CALLER = (
    "The interpreter runs the cell that made this call and can run nothing else meanwhile; do it in that cell."
)
GONE = "so what was defined in it is gone."
STOPPING = "The service is stopping."

Name = tuple[str, str, str]
"""A principal, the id of one of its sessions, and a kind of kernel."""


class Start(NamedTuple):
    """What a kernel is started with."""

    workspace: Workspace
    environment: Callable[[], Awaitable[dict[str, str]]]
    report: Callable[[NetworkDecision], None]


@dataclass(slots=True)
class _Running:
    """A kernel's process, its memory limit, and the workspace and network policy it was started for."""

    process: Process
    memory: int | None
    environment: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _KernelForCall:
    """The `Kernel` port, for one call."""

    process: Process
    is_fresh: bool
    lost: str | None


@dataclass(slots=True)
class _Slot:
    """A session's kernel of one kind. `lost`: why the previous kernel's definitions are gone, for the next call."""

    used: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    kernel: _Running | None = None
    user: LiveCall | None = None
    waiting: int = 0
    lost: str | None = None

    async def empty(self, why: str | None = None) -> None:
        kernel, self.kernel = self.kernel, None
        if kernel is not None:
            self.lost = why
            await kernel.process.close()


class Kernels:
    """All kernels of all sessions, at most one of a kind in each."""

    def __init__(
        self,
        processes: SandboxedProcesses,
        recipes: Mapping[str, Recipe],
        clock: Clock,
        *,
        memory: int,
        idle: float,
    ) -> None:
        self._processes = processes
        self._recipes = recipes
        self._clock = clock
        self._memory = memory
        self._idle = idle
        self._slots: dict[Name, _Slot] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False

    @asynccontextmanager
    async def held(self, live: LiveCall, kind: str, memory: int | None, start: Start) -> AsyncIterator[Kernel]:
        """The session's kernel, for one call at a time."""
        if memory is not None and memory > self._memory:
            limit = f"{self._memory / 1024**3:.3g}g"
            raise InvalidArgs(f"An interpreter can have at most {limit} of memory here; ask for less, or leave it out.")
        name = (live.session.principal, live.session.id, kind)
        slot = self._slots.setdefault(name, _Slot(self._clock.monotonic()))
        if _is_child_of(live, slot.user):
            raise ToolUnavailable(BUSY_WITH_CALLER)
        slot.waiting += 1
        why = None
        try:
            async with slot.lock:
                slot.user = live
                yield await self._get_kernel(slot, live.session, kind, memory, start)
        except asyncio.CancelledError:
            why = f"The call before was stopped and the interpreter with it, {GONE}"
            raise
        finally:
            slot.waiting -= 1
            slot.used = self._clock.monotonic()
            if slot.user is live:
                slot.user = None
                await self._clean_up(name, slot, why)

    async def drop(self, principal: str, session: str, kind: str) -> bool:
        """End a kernel, also while a call uses it; False when there was none."""
        slot = self._slots.get((principal, session, kind))
        if slot is None or slot.kernel is None:
            return False
        was_alive = slot.kernel.process.ended is None
        await slot.empty()
        return was_alive

    async def end_session(self, principal: str, session: str) -> None:
        """End the kernels of a session that is deleted."""
        own = [name for name in self._slots if name[:2] == (principal, session)]
        await asyncio.gather(*(self._slots.pop(name).empty() for name in own))

    async def sweep(self) -> None:
        """End the kernels that are idle for too long."""
        over = self._clock.monotonic() - self._idle
        why = f"The interpreter was ended after {self._idle:g} s without use, {GONE}"
        idle = [slot for slot in self._slots.values() if not slot.waiting and slot.kernel and slot.used <= over]
        await asyncio.gather(*(slot.empty(why) for slot in idle))

    async def close(self) -> None:
        """End every kernel."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        slots, self._slots = self._slots, {}
        await asyncio.gather(*(slot.empty() for slot in slots.values()))

    async def _get_kernel(self, slot: _Slot, session: Session, kind: str, memory: int | None, start: Start) -> Kernel:
        if (why := self._outdated(slot.kernel, session, memory, start)) is not None:
            await slot.empty(why)
        is_fresh = slot.kernel is None
        if slot.kernel is None:
            slot.kernel = await self._start(session, kind, memory, start)
        lost, slot.lost = slot.lost, None
        return _KernelForCall(slot.kernel.process, is_fresh, lost if is_fresh else None)

    def _outdated(self, kernel: _Running | None, session: Session, memory: int | None, start: Start) -> str | None:
        """Why a kernel must be replaced, as a sentence; None when it need not be, or there is none."""
        if kernel is None:
            return None
        if kernel.process.ended is not None:
            return f"The interpreter had ended, {GONE}"
        isolation = self._processes.isolation(session)
        if kernel.environment != _environment(session, start) or (
            isolation is not None and isolation != kernel.process.isolation
        ):
            return f"The session was changed and the interpreter restarted, {GONE}"
        if memory is not None and kernel.memory is not None and memory > kernel.memory:
            return f"The interpreter was restarted to have more memory, {GONE}"
        return None

    async def _start(self, session: Session, kind: str, memory: int | None, start: Start) -> _Running:
        recipe = self._recipes.get(kind)
        if recipe is None:
            raise ToolUnavailable(f"This service has no interpreter of the kind {kind}.")
        command = await recipe(memory)
        command = replace(command, env={**command.env, **await start.environment()})
        process = await self._processes.start(command, session, start.workspace, start.report)
        if self._is_closed:
            await process.close()
            raise ToolUnavailable(STOPPING)
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep_forever())
        return _Running(process, command.memory, _environment(session, start))

    async def _clean_up(self, name: Name, slot: _Slot, why: str | None) -> None:
        """Drop a kernel that ended while it was used, and a slot that holds nothing."""
        if self._slots.get(name) is not slot:
            await slot.empty()  # its session is gone, or the service stops
        elif slot.kernel is not None and slot.kernel.process.ended is not None:
            await slot.empty(why)
        if slot.kernel is None and slot.lost is None and not slot.waiting and self._slots.get(name) is slot:
            del self._slots[name]

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._idle / 4))
            await self.sweep()


def _environment(session: Session, start: Start) -> tuple[Any, ...]:
    return start.workspace.root, session.network_policy


def _is_child_of(live: LiveCall | None, user: LiveCall | None) -> bool:
    """Whether the call that uses the kernel made this one."""
    while live is not None and user is not None:
        if live is user:
            return True
        live = live.parent
    return False
