"""Pipes: what is between the service and a process, our ends and theirs."""

import asyncio
import errno
import fcntl
import logging
import os
import struct
import termios
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

from app.core.sandbox import WindowSize
from app.sandbox.process.spawn_request import SpawnRequest

log = logging.getLogger(__name__)

PIECE = 256 * 1024
PUT_SECONDS = 0.01
MOST_LINE = 64 * 1024 * 1024
Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Ends:
    """Our ends, all of which answer at once instead of waiting. A terminal is outlet and inlet in one.

    `channel` is what the process writes there, and what it reads.
    """

    outlets: dict[Stream, int]
    inlet: int | None = None
    channel: tuple[int, int] | None = None
    is_tty: bool = False

    def close(self) -> None:
        for fd in {*self.outlets.values(), self.inlet, *(self.channel or ())} - {None}:
            assert fd is not None
            os.close(fd)


def open_ends(
    order: SpawnRequest, tty: WindowSize | None, has_stdin: bool, has_channel: bool
) -> tuple[Ends, list[int]]:
    """Our ends, and theirs in the order of their numbers: from 0 to 2, or to 4 with a channel."""
    with ExitStack() as undo:
        pipes = _Pipes(undo)
        ends, theirs = pipes.terminal(tty, order) if tty is not None else pipes.plain(has_stdin)
        if has_channel:
            (reads, ours), (own, writes) = pipes.open(), pipes.open()
            ends = Ends(ends.outlets, ends.inlet, (own, ours), ends.is_tty)
            theirs = [*theirs, reads, writes]
        for fd in {*ends.outlets.values(), ends.inlet, *(ends.channel or ())} - {None}:
            assert fd is not None
            os.set_blocking(fd, False)
        undo.pop_all()
    return ends, theirs


class _Pipes:
    """Opens pipes; what was opened is closed when the rest does not come about."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo

    def open(self) -> tuple[int, int]:
        reads, writes = os.pipe()
        self._undo.callback(os.close, reads)
        self._undo.callback(os.close, writes)
        return reads, writes

    def plain(self, has_stdin: bool) -> tuple[Ends, list[int]]:
        (out, writes_out), (err, writes_err) = self.open(), self.open()
        outlets: dict[Stream, int] = {"stdout": out, "stderr": err}
        if has_stdin:
            stdin, inlet = self.open()
            return Ends(outlets, inlet), [stdin, writes_out, writes_err]
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._undo.callback(os.close, nothing)
        return Ends(outlets), [nothing, writes_out, writes_err]

    def terminal(self, window: WindowSize, order: SpawnRequest) -> tuple[Ends, list[int]]:
        master, slave = os.openpty()
        self._undo.callback(os.close, master)
        self._undo.callback(os.close, slave)
        set_window(master, window)
        if order.identity is not None:
            os.fchown(slave, order.identity[0], -1)  # so that it can be opened by its name, too
        return Ends({"stdout": master}, master, is_tty=True), [slave, slave, slave]


def set_window(terminal: int, window: WindowSize) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *window, 0, 0))


class Inlet:
    """What goes into a process. Who writes waits until it is taken; None takes nothing."""

    def __init__(self, fd: int | None, *, is_owner: bool = True) -> None:
        self._fd = fd
        self._is_owner = is_owner
        self._turn = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def write(self, data: bytes) -> None:
        """Raises `BrokenPipeError` when nobody takes it any more."""
        async with self._turn:
            rest = memoryview(data)
            while rest:
                written = self._write(rest[:PIECE])
                rest = rest[written:]
                if not written:
                    await self._has_room()

    def write_now(self, data: bytes) -> int:
        """As much as there is room for, if nobody else is just writing."""
        return 0 if self._turn.locked() else self._write(data)

    def put(self, data: bytes) -> None:
        """Write a little without waiting, as soon as there is room."""
        with suppress(BrokenPipeError):
            if not self._write(data):
                self._loop.call_later(PUT_SECONDS, self.put, data)

    def _write(self, data: bytes | memoryview) -> int:
        if self._fd is None:
            raise BrokenPipeError(errno.EPIPE, "it takes no input")
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise BrokenPipeError(errno.EPIPE, "it takes no input") from error

    async def _has_room(self) -> None:
        assert self._fd is not None, "it has just been written to"
        self._room = self._loop.create_future()
        self._loop.add_writer(self._fd, self._go_on)
        try:
            await self._room
        finally:
            self._room = None
            if self._fd is not None:
                self._loop.remove_writer(self._fd)

    def _go_on(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def close(self) -> None:
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        self._loop.remove_writer(fd)
        self._go_on()
        if self._is_owner:
            os.close(fd)


class Channel:
    """A second way in and out of a process of our own, line by line. It is read only when somebody waits for a line."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads: int | None = reads
        self._inlet = Inlet(writes)
        self._kept = bytearray()
        self._seen = 0
        self._news: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def send(self, line: bytes) -> None:
        await self._inlet.write(line + b"\n")

    async def receive(self) -> bytes | None:
        """The next line; a last one that has no end is none."""
        while (end := self._kept.find(b"\n", self._seen)) < 0:
            self._seen = len(self._kept)
            if not await self._read():
                return None
        line = bytes(self._kept[:end])
        del self._kept[: end + 1]
        self._seen = 0
        return line

    async def _read(self) -> bool:
        """Whether there is more than before."""
        if len(self._kept) > MOST_LINE:
            log.warning("a line of more than %d bytes came from a process of our own; no more is read", MOST_LINE)
            self._stop()
        while self._reads is not None:
            try:
                data = os.read(self._reads, PIECE)
            except BlockingIOError:
                await self._has_news(self._reads)
                continue
            self._kept += data
            if not data:
                self._stop()
            return bool(data)
        return False

    async def _has_news(self, fd: int) -> None:
        self._news = self._loop.create_future()
        self._loop.add_reader(fd, self._go_on)
        try:
            await self._news
        finally:
            self._news = None
            if self._reads is not None:
                self._loop.remove_reader(fd)

    def _go_on(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _stop(self) -> None:
        if self._reads is None:
            return
        fd, self._reads = self._reads, None
        self._loop.remove_reader(fd)
        self._go_on()
        os.close(fd)

    def close(self) -> None:
        self._stop()
        self._inlet.close()
