"""Spawning: how the service has processes started, by the spawner that stands beside it."""

import asyncio
import errno
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from app.core.sandbox import WindowSize
from app.core.util.aio import finish_despite_cancel
from app.sandbox.process import messages, process_tree
from app.sandbox.process.pipes import Ends, open_ends
from app.sandbox.process.spawn_request import NotStarted, SpawnRequest, pack
from app.sandbox.process.supervisor_link import SupervisorLink

log = logging.getLogger(__name__)

ROOT = str(Path(__file__).parents[3])
LAUNCH = "import sys; sys.path.append(sys.argv[1]); from app.sandbox.process.spawner_main import main; main()"
CONTROL = 3
PASSED = ("PATH", "LANG", "LD_LIBRARY_PATH")
SPARES, FEW_SPARES, SPARE_SECONDS = 16, 2, 30.0
TRIES = 3
BUSY_SECONDS, BUSY_TRIES = 0.01, 500
CLOSE_SECONDS = 5.0
SWEEP_SECONDS, SWEEP_PAUSE = 3.0, 0.01
RESIDENT = "spawner"


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process that has begun: the line to its keeper, our ends of its pipes, and what it handed out before.

    Whoever gets this has to close the ends, and to see that the line comes to its end.
    """

    line: SupervisorLink
    ends: Ends
    pid: int
    mark: str
    listener: int | None = None


class Spawner:
    """Starts processes through a spawner of its own, which is there from the first use on.

    `owner` names whose processes these are, so that after a crash the next of that name can find what is left.
    """

    def __init__(self, owner: str | None = None) -> None:
        self._owner = blake2b((owner or secrets.token_hex()).encode(), digest_size=8).hexdigest() + "."
        self._run = f"{self._owner}{secrets.token_hex(4)}."
        self._spares: Spares = deque()
        self._resident: _SpawnerProcess | None = None
        self._opening = threading.Lock()
        self._is_closed = False

    def open(self) -> None:
        """Start the spawner, if it is not there. It takes a moment; without this the first order does it."""
        with self._opening:
            if self._is_closed:
                raise OSError(errno.ECANCELED, "no more processes are started")
            if self._resident is not None and self._resident.is_alive():
                return
            if self._resident is not None:
                self._resident.stop()  # with its keepers, who would have nobody to leave their orphans to
            self._resident = _SpawnerProcess(self._run + RESIDENT, self._spares)

    def close(self) -> None:
        """End the spawner, and with it all that it still looks after."""
        with self._opening:
            self._is_closed = True
            if self._resident is not None:
                self._resident.stop()
                self._resident = None

    def sweep(self) -> None:
        """Kill what is left of an earlier run of this owner, which was killed itself."""

        def is_old(mark: str) -> bool:
            return mark.startswith(self._owner) and not mark.startswith(self._run)

        until = time.monotonic() + SWEEP_SECONDS
        while process_tree.marked(lambda mark: is_old(mark) and mark.endswith(RESIDENT)) and time.monotonic() < until:
            time.sleep(SWEEP_PAUSE)  # they are about to kill their trees, and know them better
        if not process_tree.kill_marked(is_old):
            log.error("processes of an earlier run cannot be killed")

    async def start(
        self, order: SpawnRequest, *, tty: WindowSize | None = None, has_stdin: bool = False, has_channel: bool = False
    ) -> Spawned:
        """Start a process. Raises `NotStarted`, an `OSError`, with what it was at."""
        mark = self._run + secrets.token_hex(8)
        fields = pack(order) | {"env": {**order.env, process_tree.MARK: mark}}
        ends, theirs = open_ends(order, tty, has_stdin, has_channel)
        message = (fields, len(theirs), order.descriptors)
        try:
            end, seed, pid = await self._sow(order, message, [*theirs, *order.descriptors])
        except BaseException:
            ends.close()
            raise
        finally:
            messages.close(set(theirs))
        return await self._begun(order, Spawned(SupervisorLink(end, mark, self._release), ends, pid, mark), seed)

    async def _sow(
        self, order: SpawnRequest, message: "messages.Message", files: list[int]
    ) -> tuple[socket.socket, socket.socket, int]:
        """Hand the order to a keeper and its seed. One that died while it was waiting is no matter."""
        for _ in range(TRIES):
            end, seed, pid = await self._take()
            try:
                messages.send(end, ("watch", float(order.grace), order.memory, order.processes, _is_wrapped(order)))
                messages.send(seed, message, files)
                return end, seed, pid
            except BaseException as error:
                end.close()
                seed.close()
                if not isinstance(error, ConnectionError):
                    raise
        raise OSError(errno.EAGAIN, "no process can be started here")

    async def _begun(self, order: SpawnRequest, spawned: Spawned, seed: socket.socket) -> Spawned:
        """Wait until it is the program it was started for, or says why not."""
        listener: int | None = None
        try:
            while (received := await _received(seed)) is not None:
                match received:
                    case (("listener",), [listener]):
                        pass
                    case (("failed", stage, number, text), _):
                        name = order.cwd if stage == "folder" else order.argv[0]
                        raise NotStarted(number or errno.ENOEXEC, os.strerror(number) if number else text, name, stage)
        except BaseException:
            spawned.ends.close()
            if listener is not None:
                os.close(listener)
            spawned.line.end()
            await finish_despite_cancel(spawned.line.ended)
            raise
        finally:
            seed.close()
        return replace(spawned, listener=listener)

    async def _take(self) -> tuple[socket.socket, socket.socket, int]:
        """A keeper that is free: the line to it, the line to its seed, and the number that one has."""
        for _ in range(SPARES + TRIES):
            try:
                end = await self._spare()
            except ConnectionError:  # the spawner died just now
                continue
            try:
                received = await _received(end)
            except BaseException:
                end.close()
                raise
            if received is not None:  # else it died, and so may have others
                (_, pid), [seed] = received
                return end, messages.end_of(seed), pid
            end.close()
        raise OSError(errno.EAGAIN, "no process can be started here")

    async def _spare(self) -> socket.socket:
        """A line to a keeper that is free, or soon will be. There is always another one for the next."""
        if self._resident is None or not self._resident.is_alive():
            await asyncio.to_thread(self.open)
        try:
            spare = self._spares.popleft().end
        except IndexError:
            spare = await self._hire()
        if not self._spares:
            with suppress(OSError):
                self._spares.append(_IdleSupervisor(self._ask(), time.monotonic()))
        return spare

    async def _hire(self) -> socket.socket:
        """A line to a keeper that is being made."""
        for _ in range(BUSY_TRIES):
            with suppress(BlockingIOError):
                return self._ask()
            await asyncio.sleep(BUSY_SECONDS)
        raise OSError(errno.EAGAIN, "no process can be started here")

    def _ask(self) -> socket.socket:
        """Raises `BlockingIOError` when the spawner has more to do than it can."""
        if self._resident is None:
            raise OSError(errno.ECANCELED, "no more processes are started")
        ours, theirs = messages.pair()
        ours.setblocking(False)
        with theirs:
            try:
                self._resident.hand_over(theirs)
            except BaseException:
                ours.close()
                raise
        return ours

    def _release(self, end: socket.socket) -> None:
        """The keeper is free again, or will be in a moment. Many are kept for a while after many were needed."""
        now = time.monotonic()
        with suppress(IndexError):  # another thread was quicker
            while len(self._spares) > FEW_SPARES and self._spares[0].since < now - SPARE_SECONDS:
                self._spares.popleft().end.close()
        if len(self._spares) < SPARES and self._resident is not None and self._resident.is_alive():
            self._spares.append(_IdleSupervisor(end, now))
        else:
            end.close()


class _IdleSupervisor(NamedTuple):
    """A line to a keeper that is free."""

    end: socket.socket
    since: float


Spares = deque[_IdleSupervisor]


class _SpawnerProcess:
    """The process that stays, and the lines to those of its keepers that are free."""

    def __init__(self, mark: str, spares: Spares) -> None:
        self._control, theirs = messages.pair()
        self._control.setblocking(False)
        environ = {name: os.environ[name] for name in PASSED if name in os.environ}
        environ |= {name: value for name, value in os.environ.items() if name.startswith("LC_")}
        options = ["-I", "-S", "-X", f"utf8={sys.flags.utf8_mode}"]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, *options, "-c", LAUNCH, ROOT],
                environ | {process_tree.MARK: mark},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), CONTROL),
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                    (os.POSIX_SPAWN_DUP2, 0, 1),
                ],
                setsigmask=[],
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
                setsid=True,
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._stop = weakref.finalize(self, _stop, self._control, spares, self.pid)

    def is_alive(self) -> bool:
        try:
            return bool(self._control.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def hand_over(self, line: socket.socket) -> None:
        messages.send(self._control, ("line",), [line.fileno()])

    def stop(self) -> None:
        self._stop()


def _stop(control: socket.socket, spares: Spares, pid: int) -> None:
    """It ends by itself; who does not is killed."""
    while spares:
        spares.pop().end.close()
    control.close()
    until = time.monotonic() + CLOSE_SECONDS
    with suppress(ChildProcessError):
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(0.001)


async def _received(end: socket.socket) -> "tuple[messages.Message, list[int]] | None":
    """The next message on a line that nobody else listens to."""
    loop, fd = asyncio.get_running_loop(), end.fileno()
    while True:
        try:
            return messages.receive(end)
        except BlockingIOError:
            pass
        news = asyncio.Event()
        loop.add_reader(fd, news.set)
        try:
            await news.wait()
        finally:
            loop.remove_reader(fd)


def _is_wrapped(order: SpawnRequest) -> bool:
    """Whether a program of the walls stands between the keeper and the one that was ordered."""
    return order.enclosure is not None and order.enclosure.backend == "bwrap"
