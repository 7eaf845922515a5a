"""Starts processes through the spawner process (`supervisor.main`): spawn requests and the client that sends them."""

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
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

from app.core.sandbox import WindowSize
from app.core.util.aio import finish_despite_cancel
from app.sandbox.process import messages, process_tree
from app.sandbox.process.local_process import SpawnedProcess, SupervisorLink, open_pipes

log = logging.getLogger(__name__)

ROOT = str(Path(__file__).parents[3])
LAUNCH = "import sys; sys.path.append(sys.argv[1]); from app.sandbox.process.supervisor import main; main()"
CONTROL_FD = 3
PASSED_ENV = ("PATH", "LANG", "LD_LIBRARY_PATH")
MAX_IDLE, MIN_IDLE, IDLE_SECONDS = 16, 2, 30.0
MAX_TRIES = 3
BUSY_SECONDS, MAX_BUSY_TRIES = 0.01, 500
CLOSE_SECONDS, CLOSE_POLL_SECONDS = 5.0, 0.001
SWEEP_SECONDS, SWEEP_PAUSE_SECONDS = 3.0, 0.01
SPAWNER_MARK = "spawner"

Stage = Literal["request", "terminal", "limits", "cwd", "isolation", "program"]
"""What a child is doing before the exec of its program."""


class NotStarted(OSError):
    """A process could not be started; `stage` is what failed."""

    def __init__(self, number: int, message: str, name: str | None, stage: Stage) -> None:
        super().__init__(number, message, name)
        self.stage = stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file that is visible in the sandbox under the same path as outside.

    With `inode`, its device and number, nothing that was put in its place later is mounted instead.
    """

    path: str
    is_writable: bool = False
    inode: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSpec:
    """How one process is isolated."""

    backend: Literal["bwrap", "landlock", "none"]
    mounts: tuple[Mount, ...] = ()
    #: Folders inside readable mounts that must not be visible.
    hidden: tuple[str, ...] = ()
    #: Paths in writable mounts that stay read-only; one that ends in a slash is a folder.
    protected: tuple[str, ...] = ()
    temp_dir: str | None = None
    network: Literal["none", "allowlist", "full"] = "none"
    #: None without a proxy, 0 for a listener inside the process's own network namespace, else the one local port that
    #: may be connected to.
    proxy: int | None = None
    #: The absolute path of bwrap.
    program: str | None = None
    #: The options that this bwrap has, of those that not every version has.
    options: tuple[str, ...] = ()
    tmpfs_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """One process: its program, its user, its limits. The spawner gets it as plain values of the same shape."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    #: The user and group it becomes.
    identity: tuple[int, int] | None = None
    #: Kernel limits by their names without `RLIMIT_`; a limit already in force is never raised.
    limits: dict[str, int] = field(default_factory=dict)
    #: Bytes of memory, and threads, that the whole tree may have; above that it is killed.
    memory: int | None = None
    processes: int | None = None
    #: Seconds that processes left behind have before they are killed.
    grace: float = 0.05
    has_terminal: bool = False
    isolation: IsolationSpec | None = None
    #: A directory descriptor of the service to start in, instead of `cwd`.
    cwd_fd: int | None = None
    #: Descriptors that stay open in it under the same numbers.
    pass_fds: tuple[int, ...] = ()
    #: It can read only these (descriptors or paths) and what is below them.
    readable: tuple[int | str, ...] | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All descriptors of the service that it refers to, each once."""
        readable = (path for path in self.readable or () if isinstance(path, int))
        cwd = () if self.cwd_fd is None else (self.cwd_fd,)
        return tuple(dict.fromkeys((*self.pass_fds, *cwd, *readable)))

    @property
    def is_wrapped(self) -> bool:
        """Whether bwrap runs between the supervisor and the program."""
        return self.isolation is not None and self.isolation.backend == "bwrap"


def pack(value: Any) -> Any:
    """A spawn request as plain values that can be marshalled."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in _PACKED:
        return {name: pack(getattr(value, name)) for name in value.__slots__}
    if kind is tuple:
        return tuple([pack(part) for part in value])
    if kind is dict:
        return {name: pack(part) for name, part in value.items()}
    assert isinstance(value, Enum), f"a {kind.__name__} cannot be sent"
    return value.value


_PLAIN = frozenset({str, int, float, bool, type(None)})
_PACKED = frozenset({SpawnRequest, IsolationSpec, Mount})


