"""The spawner process and its supervisors.

The service is large and has many threads: forking it would be slow and unsafe, and PR_SET_PDEATHSIG follows the
forking thread. So one small single-threaded process, the spawner, forks a supervisor for each socket that the service
sends. The spawner exits when the service does, and kills what a killed supervisor left behind.

A supervisor looks after one process tree at a time, from a pre-forked child to the last reaped process. It is the
subreaper of its tree, so no process can leave it. When the service closes the socket the tree is killed; when the
tree is gone the supervisor forks the next child and is idle again.
"""

import errno
import gc
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from app.sandbox import syscalls
from app.sandbox.isolation import apply
from app.sandbox.process import messages, preforked, process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, NoReturn

CONTROL_FD = 3
SHUTDOWN_SECONDS = 0.5
WAKEUP_BYTES = 4096
NEVER = float("inf")
MIN_CHECK_SECONDS, MAX_CHECK_SECONDS = 0.25, 1.0
SAME_MEMORY_RATIO = 0.02


def main() -> "NoReturn":
    """Run the spawner for the service at the other end of descriptor 3."""
    apply.prepare()
    gc.collect()
    gc.disable()
    gc.freeze()
    os.chdir("/")
    os.closerange(CONTROL_FD + 1, os.sysconf("SC_OPEN_MAX"))
    for number in preforked.IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    syscalls.prctl(syscalls.SET_CHILD_SUBREAPER, 1)
    _Spawner(messages.socket_of(CONTROL_FD)).serve()
    os._exit(0)


class _Spawner:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._supervisors: set[int] = set()
        self._sigchld = sigchld_fd()
        self._poll = select.poll()
        self._poll.register(self._sigchld, select.POLLIN)

    def serve(self) -> None:
        self._poll.register(self._control, select.POLLIN)
        while self._wait():
            pass
        self._poll.unregister(self._control)
        self._control.close()
        self._shut_down()

    def _wait(self) -> bool:
        """Handle the next events; false when the service has closed the control socket."""
        ready = [fd for fd, _ in self._poll.poll()]
        if self._sigchld in ready:
            self._reap_orphans()
        if self._control.fileno() not in ready:
            return True
        received = messages.receive(self._control)
        if received is None:
            return False
        for fd in received[1]:
            self._fork_supervisor(messages.socket_of(fd))
        return True

    def _fork_supervisor(self, link: socket.socket) -> None:
        """Where none can be forked, the service sees the socket close."""
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            self._control.close()
            os.close(self._sigchld)
            supervise(link)
        link.close()
        self._supervisors.add(pid)

    def _reap_orphans(self) -> None:
        drain(self._sigchld)
        if not self._reap():
            process_tree.kill_all(self._reap, self._supervisors)

    def _reap(self) -> bool:
        """Whether only supervisors are left. Any other child is an orphan of a supervisor that was killed."""
        try:
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                self._supervisors.discard(pid)
        except ChildProcessError:
            return True
        return self._supervisors.issuperset(process_tree.children(os.getpid()))

    def _shut_down(self) -> None:
        """The supervisors have seen the service end, too, and kill their trees; what is left is killed here."""
        until = time.monotonic() + SHUTDOWN_SECONDS
        while process_tree.children(os.getpid()) and time.monotonic() < until:
            self._poll.poll(max(0.0, until - time.monotonic()) * 1000)
            self._reap_orphans()
        process_tree.kill_all(self._reap)


def supervise(link: socket.socket) -> "NoReturn":
    """Look after one tree after another, until the service closes the socket."""
    try:
        syscalls.prctl(syscalls.SET_CHILD_SUBREAPER, 1)
        sigchld = sigchld_fd()
        while _SupervisedTree(link, sigchld).run():
            pass
    except ConnectionError:  # the service is gone
        pass
    except BaseException:  # noqa: BLE001 - whatever it is, the tree has to be killed
        sys.excepthook(*sys.exc_info())
    finally:
        process_tree.kill_all(reap)
        os._exit(0)


def sigchld_fd() -> int:
    """A descriptor that becomes readable when a child has ended."""
    reads, writes = os.pipe()
    for fd in (reads, writes):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    inherited = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    if inherited >= 0:
        os.close(inherited)
    return reads


def drain(fd: int) -> None:
    with suppress(BlockingIOError):
        os.read(fd, WAKEUP_BYTES)


