"""Keepers: each looks after one tree of processes at a time, from its seed to the last that is reaped.

A keeper is the subreaper of its tree, so that nobody in it can leave. When the service lets go of the line the tree
is killed; when the tree is gone the keeper makes the next seed and is free again.
"""

import errno
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from app.sandbox import syscalls
from app.sandbox.process import messages, preforked, process_tree
from app.sandbox.process.watchdog import Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PIECE = 4096
NEVER = float("inf")


def keep(line: socket.socket) -> "NoReturn":
    """Look after one tree after another, until the service lets go of the line."""
    try:
        syscalls.prctl(syscalls.SET_CHILD_SUBREAPER, 1)
        bell = ring()
        while _SupervisedTree(line, bell).live():
            pass
    except ConnectionError:  # the service is gone
        pass
    except BaseException:  # noqa: BLE001 - whatever it is, the tree has to go
        sys.excepthook(*sys.exc_info())
    finally:
        process_tree.kill_all(reap)
        os._exit(0)


def ring() -> int:
    """A descriptor that can be read when a child has ended."""
    bell, hammer = os.pipe()
    for fd in (bell, hammer):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    inherited = signal.set_wakeup_fd(hammer, warn_on_full_buffer=False)
    if inherited >= 0:
        os.close(inherited)
    return bell


def hush(bell: int) -> None:
    with suppress(BlockingIOError):
        os.read(bell, PIECE)


def reap() -> bool:
    """Take in who has ended; whether nobody is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


class _SupervisedTree:
    """One tree. `kill_at` is when what is left of it is killed."""

    def __init__(self, line: socket.socket, bell: int) -> None:
        self._line = line
        self._bell = bell
        self._status: int | None = None
        self._is_empty = False
        self._is_lost = False
        self._is_ordered = False
        self._is_wrapped = False
        self._limit: str | None = None
        self._grace = 0.0
        self._kill_at = NEVER
        self._watchdog = Watchdog(None, None)
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)
        self._poll.register(bell, select.POLLIN)

    def live(self) -> bool:
        """From seed to end; whether there can be another after it."""
        self._sow()
        while not self._is_empty:
            self._wait()
            self._reap()
            if self._is_lost or (self._is_empty and not self._is_ordered):
                return False
            if self._is_ordered and not self._is_empty and self._is_time() and not process_tree.kill_all(self._reap):
                break  # there is one who cannot be killed
        status = self._status if self._status is not None else -signal.SIGKILL
        messages.send(self._line, ("ended", status, self._limit))
        return self._is_empty

    def _sow(self) -> None:
        ours, theirs = messages.pair()
        self._first = os.fork()
        if self._first == 0:
            self._line.close()
            ours.close()
            os.close(self._bell)
            preforked.grow(theirs)
        theirs.close()
        ours.setblocking(False)
        messages.send(self._line, ("ready", self._first), [ours.fileno()])
        ours.close()

    def _wait(self) -> None:
        due = min(self._watchdog.due, self._kill_at)
        rest = None if due == NEVER else max(0.0, due - time.monotonic()) * 1000
        for fd, _ in self._poll.poll(rest):
            if fd == self._bell:
                hush(fd)
            else:
                self._hear()

    def _hear(self) -> None:
        received = messages.receive(self._line)
        if received is None:
            self._is_lost = True
            return
        match received[0]:
            case ("watch", grace, memory, processes, is_wrapped):
                self._is_ordered, self._grace, self._is_wrapped = True, grace, is_wrapped
                self._watchdog = Watchdog(memory, processes)
            case ("signal", number) if self._is_ordered and self._status is None:
                with suppress(OSError):  # it became somebody we cannot reach
                    os.killpg(self._group(), number)
            case ("end", grace) if self._is_ordered:  # otherwise meant for the tree before this one
                self._end(grace)

    def _end(self, grace: float) -> None:
        if grace > 0 and self._kill_at == NEVER:
            told = [pid for pid in process_tree.below() if not (self._is_wrapped and pid == self._first)]
            process_tree.tell_all(told, signal.SIGTERM, signal.SIGCONT)  # who is stopped could not hear it
        self._kill_at = min(self._kill_at, time.monotonic() + grace)

    def _group(self) -> int:
        """That of the program. Behind bwrap it is a grandchild; bwrap's own end would be that of all."""
        program = self._first
        for _ in range(2 if self._is_wrapped else 0):
            program = next(iter(process_tree.children(program)), 0)
            if not program:
                raise ProcessLookupError(errno.ESRCH, "it has not begun yet")
        return os.getpgid(program) if self._is_wrapped else program

    def _reap(self) -> bool:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_empty = True
                return True
            if pid == 0:
                return False
            if pid == self._first:
                self._status = os.waitstatus_to_exitcode(status)

    def _is_time(self) -> bool:
        """Whether what is there has to end now."""
        if self._status is not None and self._kill_at == NEVER:
            messages.send(self._line, ("exited", self._status))
            self._kill_at = time.monotonic() + self._grace
        if self._watchdog.is_due:
            self._limit = self._watchdog.look(process_tree.below())
        return self._limit is not None or self._kill_at <= time.monotonic()