class Spawner:
    """Starts processes through a spawner process of its own, which it starts on first use.

    `owner` names the service the processes belong to, so that after a crash its next run can find what is left.
    """

    def __init__(self, owner: str | None = None) -> None:
        self._owner = blake2b((owner or secrets.token_hex()).encode(), digest_size=8).hexdigest() + "."
        self._run = f"{self._owner}{secrets.token_hex(4)}."
        self._idle: IdleSupervisors = deque()
        self._process: _SpawnerProcess | None = None
        self._opening = threading.Lock()
        self._is_closed = False

    def open(self) -> None:
        """Start the spawner process if it is not running. It blocks; without this the first request does it."""
        with self._opening:
            if self._is_closed:
                raise OSError(errno.ECANCELED, "no more processes are started")
            if self._process is not None and self._process.is_alive():
                return
            if self._process is not None:
                self._process.stop()  # with its supervisors, whose orphans no process would inherit
            self._process = _SpawnerProcess(self._run + SPAWNER_MARK, self._idle)

    def close(self) -> None:
        """End the spawner process, and with it all processes it started."""
        with self._opening:
            self._is_closed = True
            if self._process is not None:
                self._process.stop()
                self._process = None

    def sweep(self) -> None:
        """Kill what is left of an earlier run of this owner that was killed itself."""

        def is_old(mark: str) -> bool:
            return mark.startswith(self._owner) and not mark.startswith(self._run)

        until = time.monotonic() + SWEEP_SECONDS
        while time.monotonic() < until:
            if not process_tree.find_marked(lambda mark: is_old(mark) and mark.endswith(SPAWNER_MARK)):
                break
            time.sleep(SWEEP_PAUSE_SECONDS)  # an old spawner is about to kill its trees itself
        if not process_tree.kill_marked(is_old):
            log.error("processes of an earlier run cannot be killed")

    async def start(
        self,
        request: SpawnRequest,
        *,
        tty: WindowSize | None = None,
        has_stdin: bool = False,
        has_channel: bool = False,
    ) -> SpawnedProcess:
        """Start a process. Raises `NotStarted`, an `OSError`, with the stage that failed."""
        mark = self._run + secrets.token_hex(8)
        fields = pack(request) | {"env": {**request.env, process_tree.MARK: mark}}
        tty_owner = None if request.identity is None else request.identity[0]
        ends, theirs = open_pipes(tty, has_stdin=has_stdin, has_channel=has_channel, tty_owner=tty_owner)
        message = (fields, len(theirs), request.descriptors)
        try:
            end, child, pid = await self._send_request(request, message, [*theirs, *request.descriptors])
        except BaseException:
            ends.close()
            raise
        finally:
            messages.close(set(theirs))
        spawned = SpawnedProcess(SupervisorLink(end, mark, self._release), ends, pid, mark)
        return await self._await_exec(request, spawned, child)

    async def _send_request(
        self, request: SpawnRequest, message: "messages.Message", fds: list[int]
    ) -> tuple[socket.socket, socket.socket, int]:
        """Send the request to an idle supervisor and its pre-forked child. One that died meanwhile is replaced."""
        for _ in range(MAX_TRIES):
            end, child, pid = await self._idle_supervisor()
            try:
                watch = ("watch", float(request.grace), request.memory, request.processes, request.is_wrapped)
                messages.send(end, watch)
                messages.send(child, message, fds)
                return end, child, pid
            except BaseException as error:
                end.close()
                child.close()
                if not isinstance(error, ConnectionError):
                    raise
        raise OSError(errno.EAGAIN, "no process can be started here")

    async def _await_exec(self, request: SpawnRequest, spawned: SpawnedProcess, child: socket.socket) -> SpawnedProcess:
        """Wait until the program has started, or the child reports why not."""
        listener: int | None = None
        try:
            while (received := await _received(child)) is not None:
                match received:
                    case (("listener",), [listener]):
                        pass
                    case (("failed", stage, number, text), _):
                        name = request.cwd if stage == "cwd" else request.argv[0]
                        raise NotStarted(number or errno.ENOEXEC, os.strerror(number) if number else text, name, stage)
        except BaseException:
            spawned.ends.close()
            if listener is not None:
                os.close(listener)
            spawned.link.end()
            await finish_despite_cancel(spawned.link.ended)
            raise
        finally:
            child.close()
        return replace(spawned, listener=listener)

    async def _idle_supervisor(self) -> tuple[socket.socket, socket.socket, int]:
        """An idle supervisor: the socket to it, the socket to its pre-forked child, and the child's process id."""
        for _ in range(MAX_IDLE + MAX_TRIES):
            try:
                end = await self._pop_idle()
            except ConnectionError:  # the spawner process died just now
                continue
            try:
                received = await _received(end)
            except BaseException:
                end.close()
                raise
            if received is not None:  # else it died, and others may have, too
                (_, pid), [child] = received
                return end, messages.socket_of(child), pid
            end.close()
        raise OSError(errno.EAGAIN, "no process can be started here")

    async def _pop_idle(self) -> socket.socket:
        """The socket to a supervisor that is idle, or soon will be. Another is requested when it was the last."""
        if self._process is None or not self._process.is_alive():
            await asyncio.to_thread(self.open)
        try:
            end = self._idle.popleft().end
        except IndexError:
            end = await self._new_supervisor()
        if not self._idle:
            with suppress(OSError):
                self._idle.append(_IdleSupervisor(self._request_supervisor(), time.monotonic()))
        return end

    async def _new_supervisor(self) -> socket.socket:
        """The socket to a supervisor that is being forked."""
        for _ in range(MAX_BUSY_TRIES):
            with suppress(BlockingIOError):
                return self._request_supervisor()
            await asyncio.sleep(BUSY_SECONDS)
        raise OSError(errno.EAGAIN, "no process can be started here")

    def _request_supervisor(self) -> socket.socket:
        """Raises `BlockingIOError` when the spawner process is too busy."""
        if self._process is None:
            raise OSError(errno.ECANCELED, "no more processes are started")
        ours, theirs = messages.socket_pair()
        ours.setblocking(False)
        with theirs:
            try:
                self._process.send_socket(theirs)
            except BaseException:
                ours.close()
                raise
        return ours

    def _release(self, end: socket.socket) -> None:
        """The supervisor is idle again, or will be in a moment. After a burst many stay idle for a while."""
        now = time.monotonic()
        with suppress(IndexError):  # another thread was faster
            while len(self._idle) > MIN_IDLE and self._idle[0].since < now - IDLE_SECONDS:
                self._idle.popleft().end.close()
        if len(self._idle) < MAX_IDLE and self._process is not None and self._process.is_alive():
            self._idle.append(_IdleSupervisor(end, now))
        else:
            end.close()