def reap() -> bool:
    """Reap all children that have ended; whether none is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


class _SupervisedTree:
    """One process tree. `kill_at` is when what is left of it is killed."""

    def __init__(self, link: socket.socket, sigchld: int) -> None:
        self._link = link
        self._sigchld = sigchld
        self._status: int | None = None
        self._is_empty = False
        self._is_lost = False
        self._is_requested = False
        self._is_wrapped = False
        self._limit: str | None = None
        self._grace = 0.0
        self._kill_at = NEVER
        self._watchdog = Watchdog(None, None)
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._poll.register(sigchld, select.POLLIN)

    def run(self) -> bool:
        """From the fork to the end; whether the supervisor can be used again."""
        self._fork_child()
        while not self._is_empty:
            self._wait()
            self._reap()
            if self._is_lost or (self._is_empty and not self._is_requested):
                return False
            if self._is_requested and not self._is_empty and self._is_due() and not process_tree.kill_all(self._reap):
                break  # a process cannot be killed
        status = self._status if self._status is not None else -signal.SIGKILL
        messages.send(self._link, ("ended", status, self._limit))
        return self._is_empty

    def _fork_child(self) -> None:
        ours, theirs = messages.socket_pair()
        self._first = os.fork()
        if self._first == 0:
            self._link.close()
            ours.close()
            os.close(self._sigchld)
            preforked.wait_for_request(theirs)
        theirs.close()
        ours.setblocking(False)
        messages.send(self._link, ("ready", self._first), [ours.fileno()])
        ours.close()

    def _wait(self) -> None:
        due = min(self._watchdog.due, self._kill_at)
        rest = None if due == NEVER else max(0.0, due - time.monotonic()) * 1000
        for fd, _ in self._poll.poll(rest):
            if fd == self._sigchld:
                drain(fd)
            else:
                self._handle_message()

    def _handle_message(self) -> None:
        received = messages.receive(self._link)
        if received is None:
            self._is_lost = True
            return
        match received[0]:
            case ("watch", grace, memory, processes, is_wrapped):
                self._is_requested, self._grace, self._is_wrapped = True, grace, is_wrapped
                self._watchdog = Watchdog(memory, processes)
            case ("signal", number) if self._is_requested and self._status is None:
                with suppress(OSError):  # it changed its user
                    os.killpg(self._group(), number)
            case ("end", grace) if self._is_requested:  # otherwise meant for the tree before this one
                self._end(grace)

    def _end(self, grace: float) -> None:
        if grace > 0 and self._kill_at == NEVER:
            pids = [pid for pid in process_tree.descendants_of_self() if not (self._is_wrapped and pid == self._first)]
            process_tree.signal_all(pids, signal.SIGTERM, signal.SIGCONT)  # a stopped process handles no SIGTERM
        self._kill_at = min(self._kill_at, time.monotonic() + grace)

    def _group(self) -> int:
        """The process group of the program. Under bwrap it is a grandchild; killing bwrap would end everything."""
        program = self._first
        for _ in range(2 if self._is_wrapped else 0):
            program = next(iter(process_tree.children(program)), 0)
            if not program:
                raise ProcessLookupError(errno.ESRCH, "it has not started yet")
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

    def _is_due(self) -> bool:
        """Whether the tree has to be killed now."""
        if self._status is not None and self._kill_at == NEVER:
            messages.send(self._link, ("exited", self._status))
            self._kill_at = time.monotonic() + self._grace
        if self._watchdog.is_due:
            self._limit = self._watchdog.check(process_tree.descendants_of_self())
        return self._limit is not None or self._kill_at <= time.monotonic()


class Watchdog:
    """Checks the memory and thread count of a tree: often, and less often while nothing changes."""

    def __init__(self, memory: int | None, processes: int | None) -> None:
        self._memory = memory
        self._processes = processes
        self._pause = MIN_CHECK_SECONDS
        self._last = (0, 0)
        self.due = NEVER if memory is None and processes is None else time.monotonic() + MIN_CHECK_SECONDS

    @property
    def is_due(self) -> bool:
        return self.due <= time.monotonic()

    def check(self, pids: list[int]) -> "Literal['memory', 'processes'] | None":
        """The limit that these processes exceed."""
        threads, memory = process_tree.usage(pids)
        if self._processes is not None and threads > self._processes:
            return "processes"
        limit = self._memory
        if limit is not None and memory > limit and process_tree.proportional_memory(pids) > limit:
            return "memory"
        is_same = threads == self._last[0] and abs(memory - self._last[1]) <= SAME_MEMORY_RATIO * self._last[1]
        self._pause = min(2 * self._pause, MAX_CHECK_SECONDS) if is_same else MIN_CHECK_SECONDS
        self._last = threads, memory
        self.due = time.monotonic() + self._pause
        return None
