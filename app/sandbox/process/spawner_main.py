"""The spawner: a small process that stays, has one thread, and starts whatever the service wants started.

The service is large and has many threads; to fork it would be slow and unsafe, and what dies with its parent dies
with the thread that started it. So this one forks a keeper for every line that the service hands over, and takes in
what is left when a keeper was killed. It ends when the service does.
"""

import gc
import os
import select
import signal
import socket
import time

from app.sandbox import syscalls
from app.sandbox.isolation import apply
from app.sandbox.process import messages, preforked, process_tree, supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

CONTROL = 3
LAST_SECONDS = 0.5


def main() -> "NoReturn":
    """Serve the service at the other end of descriptor 3."""
    apply.prepare()
    gc.collect()
    gc.disable()
    gc.freeze()
    os.chdir("/")
    os.closerange(CONTROL + 1, os.sysconf("SC_OPEN_MAX"))
    for number in preforked.IGNORED:
        signal.signal(number, signal.SIG_IGN)
    syscalls.prctl(syscalls.SET_CHILD_SUBREAPER, 1)
    _Spawner(messages.end_of(CONTROL)).serve()
    os._exit(0)


class _Spawner:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._keepers: set[int] = set()
        self._bell = supervisor.ring()
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)

    def serve(self) -> None:
        self._poll.register(self._control, select.POLLIN)
        while self._wait():
            pass
        self._poll.unregister(self._control)
        self._control.close()
        self._leave()

    def _wait(self) -> bool:
        ready = [fd for fd, _ in self._poll.poll()]
        if self._bell in ready:
            self._take_in()
        return self._control.fileno() not in ready or self._hear()

    def _hear(self) -> bool:
        received = messages.receive(self._control)
        if received is None:
            return False
        for fd in received[1]:
            self._employ(messages.end_of(fd))
        return True

    def _employ(self, line: socket.socket) -> None:
        """A keeper for this line. Where there is no room for one, the service sees the line end."""
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            self._control.close()
            os.close(self._bell)
            supervisor.keep(line)
        line.close()
        self._keepers.add(pid)

    def _take_in(self) -> None:
        supervisor.hush(self._bell)
        if not self._reap():
            process_tree.kill_all(self._reap, self._keepers)

    def _reap(self) -> bool:
        """Whether only keepers are left. Who else is here was left by one that was killed."""
        try:
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                self._keepers.discard(pid)
        except ChildProcessError:
            return True
        return self._keepers.issuperset(process_tree.children(os.getpid()))

    def _leave(self) -> None:
        """When the service is gone the keepers have seen it, too, and kill their trees; the rest is killed here."""
        until = time.monotonic() + LAST_SECONDS
        while process_tree.children(os.getpid()) and time.monotonic() < until:
            self._poll.poll(max(0.0, until - time.monotonic()) * 1000)
            self._take_in()
        process_tree.kill_all(self._reap)
