"""Trusted processes: the operator's own programs. No walls around them, but each ends in time, and all of it.

A program gets a session of its own, so that one signal reaches its whole group.
Who leaves the group is found in /proc: as a descendant, or, once its parents are
gone, by a mark that every process inherits in its environment. What is left of
the tree when the program has ended goes with it.
"""

import asyncio
import logging
import os
import resource
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, NamedTuple

from app.core.ports import Confines, Finished
from app.sandbox import landlock

log = logging.getLogger(__name__)

PASSED = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR"})
MARK = "TOOLCRIB_PROCESS"
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/nix/store")
PIECE = 64 * 1024
DRAIN_SECONDS = 1.0
POLL_SECONDS = 0.02
STAT_BYTES = 4096
ROUNDS = 200
ROUND_SECONDS = 0.005
LAST_SECONDS = 5.0
REAPERS = 2


class TrustedProcesses:
    """The `Processes` port. Of the service's own environment only what is harmless is passed on."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        given = os.environ if environ is None else environ
        self._environ = {name: value for name, value in given.items() if name in PASSED or name.startswith("LC_")}
        self._reapers = ThreadPoolExecutor(REAPERS, "toolcrib-reaper")

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        pass_fds: Collection[int] = (),
        confines: Confines | None = None,
        seconds: float,
        limit: int = 1024 * 1024,
        until_full: bool = False,
    ) -> Finished:
        """Run it to its end. What it leaves behind has a moment to say its last, and is then killed."""
        mark, over = secrets.token_hex(16), asyncio.Event()
        child = _start(argv, _Setting(self._environ | dict(env or {}) | {MARK: mark}, cwd, pass_fds), confines)
        inlet, err = _Inlet(child.stdin, stdin), _Outlet(child.stderr, limit)
        out = _Outlet(child.stdout, limit, over if until_full else None)
        try:
            async with asyncio.timeout(seconds):
                await _exited(child, over)
            if not (until_full and out.is_cut):
                await _drained(out, err)
        finally:
            _kill_group(child.pid)
            for pipe in (inlet, out, err):
                pipe.close()
            # Shielded, because the tree must go even if nobody waits for it any more.
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(self._reapers, _end, child, mark))
        return Finished(child.returncode, bytes(out.kept), bytes(err.kept), until_full and out.is_cut)


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a process finds when it begins."""

    env: Mapping[str, str]
    cwd: str | None
    pass_fds: Collection[int]


def _start(argv: Sequence[str], setting: _Setting, confines: Confines | None) -> "subprocess.Popen[bytes]":
    if confines is None:
        return _popen(argv, setting)
    program = shutil.which(argv[0], path=setting.env.get("PATH")) or argv[0]
    child = landlock.confined((program, *LIBRARIES, *confines.readable), lambda: _popen(argv, setting, False))
    with suppress(AttributeError, OSError):  # not Linux, or it has ended already
        resource.prlimit(child.pid, resource.RLIMIT_AS, (confines.memory, confines.memory))
    return child


def _popen(argv: Sequence[str], setting: _Setting, has_session: bool = True) -> "subprocess.Popen[bytes]":
    """In a session of its own, or at least a group of its own.

    To the scheduler a session is one party among others, and a new one starts with nothing: on a busy machine a short
    piece of work takes twice as long in it.
    """
    pipe, fds = subprocess.PIPE, tuple(setting.pass_fds)
    return subprocess.Popen(
        list(argv),
        bufsize=0,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=setting.env,
        cwd=setting.cwd,
        pass_fds=fds,
        start_new_session=has_session,
        process_group=None if has_session else 0,
    )


async def _exited(child: "subprocess.Popen[bytes]", over: asyncio.Event) -> None:
    """Wait for the end of a process, or until somebody else says that it is over.

    It is left unreaped, so that nobody else can get its number meanwhile.
    """
    try:
        fd = os.pidfd_open(child.pid)
    except (AttributeError, OSError):  # not Linux, or an old one: there it is reaped at once
        while child.poll() is None and not over.is_set():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(POLL_SECONDS)
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


