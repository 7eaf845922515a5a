"""Terminals: processes of sessions that outlive calls, each with its number.

One that has ended is listed until a call has read that. When a session has too many, the one used longest ago is
ended; one that is idle for too long is ended too.
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
"""How many of the most recently used terminals are never ended to make room; half the limit where that is less."""
SWEEP_SECONDS = 15.0

Name = tuple[str, str]
"""A principal and the id of one of its sessions."""


class Terminals:
    """All terminals of all sessions."""

    def __init__(
        self,
        processes: SandboxedProcesses,
        journal: Journal,
        redactor: CallRedactor,
        hub: EventHub,
        clock: Clock,
        *,
        limit: int,
        idle: float,
    ) -> None:
        self._processes = processes
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

    async def open(self, live: LiveCall, workspace: Workspace, command: Command, title: str) -> Terminal:
        name = (live.session.principal, live.session.id)
        self._make_room(name)
        self._opening[name] += 1
        try:
            report = partial(self._journal.publish_network_decision, live)
            child = await self._processes.start(command, live.session, workspace, report)
        finally:
            self._opening[name] -= 1
        if self._is_closed or live.stop is not None:
            await child.close()
            raise live.stop or ToolUnavailable("The service is stopping.")
        own = self._open.setdefault(name, {})
        while (number := secrets.choice(NUMBERS)) in own:
            pass
        takes_input = command.has_stdin or command.tty is not None
        info = TerminalInfo(number, *name, live.call.id, title, command.tty is not None, takes_input)
        body = {"command": title, "tty": info.is_tty, "sandbox": child.isolation.view()}
        terminal = own[number] = LiveTerminal(
            info,
            child,
            self._clock,
            redaction=self._redactor.output_stream,
            show=partial(self._hub.publish_terminal, info),
            opened=self._publish(EventType.TERMINAL_OPENED, info, body),
            on_exit=self._publish_closed,
            on_exit_read=self._forget,
        )
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep_forever())
        return terminal

    def get(self, live: LiveCall, id: int) -> Terminal:
        found = self._open.get((live.session.principal, live.session.id), {}).get(id)
        if found is None:
            raise InvalidArgs(
                f"Unknown process id {id}: it has ended and that was reported, it was idle for too long, or it never "
                "existed; start the command again with exec_command."
            )
        return found

    def list(self, principal: str, session: str) -> list[TerminalView]:
        own = self._open.get((principal, session), {}).values()
        return [self._shown(terminal) for terminal in own if not terminal.is_dismissed]

    def find(self, principal: str, session: str, id: int) -> TerminalView | None:
        found = self._seen(principal, session, id)
        return None if found is None else self._shown(found)

    async def kill(self, principal: str, session: str, id: int) -> bool:
        """End a terminal for a client; False when there is none. The model can still read how it ended."""
        found = self._seen(principal, session, id)
        if found is None:
            return False
        found.is_dismissed = True
        await found.stop("killed")
        return True

    def resize(self, principal: str, session: str, id: int, window: WindowSize) -> bool:
        """False when there is none; raises `InvalidArgs` for a process with pipes instead of a tty."""
        found = self._seen(principal, session, id)
        if found is None:
            return False
        if not found.info.is_tty:
            raise InvalidArgs("It was started without a tty, so it has no size.")
        found.resize(window)
        return True

    async def end_session(self, principal: str, session: str) -> None:
        """End the terminals of a session that is deleted."""
        await _end_all(self._open.pop((principal, session), {}).values(), "session")

    async def sweep(self) -> None:
        """End the terminals that are idle for too long."""
        over = self._clock.monotonic() - self._idle
        idle = [one for own in self._open.values() for one in own.values() if not one.is_used and one.used <= over]
        for terminal in idle:
            self._forget(terminal)
        await _end_all(idle, "idle")

    async def close(self) -> None:
        """End every terminal and wait until that is stored."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        terminals, self._open = self._open, {}
        await _end_all((terminal for some in terminals.values() for terminal in some.values()), "shutdown")
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _seen(self, principal: str, session: str, id: int) -> LiveTerminal | None:
        found = self._open.get((principal, session), {}).get(id)
        return None if found is None or found.is_dismissed else found

    def _shown(self, terminal: LiveTerminal) -> TerminalView:
        view = terminal.view()
        return replace(view, command=self._redactor.redact_text(view.command))

    def _make_room(self, name: Name) -> None:
        """Free a slot at once; its process is ended in the background."""
        own = self._open.get(name, {})
        while len(own) + self._opening[name] >= self._limit:
            if (victim := _expendable(own.values(), self._limit)) is None:
                raise ToolUnavailable(
                    "Calls use as many processes of this session as it may have; wait for one to end."
                )
            self._forget(victim)
            self._track(asyncio.create_task(victim.stop("pruned")))

    def _forget(self, terminal: LiveTerminal) -> None:
        name = (terminal.info.principal, terminal.info.session)
        own = self._open.get(name, {})
        own.pop(terminal.id, None)
        if not own:
            self._open.pop(name, None)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._idle / 4))
            await self.sweep()

    def _publish_closed(self, terminal: LiveTerminal) -> None:
        assert terminal.ended is not None, "it has ended"
        code, limit = terminal.ended
        body: dict[str, Any] = {"exit_code": code, "reason": terminal.reason}
        self._publish(EventType.TERMINAL_CLOSED, terminal.info, body | {"limit": limit} if limit else body)

    def _publish(self, type: EventType, info: TerminalInfo, data: dict[str, Any]) -> "asyncio.Future[None]":
        """Store an event; closing the service waits for it."""
        text = self._redactor.redact_json(dumps({"terminal": info.id, **data}).decode())
        event = Event(0, type, info.call, info.principal, info.session, self._clock.now(), text)
        stored = self._journal.submit(lambda batch: batch.publish(event))
        self._track(stored)
        return stored

    def _track(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("an event of a terminal could not be stored: %s", error)


async def _end_all(terminals: Iterable[LiveTerminal], reason: str) -> None:
    await asyncio.gather(*(terminal.stop(reason) for terminal in terminals))


def _expendable(terminals: Iterable[LiveTerminal], limit: int) -> LiveTerminal | None:
    """The terminal to end first: one that has exited, else the one used longest ago; never one of the most recently
    used, or one that a call uses."""
    by_use = sorted(terminals, key=lambda terminal: (terminal.is_used, terminal.used))
    oldest = by_use[: max(len(by_use) - min(PROTECTED, limit // 2), 0)]
    candidates = [terminal for terminal in oldest if not terminal.is_used]
    return min(candidates, key=lambda terminal: terminal.ended is None, default=None)
