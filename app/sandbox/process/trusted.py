"""Trusted processes: the operator's own programs. They are not sandboxed, but each has a time limit.

The spawner starts them like all other processes, so no process can leave the tree of a program. What is left of the
tree when the program has ended gets `grace` seconds for its output and is then killed.
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
from app.sandbox.process.local_process import LocalProcess
from app.sandbox.process.spawner import NotStarted, Spawner, SpawnRequest

PASSED_ENV = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR"})
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/nix/store")
FD_PREFIX = "/proc/self/fd/"
CHUNK_BYTES = 64 * 1024
DRAIN_SECONDS = 1.0
LEFTOVER_SECONDS = 0.5
"""Grace of a long-running process: its client waits until it is gone."""


class TrustedProcesses:
    """The `Processes` port. Only harmless variables of the service's environment are passed on."""

    def __init__(self, spawner: Spawner | None = None, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._env = {name: value for name, value in environ.items() if name in PASSED_ENV or name.startswith("LC_")}
        self._spawner = spawner or Spawner()

    def close(self) -> None:
        """End the spawner; only for its single user."""
        self._spawner.close()

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> LocalProcess:
        """Start a process that runs until it is closed."""
        request = replace(_request(argv, self._env | dict(env or {}), cwd, (), None), grace=LEFTOVER_SECONDS)
        try:
            return LocalProcess(await self._spawner.start(request, has_stdin=True), NO_ISOLATION)
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
        """Run a program to its end. Processes that it leaves behind get a moment, and are then killed."""
        request = _request(argv, self._env | dict(env or {}), cwd, pass_fds, confines)
        try:
            spawned = await self._spawner.start(request, has_stdin=True)
        except NotStarted as error:  # OSError picks the subclass for the number
            raise OSError(error.errno, error.strerror, error.filename) from error
        link, ends, done = spawned.link, spawned.ends, asyncio.Event()
        assert ends.input is not None, "it has a stdin"
        feeder, err = _StdinFeeder(ends.input, stdin), _OutputCollector(ends.outputs["stderr"], limit)
        out = _OutputCollector(ends.outputs["stdout"], limit, done if until_full else None)
        link.exited.add_done_callback(lambda _: done.set())
        try:
            async with asyncio.timeout(seconds):
                await done.wait()
            if not (until_full and out.is_cut):
                with suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_SECONDS):
                        await out.ended.wait()
                        await err.ended.wait()
        finally:
            link.end()
            try:
                await finish_despite_cancel(link.ended)
            finally:
                for pipe in (feeder, out, err):
                    pipe.close()
        return Finished(link.exited.result(), bytes(out.data), bytes(err.data), until_full and out.is_cut)


def _request(
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
        cwd_fd=int(cwd.removeprefix(FD_PREFIX)) if cwd and cwd.startswith(FD_PREFIX) else None,
        pass_fds=tuple(pass_fds),
        readable=readable,
        limits={} if confines is None else {"AS": confines.memory},
        grace=DRAIN_SECONDS,
    )


class _StdinFeeder:
    """Writes stdin. A process that does not read it is not waited for."""

    def __init__(self, fd: int, data: bytes) -> None:
        self._fd: int | None = fd
        self._rest = memoryview(data)
        self._loop = asyncio.get_running_loop()
        self._loop.add_writer(fd, self._write, fd)
        self._write(fd)

    def _write(self, fd: int) -> None:
        try:
            size = os.write(fd, self._rest[:CHUNK_BYTES]) if self._rest else 0
        except BlockingIOError:
            return
        except OSError:  # the process does not read any more
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


class _OutputCollector:
    """Stores output up to a limit, and reads on after that, so that the process never blocks.

    `full` is set when there is more than the limit.
    """

    def __init__(self, fd: int, limit: int, full: asyncio.Event | None = None) -> None:
        self.data = bytearray()
        self.ended = asyncio.Event()
        self.is_cut = False
        self._full = full
        self._fd: int | None = fd
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._read, fd)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        room = self._limit - len(self.data)
        self.data += data[:room]
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
