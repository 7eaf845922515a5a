"""Trusted processes: the operator's own programs. No walls around them, but each ends in time, and all of it.

The spawner starts them as it starts everything else, so that nobody can leave the tree of a program. What is left of
the tree when the program has ended has a moment to say its last, and goes with it.
"""

import asyncio
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from app.core.sandbox import NO_ISOLATION, Finished, FolderConfinement
from app.core.util.aio import finish_despite_cancel
from app.sandbox.isolation import landlock
from app.sandbox.process.child import LocalProcess
from app.sandbox.process.spawn_request import NotStarted, SpawnRequest
from app.sandbox.process.spawner import Spawner
from app.sandbox.process.supervisor_link import SupervisorLink

PASSED = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR"})
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/nix/store")
HELD = "/proc/self/fd/"
PIECE = 64 * 1024
DRAIN_SECONDS = 1.0
LEFT_SECONDS = 0.5
"""For the rest of one that was there to stay: whoever speaks to it waits to hear that it is gone."""


class TrustedProcesses:
    """The `Processes` port. Of the service's own environment only what is harmless is passed on."""

    def __init__(self, spawner: Spawner | None = None, environ: Mapping[str, str] | None = None) -> None:
        given = os.environ if environ is None else environ
        self._environ = {name: value for name, value in given.items() if name in PASSED or name.startswith("LC_")}
        self._spawner = spawner or Spawner()

    def close(self) -> None:
        """End the spawner; only for who has it alone."""
        self._spawner.close()

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> LocalProcess:
        """Start one that stays."""
        order = replace(_order(argv, self._environ | dict(env or {}), cwd, (), None), grace=LEFT_SECONDS)
        try:
            return LocalProcess(await self._spawner.start(order, has_stdin=True), NO_ISOLATION)
        except NotStarted as error:
            raise OSError(error.errno, error.strerror, error.filename) from error

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        pass_fds: Collection[int] = (),
        confines: FolderConfinement | None = None,
        seconds: float,
        limit: int = 1024 * 1024,
        until_full: bool = False,
    ) -> Finished:
        """Run it to its end. What it leaves behind has a moment to say its last, and is then killed."""
        order = _order(argv, self._environ | dict(env or {}), cwd, pass_fds, confines)
        try:
            spawned = await self._spawner.start(order, has_stdin=True)
        except NotStarted as error:  # as Python itself would say it, which knows a kind for each number
            raise OSError(error.errno, error.strerror, error.filename) from error
        line, ends, over = spawned.line, spawned.ends, asyncio.Event()
        assert ends.inlet is not None, "it was asked for"
        inlet, err = _Inlet(ends.inlet, stdin), _Outlet(ends.outlets["stderr"], limit)
        out = _Outlet(ends.outlets["stdout"], limit, over if until_full else None)
        try:
            async with asyncio.timeout(seconds):
                await _exited(line, over)
            if not (until_full and out.is_cut):
                await _drained(out, err)
        finally:
            line.end()
            try:
                await finish_despite_cancel(line.ended)
            finally:
                for pipe in (inlet, out, err):
                    pipe.close()
        return Finished(line.exited.result(), bytes(out.kept), bytes(err.kept), until_full and out.is_cut)


def _order(
    argv: Sequence[str],
    env: dict[str, str],
    cwd: str | None,
    pass_fds: Collection[int],
    confines: FolderConfinement | None,
) -> SpawnRequest:
    readable: tuple[int | str, ...] | None = None
    if confines is not None and landlock.is_supported():
        program = shutil.which(argv[0], path=env.get("PATH")) or argv[0]
        readable = (program, *LIBRARIES, *confines.readable)
    return SpawnRequest(
        argv=tuple(argv),
        env=env,
        cwd=cwd or os.getcwd(),
        folder=int(cwd.removeprefix(HELD)) if cwd and cwd.startswith(HELD) else None,
        passed=tuple(pass_fds),
        readable=readable,
        limits={} if confines is None else {"AS": confines.memory},
        grace=DRAIN_SECONDS,
    )


async def _exited(line: SupervisorLink, over: asyncio.Event) -> None:
    """Wait for the end of the first process, or until somebody else says that it is over."""
    line.exited.add_done_callback(lambda _: over.set())
    await over.wait()


async def _drained(*outlets: "_Outlet") -> None:
    """Hear the last of what was written, as long as it does not take long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            for outlet in outlets:
                await outlet.ended.wait()


class _Inlet:
    """What a process reads. One that does not care to read it is not waited for."""

    def __init__(self, fd: int, data: bytes) -> None:
        self._fd: int | None = fd
        self._rest = memoryview(data)
        self._loop = asyncio.get_running_loop()
        self._loop.add_writer(fd, self._write, fd)
        self._write(fd)

    def _write(self, fd: int) -> None:
        try:
            size = os.write(fd, self._rest[:PIECE]) if self._rest else 0
        except BlockingIOError:
            return
        except OSError:  # nobody reads it any more
            self.close()
            return
        self._rest = self._rest[size:]
        if not self._rest:
            self.close()

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._loop.remove_writer(fd)
            os.close(fd)


class _Outlet:
    """What a process writes: kept up to a limit, and read on without end, so that it never has to wait.

    `full` is told when there is more than the limit.
    """

    def __init__(self, fd: int, limit: int, full: asyncio.Event | None = None) -> None:
        self.kept = bytearray()
        self.ended = asyncio.Event()
        self.is_cut = False
        self._full = full
        self._fd: int | None = fd
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._read, fd)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, PIECE)
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
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._loop.remove_reader(fd)
            os.close(fd)
        self.ended.set()
