"""A process that the spawner started, as the service sees it: its supervisor, its pipes or terminal, its output."""

import asyncio
import errno
import fcntl
import logging
import os
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

from app.core.sandbox import GRACE_SECONDS, ExitStatus, Isolation, OutputChunk, WindowSize
from app.core.util.aio import finish_despite_cancel
from app.sandbox.process import messages, process_tree

log = logging.getLogger(__name__)

SIGKILL = 9
SIGNAL_EXIT_CODE = 128
KILLED_EXIT_CODE = SIGNAL_EXIT_CODE + SIGKILL
READ_BYTES = 256 * 1024
DEFAULT_PIPE_BYTES = 64 * 1024
MAX_UNREAD_BYTES = 1024 * 1024
LINGER_SECONDS = 2.0
MAX_LINGER_BYTES = 2 * MAX_UNREAD_BYTES
RETRY_WRITE_SECONDS = 0.01
MAX_LINE_BYTES = 64 * 1024 * 1024
CTRL_D = b"\x04"
Stream = Literal["stdout", "stderr"]


class SupervisorLink:
    """The service's end of the socket to a supervisor, for one process tree.

    `exited` gets the code of the first process (negative: the signal) as soon as it is known; once `ended` is set
    nothing of the tree is left. `release` gets the socket back when the supervisor is idle again.
    """

    def __init__(self, end: socket.socket, mark: str, release: Callable[[socket.socket], None]) -> None:
        self._end = end
        self._mark = mark
        self._release = release
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self.ended: asyncio.Future[ExitStatus] = self._loop.create_future()
        self._loop.add_reader(end.fileno(), self._on_readable)
        self._is_open = True

    def signal(self, number: int) -> None:
        """Signal the process group of the first process."""
        self._send("signal", int(number))

    def end(self, grace: float = 0.0) -> None:
        """SIGTERM to the whole tree, and SIGKILL after `grace` seconds."""
        self._send("end", float(grace))

    def _send(self, *message: str | float) -> None:
        if self._is_open:
            with suppress(OSError):  # the supervisor is gone, which the reader sees
                messages.send(self._end, message)

    def _on_readable(self) -> None:
        while self._is_open:
            try:
                received = messages.receive(self._end)
            except BlockingIOError:
                return
            except OSError:
                received = None
            match received:
                case (("exited", code), _):
                    self._set_exited(code)
                case (("ended", code, limit), _):
                    self._stop_reading()
                    self._release(self._end)
                    exit_code = code if code >= 0 else SIGNAL_EXIT_CODE - code
                    self._set_ended(code, ExitStatus(KILLED_EXIT_CODE if limit else exit_code, limit))
                case None:
                    self._stop_reading()
                    self._end.close()
                    self._cleanup_task = self._loop.create_task(self._kill_leftovers())

    async def _kill_leftovers(self) -> None:
        """The supervisor was killed. The spawner inherits its tree and kills it; this makes sure."""
        if not await asyncio.to_thread(process_tree.kill_marked, self._mark.__eq__):
            log.error("processes with the mark %s cannot be killed", self._mark)
        self._set_ended(-SIGKILL, ExitStatus(KILLED_EXIT_CODE))

    def _set_ended(self, code: int, ended: ExitStatus) -> None:
        self._set_exited(code)
        if not self.ended.done():
            self.ended.set_result(ended)

    def _set_exited(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)

    def _stop_reading(self) -> None:
        self._is_open = False
        self._loop.remove_reader(self._end.fileno())


@dataclass(frozen=True, slots=True)
class PipeEnds:
    """The service's ends, all non-blocking. A terminal is output and input in one.

    `channel` is what the process writes there, and what it reads.
    """

    outputs: dict[Stream, int]
    input: int | None = None
    channel: tuple[int, int] | None = None
    is_tty: bool = False

    @property
    def fds(self) -> set[int]:
        return {fd for fd in (*self.outputs.values(), self.input, *(self.channel or ())) if fd is not None}

    def close(self) -> None:
        messages.close(self.fds)


@dataclass(frozen=True, slots=True)
class SpawnedProcess:
    """A process whose program has started. `listener` is the socket inside its own network namespace.

    The receiver has to close the pipe ends, and to wait for `link.ended`.
    """

    link: SupervisorLink
    ends: PipeEnds
    pid: int
    mark: str
    listener: int | None = None


def open_pipes(
    tty: WindowSize | None, *, has_stdin: bool, has_channel: bool, tty_owner: int | None
) -> tuple[PipeEnds, list[int]]:
    """The service's ends, and the child's in the order of their numbers: 0 to 2, or to 4 with a channel."""
    with ExitStack() as undo:
        ends, theirs = _open_terminal(tty, tty_owner, undo) if tty is not None else _open_stdio(has_stdin, undo)
        if has_channel:
            (reads, ours), (own, writes) = _open_pipe(undo), _open_pipe(undo)
            ends = PipeEnds(ends.outputs, ends.input, (own, ours), ends.is_tty)
            theirs = [*theirs, reads, writes]
        for fd in ends.fds:
            os.set_blocking(fd, False)
        undo.pop_all()
    return ends, theirs