async def _drained(*outlets: "_Outlet") -> None:
    """Hear the last of what was written, as long as it does not take long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            for outlet in outlets:
                await outlet.ended.wait()


class _Inlet:
    """What a process reads. One that does not care to read it is not waited for."""

    def __init__(self, pipe: IO[bytes] | None, data: bytes) -> None:
        assert pipe is not None, "it was asked for"
        self._pipe = pipe
        self._rest = memoryview(data)
        self._loop = asyncio.get_running_loop()
        os.set_blocking(pipe.fileno(), False)
        self._loop.add_writer(pipe.fileno(), self._write)

    def _write(self) -> None:
        try:
            size = os.write(self._pipe.fileno(), self._rest[:PIECE]) if self._rest else 0
        except BlockingIOError:
            return
        except OSError:  # nobody reads it any more
            self.close()
            return
        self._rest = self._rest[size:]
        if not self._rest:
            self.close()

    def close(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())
            self._pipe.close()


class _Outlet:
    """What a process writes: kept up to a limit, and read on without end, so that it never has to wait.

    `full` is told when there is more than the limit.
    """

    def __init__(self, pipe: IO[bytes] | None, limit: int, full: asyncio.Event | None = None) -> None:
        assert pipe is not None, "it was asked for"
        self.kept = bytearray()
        self.ended = asyncio.Event()
        self.is_cut = False
        self._full = full
        self._pipe = pipe
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        os.set_blocking(pipe.fileno(), False)
        self._loop.add_reader(pipe.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), PIECE)
        except BlockingIOError:
            return
        room = self._limit - len(self.kept)
        self.kept += data[:room]
        if not data:
            self.close()
        elif len(data) > room and not self.is_cut:
            self.is_cut = True
            if self._full is not None:
                self._full.set()

    def close(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
        self.ended.set()


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody is left, or only those who became somebody else
        os.killpg(group, signal.SIGKILL)


def _end(child: "subprocess.Popen[bytes]", mark: str) -> None:
    """Kill what is left of a tree, look again until nothing is, and reap."""
    seen: set[int] = set()
    root = child.pid if child.returncode is None else None  # reaped, its number may be somebody else's
    for _ in range(ROUNDS):
        tree = _tree(root, mark)
        seen |= {process.pid for process in tree}
        left = [process.pid for process in tree if process.is_alive]
        if not left:
            break
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(ROUND_SECONDS)
    else:
        log.error("what process %d started cannot be killed: %s", child.pid, left)
    try:
        child.wait(LAST_SECONDS)
    except subprocess.TimeoutExpired:
        log.error("process %d was killed and does not end", child.pid)
    for pid in seen - {child.pid}:
        with suppress(ChildProcessError):  # ours only where this service is the init of its container
            os.waitpid(pid, os.WNOHANG)


class _Process(NamedTuple):
    """One line of /proc."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    is_alive: bool


def _tree(root: int | None, mark: str) -> list[_Process]:
    """All processes that come from this one, itself included. None where there is no /proc."""
    known = {process.pid: process for process in _processes()}
    first = None if root is None else known.get(root)
    family, since = ({first.pid}, first.started) if first else (set[int](), 0)
    marked = f"{MARK}={mark}".encode()
    for process in sorted(known.values(), key=lambda process: (process.started, process.pid)):
        if process.started < since or process.pid == os.getpid():
            continue
        if family & {process.parent, process.group, process.session} or marked in _environ(process.pid):
            family.add(process.pid)
    return [known[pid] for pid in family]


def _processes() -> Iterator[_Process]:
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        with suppress(OSError):  # gone meanwhile
            if name.isdigit():
                yield _read_stat(int(name))


def _read_stat(pid: int) -> _Process:
    stat = _read(f"/proc/{pid}/stat")
    state, parent, group, session, *rest = stat[stat.rindex(b")") + 2 :].split()
    return _Process(pid, int(parent), int(group), int(session), int(rest[15]), state not in (b"Z", b"X"))


def _environ(pid: int) -> frozenset[bytes]:
    """The variables a process was started with; none where they may not be seen."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return frozenset(file.read().split(b"\0"))
    return frozenset()


def _read(path: str) -> bytes:
    """A short file, read without ceremony: there is one for every process of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, STAT_BYTES)
    finally:
        os.close(fd)
