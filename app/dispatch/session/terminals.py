"""Terminals: the processes of sessions that go on between calls, each with its number.

One that has ended stays until a call was told so, and is unknown from then on.
Nobody can forget one for good: too many, and those not used for longest go;
not used for too long, and it ends.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from app.core.errors import InvalidArgs, ToolUnavailable
from app.core.events import Event, EventType
from app.core.ports import Clock, Workspace
from app.core.sandbox import Command, SandboxedProcesses, WindowSize
from app.core.terminals import Terminal, TerminalView
from app.core.util.json_codec import dumps
from app.dispatch.events.hub import EventHub
from app.dispatch.journal import Journal
from app.dispatch.live_calls import LiveCall
from app.dispatch.redaction import CallRedactor
from app.dispatch.session.terminal_reader import LiveTerminal, TerminalInfo

log = logging.getLogger(__name__)

NUMBERS = range(1000, 100_000)
PROTECTED = 8
"""So many of those used last are never ended to make room; where few are allowed, half of them."""
SWEEP_SECONDS = 15.0

Name = tuple[str, str]
"""A principal and the id of one of its sessions."""


class Terminals:
    """All terminals of all sessions."""

    def __init__(
        self,
        walled: SandboxedProcesses,
        journal: Journal,
        redactor: CallRedactor,
        hub: EventHub,
        clock: Clock,
        *,
        limit: int,
        idle: float,
    ) -> None:
        self._walled = walled
        self._journal = journal
        self._redactor = redactor
        self._hub = hub
        self._clock = clock
        self._limit = limit
        self._idle = idle
        self._open: dict[Name, dict[int, LiveTerminal]] = {}
        self._opening: Counter[Name] = Counter()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False

    async def open(self, live: LiveCall, workspace: Workspace, command: Command, shown: str) -> Terminal:
        name = (live.session.principal, live.session.id)
        self._make_room(name)
        self._opening[name] += 1
        try:
            report = partial(self._journal.publish_network_decision, live)
            child = await self._walled.start(command, live.session, workspace, report)
        finally:
            self._opening[name] -= 1
        if self._is_closed or live.stop is not None:
            await child.close()
            raise live.stop or ToolUnavailable("The service is stopping.")
        mine = self._open.setdefault(name, {})
        number = _free(mine)
        takes_input = command.has_stdin or command.tty is not None
        plate = TerminalInfo(number, *name, live.call.id, shown, command.tty is not None, takes_input)
        body = {"command": shown, "tty": plate.is_tty, "sandbox": child.isolation.view()}
        terminal = mine[number] = LiveTerminal(
            plate,
            child,
            self._clock,
            cover=self._redactor.output_stream,
            show=partial(self._hub.publish_terminal, plate),
            opened=self._tell(EventType.TERMINAL_OPENED, plate, body),
            over=self._tell_closed,
            told=self._forget,
        )
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep_on())
        return terminal

    def get(self, live: LiveCall, id: int) -> Terminal:
        found = self._open.get((live.session.principal, live.session.id), {}).get(id)
        if found is None:
            raise InvalidArgs(
                f"Unknown process id {id}: it has ended and you were told so, nobody used it for too long, or there "
                "never was one; start the command anew with exec_command."
            )
        return found

    def list(self, principal: str, session: str) -> list[TerminalView]:
        mine = self._open.get((principal, session), {}).values()
        return [self._shown(terminal) for terminal in mine if not terminal.is_dismissed]

    def find(self, principal: str, session: str, id: int) -> TerminalView | None:
        found = self._seen(principal, session, id)
        return None if found is None else self._shown(found)

    async def kill(self, principal: str, session: str, id: int) -> bool:
        """End one from outside; False when there is none. Its session's model may still hear how it ended."""
        found = self._seen(principal, session, id)
        if found is None:
            return False
        found.is_dismissed = True
        await found.stop("killed")
        return True

    def resize(self, principal: str, session: str, id: int, window: WindowSize) -> bool:
        """False when there is none; raises `InvalidArgs` for one that is no terminal but a process with pipes."""
        found = self._seen(principal, session, id)
        if found is None:
            return False
        if not found.plate.is_tty:
            raise InvalidArgs("It was started without a tty, so it has no size.")
        found.resize(window)
        return True

    async def end_session(self, principal: str, session: str) -> None:
        """The session is deleted, and so is what runs in it."""
        await _end_all(self._open.pop((principal, session), {}).values(), "session")

    async def sweep(self) -> None:
        """End those that nobody used for too long."""
        over = self._clock.monotonic() - self._idle
        idle = [one for mine in self._open.values() for one in mine.values() if not one.is_used and one.used <= over]
        for terminal in idle:
            self._forget(terminal)
        await _end_all(idle, "idle")

    async def close(self) -> None:
        """The service stops. When this comes back everything has ended, and was told."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        mine, self._open = self._open, {}
        await _end_all((terminal for some in mine.values() for terminal in some.values()), "shutdown")
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _seen(self, principal: str, session: str, id: int) -> LiveTerminal | None:
        found = self._open.get((principal, session), {}).get(id)
        return None if found is None or found.is_dismissed else found

    def _shown(self, terminal: LiveTerminal) -> TerminalView:
        view = terminal.view()
        return replace(view, command=self._redactor.redact_text(view.command))

    def _make_room(self, name: Name) -> None:
        """The place is free at once; the process ends beside."""
        mine = self._open.get(name, {})
        while len(mine) + self._opening[name] >= self._limit:
            if (victim := _expendable(mine.values(), self._limit)) is None:
                raise ToolUnavailable("Calls are at as many processes of this session as it may have; wait for one.")
            self._forget(victim)
            self._keep(asyncio.create_task(victim.stop("pruned")))

    def _forget(self, terminal: LiveTerminal) -> None:
        name = (terminal.plate.principal, terminal.plate.session)
        mine = self._open.get(name, {})
        mine.pop(terminal.id, None)
        if not mine:
            self._open.pop(name, None)

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._idle / 4))
            await self.sweep()

    def _tell_closed(self, terminal: LiveTerminal) -> None:
        assert terminal.ended is not None, "it is over"
        code, limit = terminal.ended
        body: dict[str, Any] = {"exit_code": code, "reason": terminal.reason}
        self._tell(EventType.TERMINAL_CLOSED, terminal.plate, body | {"limit": limit} if limit else body)

    def _tell(self, type: EventType, plate: TerminalInfo, data: dict[str, Any]) -> "asyncio.Future[None]":
        """The end of the service waits for it."""
        text = self._redactor.redact_json(dumps({"terminal": plate.id, **data}).decode())
        event = Event(0, type, plate.call, plate.principal, plate.session, self._clock.now(), text)
        telling = self._journal.submit(lambda batch: batch.publish(event))
        self._keep(telling)
        return telling

    def _keep(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("what became of a terminal could not be recorded: %s", error)


async def _end_all(terminals: Iterable[LiveTerminal], reason: str) -> None:
    await asyncio.gather(*(terminal.stop(reason) for terminal in terminals))


def _expendable(mine: Iterable[LiveTerminal], limit: int) -> LiveTerminal | None:
    """Who goes first: one that has ended, else the one that nobody used for longest; never one of those used last, or
    that a call is at."""
    by_use = sorted(mine, key=lambda terminal: (terminal.is_used, terminal.used))
    oldest = by_use[: max(len(by_use) - min(PROTECTED, limit // 2), 0)]
    candidates = [terminal for terminal in oldest if not terminal.is_used]
    return min(candidates, key=lambda terminal: terminal.ended is None, default=None)


def _free(taken: dict[int, LiveTerminal]) -> int:
    while (number := secrets.choice(NUMBERS)) in taken:
        pass
    return number