def _open_pipe(undo: ExitStack) -> tuple[int, int]:
    pipe = os.pipe()
    undo.callback(messages.close, pipe)
    return pipe


def _open_stdio(has_stdin: bool, undo: ExitStack) -> tuple[PipeEnds, list[int]]:
    (stdout, child_stdout), (stderr, child_stderr) = _open_pipe(undo), _open_pipe(undo)
    outputs: dict[Stream, int] = {"stdout": stdout, "stderr": stderr}
    if has_stdin:
        child_stdin, stdin = _open_pipe(undo)
        return PipeEnds(outputs, stdin), [child_stdin, child_stdout, child_stderr]
    devnull = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    undo.callback(os.close, devnull)
    return PipeEnds(outputs), [devnull, child_stdout, child_stderr]


def _open_terminal(window: WindowSize, owner: int | None, undo: ExitStack) -> tuple[PipeEnds, list[int]]:
    master, slave = os.openpty()
    undo.callback(messages.close, (master, slave))
    set_window(master, window)
    if owner is not None:
        os.fchown(slave, owner, -1)  # so that the process can open it by its name, too
    return PipeEnds({"stdout": master}, master, is_tty=True), [slave, slave, slave]


def set_window(terminal: int, window: WindowSize) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *window, 0, 0))


class InputPipe:
    """The input of a process. A writer waits until everything is written. Without a descriptor nothing can be."""

    def __init__(self, fd: int | None, *, is_owner: bool = True) -> None:
        self._fd = fd
        self._is_owner = is_owner
        self._lock = asyncio.Lock()
        self._writable: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def write(self, data: bytes) -> None:
        """Raises `BrokenPipeError` when the process does not read any more."""
        async with self._lock:
            rest = memoryview(data)
            while rest:
                written = self._write(rest[:READ_BYTES])
                rest = rest[written:]
                if not written:
                    await self._wait_writable()

    def write_now(self, data: bytes) -> int:
        """Write as much as there is room for, unless another writer is waiting; the number of bytes written."""
        return 0 if self._lock.locked() else self._write(data)

    def write_soon(self, data: bytes) -> None:
        """Write a few bytes as soon as there is room, without waiting."""
        with suppress(BrokenPipeError):
            if not self._write(data):
                self._loop.call_later(RETRY_WRITE_SECONDS, self.write_soon, data)

    def _write(self, data: bytes | memoryview) -> int:
        if self._fd is None:
            raise BrokenPipeError(errno.EPIPE, "it takes no input")
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise BrokenPipeError(errno.EPIPE, "it takes no input") from error

    async def _wait_writable(self) -> None:
        assert self._fd is not None, "it has just been written to"
        self._writable = self._loop.create_future()
        self._loop.add_writer(self._fd, _set_done, self._writable)
        try:
            await self._writable
        finally:
            self._writable = None
            if self._fd is not None:
                self._loop.remove_writer(self._fd)

    def close(self) -> None:
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        self._loop.remove_writer(fd)
        if self._writable is not None:
            _set_done(self._writable)
        if self._is_owner:
            os.close(fd)


