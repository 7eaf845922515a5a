"""Children: processes as the service sees them, by the pipes or the terminal between."""

import asyncio
import errno
import fcntl
import os
import signal
import struct
import subprocess
import termios
from collections import deque
from contextlib import suppress
from typing import Literal

from app.core.walls import GRACE, Ended, Piece, Walls, Window

PIECE = 64 * 1024
MOST_WAITING = 1024 * 1024
LAST_SECONDS = 2.0
Stream = Literal["stdout", "stderr"]


class LocalChild:
    """The `Child` port around a process of this machine."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        walls: Walls,
        outlets: dict[Stream, int],
        inlet: int | None,
        channel: tuple[int, int] | None,
        is_tty: bool,
    ) -> None:
        self.walls = walls
        self.ended: Ended | None = None
        self._process = process
        self._inlet = inlet
        self._channel = channel
        self._lines = bytearray()
        self._is_tty = is_tty
        self._outlets = outlets
        self._open = set(outlets.values())
        self._pieces: deque[Piece] = deque()
        self._waiting = 0
        self._is_paused = False
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for fd in self._open | ({inlet} if inlet is not None else set()):
            os.set_blocking(fd, False)
        self._listen()
        self._end = self._loop.create_task(self._wait())

    async def _wait(self) -> Ended:
        code = await asyncio.to_thread(self._process.wait)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.ended = Ended(code if code >= 0 else 128 - code)
        self._news.set()
        self._loop.call_later(LAST_SECONDS, self._silence)
        return self.ended

    def _listen(self) -> None:
        for stream, fd in self._outlets.items():
            if fd in self._open:
                self._loop.add_reader(fd, self._take, stream, fd)

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
            self._shut(fd)
        else:
            self._pieces.append(Piece(stream, data))
            self._waiting += len(data)
            if self._waiting >= MOST_WAITING:
                self._is_paused = True
                for open in self._open:
                    self._loop.remove_reader(open)
        self._news.set()

    def _shut(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            self._loop.remove_reader(fd)
            if fd != self._inlet:
                os.close(fd)

    def _silence(self) -> None:
        for fd in list(self._open):
            self._shut(fd)
        self._news.set()

    async def read(self) -> Piece | None:
        while not self._pieces:
            if not self._open:
                return None
            self._news.clear()
            await self._news.wait()
        piece = self._pieces.popleft()
        self._waiting -= len(piece.data)
        if self._is_paused and self._waiting < MOST_WAITING // 2:
            self._is_paused = False
            self._listen()
        return piece

    async def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if self._inlet is None or self.ended is not None:
                raise BrokenPipeError(errno.EPIPE, "it takes no input")
            try:
                rest = rest[os.write(self._inlet, rest) :]
            except BlockingIOError:
                await asyncio.sleep(0.01)

    def close_input(self) -> None:
        if self._inlet is None:
            return
        if self._is_tty:
            os.write(self._inlet, b"\x04")
        else:
            os.close(self._inlet)
            self._inlet = None

    async def send(self, line: bytes) -> None:
        assert self._channel is not None, "it was asked for"
        await asyncio.to_thread(os.write, self._channel[1], line + b"\n")

    async def receive(self) -> bytes | None:
        assert self._channel is not None, "it was asked for"
        while b"\n" not in self._lines:
            data = await asyncio.to_thread(os.read, self._channel[0], PIECE)
            if not data:
                return None
            self._lines += data
        line, _, rest = self._lines.partition(b"\n")
        self._lines = rest
        return bytes(line)

    async def wait(self) -> Ended:
        return await asyncio.shield(self._end)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def resize(self, window: Window) -> None:
        assert self._inlet is not None, "a terminal stays open"
        fcntl.ioctl(self._inlet, termios.TIOCSWINSZ, struct.pack("HHHH", *window, 0, 0))

    async def end(self, grace: float = GRACE) -> Ended:
        if self.ended is None and grace:
            self.signal(signal.SIGTERM)
            await asyncio.wait([self._end], timeout=grace)
        self.signal(signal.SIGKILL)
        return await self.wait()

    async def close(self) -> None:
        await self.end(0)
        self._silence()
        left = {self._inlet, *(self._channel or ())} - {None}
        self._inlet = self._channel = None
        for fd in left:
            assert fd is not None
            os.close(fd)
