"""Lines: the service's end of what connects it with the keeper of a tree of processes."""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from app.core.sandbox import ExitStatus
from app.sandbox.process import messages, process_tree

log = logging.getLogger(__name__)

KILLED = 9
BY_SIGNAL = 128


class SupervisorLink:
    """One tree, as its keeper tells of it.

    `exited` is the code of the first process (negative: the signal), as soon as that is known; with `ended` nothing
    is left of the tree. `release` gets the end back when the keeper is free again.
    """

    def __init__(self, end: socket.socket, mark: str, release: Callable[[socket.socket], None]) -> None:
        self._end = end
        self._mark = mark
        self._release = release
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self.ended: asyncio.Future[ExitStatus] = self._loop.create_future()
        self._loop.add_reader(end.fileno(), self._hear)
        self._is_open = True

    def signal(self, number: int) -> None:
        """To the group of the first process."""
        self._say("signal", int(number))

    def end(self, grace: float = 0.0) -> None:
        """A kind signal to all of the tree, and after so many seconds the last one."""
        self._say("end", float(grace))

    def _say(self, *message: str | float) -> None:
        if self._is_open:
            with suppress(OSError):  # then the line has ended, and that is heard
                messages.send(self._end, message)

    def _hear(self) -> None:
        while self._is_open:
            try:
                received = messages.receive(self._end)
            except BlockingIOError:
                return
            except OSError:
                received = None
            match received:
                case (("exited", code), _):
                    self._exit(code)
                case (("ended", code, limit), _):
                    self._let_go()
                    self._release(self._end)
                    self._finish(code, ExitStatus(BY_SIGNAL + KILLED, limit) if limit else _ended(code))
                case None:
                    self._let_go()
                    self._end.close()
                    self._mourning = self._loop.create_task(self._mourn())

    async def _mourn(self) -> None:
        """The keeper was killed. Its tree is the spawner's now, and is killed there; here it is made sure."""
        if not await asyncio.to_thread(process_tree.kill_marked, self._mark.__eq__):
            log.error("processes with the mark %s cannot be killed", self._mark)
        self._finish(-KILLED, ExitStatus(BY_SIGNAL + KILLED))

    def _finish(self, code: int, ended: ExitStatus) -> None:
        self._exit(code)
        if not self.ended.done():
            self.ended.set_result(ended)

    def _exit(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)

    def _let_go(self) -> None:
        self._is_open = False
        self._loop.remove_reader(self._end.fileno())


def _ended(code: int) -> ExitStatus:
    return ExitStatus(code if code >= 0 else BY_SIGNAL - code)