class Channel:
    """Lines to and from a process of our own, beside its stdio. It is read only while a caller waits for a line."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads: int | None = reads
        self._input = InputPipe(writes)
        self._buffer = bytearray()
        self._searched = 0
        self._readable: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def send(self, line: bytes) -> None:
        await self._input.write(line + b"\n")

    async def receive(self) -> bytes | None:
        """The next line; a last one without a newline is dropped."""
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            if not await self._read():
                return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    async def _read(self) -> bool:
        """Read once; whether there is more than before."""
        if len(self._buffer) > MAX_LINE_BYTES:
            log.warning("a line of more than %d bytes came from a process of our own; no more is read", MAX_LINE_BYTES)
            self._stop_reading()
        while self._reads is not None:
            try:
                data = os.read(self._reads, READ_BYTES)
            except BlockingIOError:
                await self._wait_readable(self._reads)
                continue
            self._buffer += data
            if not data:
                self._stop_reading()
            return bool(data)
        return False

    async def _wait_readable(self, fd: int) -> None:
        self._readable = self._loop.create_future()
        self._loop.add_reader(fd, _set_done, self._readable)
        try:
            await self._readable
        finally:
            self._readable = None
            if self._reads is not None:
                self._loop.remove_reader(fd)

    def _stop_reading(self) -> None:
        if self._reads is None:
            return
        fd, self._reads = self._reads, None
        self._loop.remove_reader(fd)
        if self._readable is not None:
            _set_done(self._readable)
        os.close(fd)

    def close(self) -> None:
        self._stop_reading()
        self._input.close()


def _set_done(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class LocalProcess:
    """The `Process` port around a process that the spawner started."""

    def __init__(self, spawned: SpawnedProcess, isolation: Isolation) -> None:
        ends = spawned.ends
        self.isolation = isolation
        self.pid = spawned.pid
        self._link = spawned.link
        self._is_tty = ends.is_tty
        self._terminal = ends.input if ends.is_tty else None
        self._input = InputPipe(ends.input, is_owner=not ends.is_tty)
        self._channel = Channel(*ends.channel) if ends.channel else None
        self._outputs = dict(ends.outputs)
        self._chunks: deque[OutputChunk] = deque()
        self._listener: Callable[[OutputChunk], None] | None = None
        self._unread_bytes = 0
        self._is_paused = False
        self._linger_bytes = MAX_LINGER_BYTES
        self._linger_timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._start_reading()
        self._link.ended.add_done_callback(self._on_exit)

    @property
    def ended(self) -> ExitStatus | None:
        return self._link.ended.result() if self._link.ended.done() else None

    async def read(self, until: Stream | None = None) -> OutputChunk | None:
        while not self._chunks:
            if not self._outputs or (until is not None and until not in self._outputs):
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._next_chunk()

    def listen(self, listener: Callable[[OutputChunk], None]) -> None:
        while self._chunks:
            listener(self._next_chunk())
        self._listener = listener

    async def write(self, data: bytes) -> None:
        await self._input.write(data)

    def write_now(self, data: bytes) -> int:
        return self._input.write_now(data)

    def close_input(self) -> None:
        if self._is_tty:
            self._input.write_soon(CTRL_D)
        else:
            self._input.close()

    async def send(self, line: bytes) -> None:
        assert self._channel is not None, "the command has a channel"
        await self._channel.send(line)

    async def receive(self) -> bytes | None:
        assert self._channel is not None, "the command has a channel"
        return await self._channel.receive()

    async def wait(self) -> ExitStatus:
        return await asyncio.shield(self._link.ended)

    def signal(self, number: int) -> None:
        if self._link.ended.done():
            return
        group = self._foreground_group()
        if group is None:
            self._link.signal(number)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)

    def resize(self, window: WindowSize) -> None:
        if self._terminal is not None:
            set_window(self._terminal, window)

    async def end(self, grace: float = GRACE_SECONDS) -> ExitStatus:
        self._link.end(grace)
        return await finish_despite_cancel(self._link.ended)

    async def close(self) -> None:
        try:
            await self.end(0)
        finally:
            self._close_outputs()
            if self._channel is not None:
                self._channel.close()

    def _next_chunk(self) -> OutputChunk:
        chunk = self._chunks.popleft()
        self._unread_bytes -= len(chunk.data)
        if self._is_paused and self._unread_bytes < MAX_UNREAD_BYTES // 2:
            self._is_paused = False
            self._start_reading()
        return chunk

    def _foreground_group(self) -> int | None:
        """The foreground process group of the terminal, if there is one."""
        if self._terminal is None:
            return None
        with suppress(OSError):
            group = os.tcgetpgrp(self._terminal)
            return group if group > 1 else None
        return None

    def _start_reading(self) -> None:
        for stream, fd in self._outputs.items():
            self._loop.add_reader(fd, self._on_readable, stream, fd)
        if self._link.ended.done():
            self._linger()

    def _pause(self) -> None:
        self._is_paused = True
        for fd in self._outputs.values():
            self._loop.remove_reader(fd)
        if self._linger_timer is not None:
            self._linger_timer.cancel()

    def _on_readable(self, stream: Stream, fd: int) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # the other end of a terminal is closed
        if not data:
            self._changed.set()
            self._close_output(stream)
            return
        if len(data) == DEFAULT_PIPE_BYTES:  # the pipe was full: make it larger
            with suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, READ_BYTES)
        self._deliver(OutputChunk(stream, data))
        if self._link.ended.done():
            self._linger_bytes -= len(data)
            if self._linger_bytes <= 0:
                self._close_outputs()

    def _deliver(self, chunk: OutputChunk) -> None:
        if self._listener is not None:
            self._listener(chunk)
            return
        self._changed.set()
        self._chunks.append(chunk)
        self._unread_bytes += len(chunk.data)
        if self._unread_bytes > MAX_UNREAD_BYTES - READ_BYTES:
            self._pause()

    def _on_exit(self, _: object) -> None:
        """The tree has ended. Its output is in the pipes; another process may still hold them open."""
        self._input.close()
        if not self._is_paused:
            self._linger()
        self._changed.set()

    def _linger(self) -> None:
        """A slow reader gets all the output; pipes that stay open without output are closed after a while."""
        self._linger_timer = self._loop.call_later(LINGER_SECONDS, self._close_outputs)

    def _close_outputs(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._input.close()
        for stream in list(self._outputs):
            self._close_output(stream)
        self._changed.set()

    def _close_output(self, stream: Stream) -> None:
        fd = self._outputs.pop(stream)
        self._loop.remove_reader(fd)
        if fd == self._terminal:
            self._input.close()
            self._terminal = None
        os.close(fd)
