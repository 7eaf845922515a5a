"""Children: processes as the service sees them, by the pipes or the terminal between."""

import asyncio
import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from app.core.sandbox import GRACE, ExitStatus, Isolation, OutputChunk, WindowSize
from app.core.util.aio import finish_despite_cancel
from app.sandbox.process.pipes import Channel, Inlet, Stream, set_window
from app.sandbox.process.spawner import Spawned

PIECE = 256 * 1024
MUCH = 64 * 1024
MOST_WAITING = 1024 * 1024
LAST_SECONDS = 2.0
LAST_BYTES = 2 * MOST_WAITING


class LocalProcess:
    """The `Child` port around a process that the spawner started."""

    def __init__(self, spawned: Spawned, walls: Isolation) -> None:
        ends = spawned.ends
        self.isolation = walls
        self.pid = spawned.pid
        self._line = spawned.line
        self._is_tty = ends.is_tty
        self._terminal = ends.inlet if ends.is_tty else None
        self._inlet = Inlet(ends.inlet, is_owner=not ends.is_tty)
        self._channel = Channel(*ends.channel) if ends.channel else None
        self._outlets = dict(ends.outlets)
        self._pieces: deque[OutputChunk] = deque()
        self._take_piece: Callable[[OutputChunk], None] | None = None
        self._waiting = 0
        self._is_paused = False
        self._allowance = LAST_BYTES
        self._last: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._listen()
        self._line.ended.add_done_callback(self._wind_up)

    @property
    def ended(self) -> ExitStatus | None:
        return self._line.ended.result() if self._line.ended.done() else None

    async def read(self, until: Stream | None = None) -> OutputChunk | None:
        while not self._pieces:
            if not self._outlets or (until is not None and until not in self._outlets):
                return None
            self._news.clear()
            await self._news.wait()
        return self._next()

    def listen(self, take: Callable[[OutputChunk], None]) -> None:
        while self._pieces:
            take(self._next())
        self._take_piece = take

    async def write(self, data: bytes) -> None:
        await self._inlet.write(data)

    def write_now(self, data: bytes) -> int:
        return self._inlet.write_now(data)

    def close_input(self) -> None:
        if self._is_tty:
            self._inlet.put(b"\x04")
        else:
            self._inlet.close()

    async def send(self, line: bytes) -> None:
        assert self._channel is not None, "it was asked for"
        await self._channel.send(line)

    async def receive(self) -> bytes | None:
        assert self._channel is not None, "it was asked for"
        return await self._channel.receive()

    async def wait(self) -> ExitStatus:
        return await asyncio.shield(self._line.ended)

    def signal(self, number: int) -> None:
        if self._line.ended.done():
            return
        group = self._foreground()
        if group is None:
            self._line.signal(number)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)

    def resize(self, window: WindowSize) -> None:
        if self._terminal is not None:
            set_window(self._terminal, window)

    async def end(self, grace: float = GRACE) -> ExitStatus:
        self._line.end(grace)
        return await finish_despite_cancel(self._line.ended)

    async def close(self) -> None:
        try:
            await self.end(0)
        finally:
            self._silence()
            if self._channel is not None:
                self._channel.close()

    def _next(self) -> OutputChunk:
        piece = self._pieces.popleft()
        self._waiting -= len(piece.data)
        if self._is_paused and self._waiting < MOST_WAITING // 2:
            self._is_paused = False
            self._listen()
        return piece

    def _foreground(self) -> int | None:
        """The group that has the terminal, if there is one."""
        if self._terminal is None:
            return None
        with suppress(OSError):
            group = os.tcgetpgrp(self._terminal)
            return group if group > 1 else None
        return None

    def _listen(self) -> None:
        for stream, fd in self._outlets.items():
            self._loop.add_reader(fd, self._take, stream, fd)
        if self._line.ended.done():
            self._wait_for_the_last()

    def _pause(self) -> None:
        self._is_paused = True
        for fd in self._outlets.values():
            self._loop.remove_reader(fd)
        if self._last is not None:
            self._last.cancel()

    def _take(self, stream: Stream, fd: int) -> None:
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # the other end of a terminal is closed
        if not data:
            self._news.set()
            self._shut(stream)
            return
        if len(data) == MUCH:  # as much as a pipe holds that nobody made larger
            with suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIECE)
        self._hand_on(OutputChunk(stream, data))
        if self._line.ended.done():
            self._allowance -= len(data)
            if self._allowance <= 0:
                self._silence()

    def _hand_on(self, piece: OutputChunk) -> None:
        if self._take_piece is not None:
            self._take_piece(piece)
            return
        self._news.set()
        self._pieces.append(piece)
        self._waiting += len(piece.data)
        if self._waiting > MOST_WAITING - PIECE:
            self._pause()

    def _wind_up(self, _: object) -> None:
        """It has ended. What it wrote is in the pipes, and nobody writes more, or nobody that we wait for."""
        self._inlet.close()
        if not self._is_paused:
            self._wait_for_the_last()
        self._news.set()

    def _wait_for_the_last(self) -> None:
        """A reader who takes its time gets all; only those who hold a pipe open for nothing are not waited for."""
        self._last = self._loop.call_later(LAST_SECONDS, self._silence)

    def _silence(self) -> None:
        if self._last is not None:
            self._last.cancel()
        self._inlet.close()
        for stream in list(self._outlets):
            self._shut(stream)
        self._news.set()

    def _shut(self, stream: Stream) -> None:
        fd = self._outlets.pop(stream)
        self._loop.remove_reader(fd)
        if fd == self._terminal:
            self._inlet.close()
            self._terminal = None
        os.close(fd)