class _IdleSupervisor(NamedTuple):
    """The socket to an idle supervisor."""

    end: socket.socket
    since: float


IdleSupervisors = deque[_IdleSupervisor]


class _SpawnerProcess:
    """The running spawner process and the control socket to it."""

    def __init__(self, mark: str, idle: IdleSupervisors) -> None:
        self._control, theirs = messages.socket_pair()
        self._control.setblocking(False)
        env = {name: os.environ[name] for name in PASSED_ENV if name in os.environ}
        env |= {name: value for name, value in os.environ.items() if name.startswith("LC_")}
        options = ["-I", "-S", "-X", f"utf8={sys.flags.utf8_mode}"]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, *options, "-c", LAUNCH, ROOT],
                env | {process_tree.MARK: mark},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), CONTROL_FD),
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
        self.stop = weakref.finalize(self, _stop, self._control, idle, self.pid)

    def is_alive(self) -> bool:
        try:
            return bool(self._control.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def send_socket(self, end: socket.socket) -> None:
        messages.send(self._control, ("supervise",), [end.fileno()])


def _stop(control: socket.socket, idle: IdleSupervisors, pid: int) -> None:
    """Close the control socket, on which the spawner process exits; kill it if it does not."""
    while idle:
        idle.pop().end.close()
    control.close()
    until = time.monotonic() + CLOSE_SECONDS
    with suppress(ChildProcessError):
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(CLOSE_POLL_SECONDS)


async def _received(end: socket.socket) -> "tuple[messages.Message, list[int]] | None":
    """The next message on a socket that no other task reads."""
    loop, fd = asyncio.get_running_loop(), end.fileno()
    while True:
        try:
            return messages.receive(end)
        except BlockingIOError:
            pass
        readable = asyncio.Event()
        loop.add_reader(fd, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(fd)
