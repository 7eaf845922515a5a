"""The stdio transport: a server that is a local program, with one JSON message per line on its stdin and stdout.

The process tree is the server. When its first process exits the rest is killed, so that a wrapper does not leave its
server behind, and the connection is lost.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Self

from app.core.sandbox import ExitStatus, OutputChunk, Process
from app.core.util.json_codec import Raw, dumps
from app.mcp.client.interfaces import Log, RequestNotSent
from app.mcp.client.jsonrpc import EDGE_BYTES, JsonRpcPeer, Transport

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_STDERR_LINE_BYTES = 16 * 1024
MAX_QUEUED_BYTES = 1024 * 1024
WRITE_BYTES = 256 * 1024
COALESCE_SECONDS = 0.0005
"""A message this long after the last one is written at once; messages closer together are written together."""
EXIT_SECONDS = 1.0
"""Time to exit after stdin was closed, before SIGTERM."""
DRAIN_SECONDS = 0.3
MAX_LAST_LINE = 300
MAX_STDERR_BYTES = 64 * 1024
"""Of what arrives on stderr at once; the server's log stores no more."""
MASK = "***"


class RedactingLog:
    """A log that masks these values."""

    def __init__(self, server_log: Log, values: Iterable[str]) -> None:
        self._log = server_log
        self._values = sorted(filter(None, values), key=len, reverse=True)

    def write(self, text: str) -> None:
        self._log.write(self.redact(text))

    def redact(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, MASK)
        return text


class LineSplitter:
    """Splits a stream into lines. A line longer than the limit is dropped and never held whole.

    `on_too_long` is called as soon as a line exceeds the limit, `on_dropped` at its end with its first and last bytes.
    """

    def __init__(
        self,
        limit: int,
        on_too_long: Callable[[], None],
        on_dropped: Callable[[bytes, bytes], None] = lambda first, last: None,
    ) -> None:
        self._limit = limit
        self._on_too_long = on_too_long
        self._on_dropped = on_dropped
        self._parts: list[bytes] = []
        self._size = 0
        self._first: bytes | None = None
        self._last = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        first, *others = data.split(b"\n")
        self._append(first)
        if not others:
            return []
        lines = [] if self._first is not None else [b"".join(self._parts)]
        self._end_line()
        for line in others[:-1]:
            if len(line) <= self._limit:
                lines.append(line)
            else:
                self._append(line)
                self._end_line()
        self._append(others[-1])
        return lines

    def rest(self) -> bytes:
        """What came after the last line end."""
        return b"".join(self._parts)

    def _append(self, data: bytes) -> None:
        if self._first is not None:
            self._last = (self._last + data)[-EDGE_BYTES:]
            return
        if not data:
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._limit:
            self._first, self._last = b"".join(self._parts[:2])[:EDGE_BYTES], data[-EDGE_BYTES:]
            self._parts, self._size = [], 0
            self._on_too_long()

    def _end_line(self) -> None:
        if self._first is not None:
            self._on_dropped(self._first, self._last)
        self._parts, self._size, self._first, self._last = [], 0, None, b""


class StdioTransport(Transport):
    """The transport to a process, which ends with it."""

    def __init__(self, process: Process, peer: JsonRpcPeer, server_log: RedactingLog) -> None:
        self._process = process
        self._peer = peer
        self._log = server_log
        self._last_stderr_line = ""
        self._queue: deque[tuple[int | None, bytes]] = deque()
        self._queued_bytes = 0
        self._written_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._has_queued = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_closed = False
        self._stdout = LineSplitter(MAX_LINE_BYTES, self._log_long_line, self._reject_long_line)
        self._stderr = LineSplitter(
            MAX_STDERR_LINE_BYTES, lambda: self._log.write("A very long line of stderr was dropped.\n")
        )

    async def __aenter__(self) -> Self:
        self._process.listen(self._on_output)
        self._tasks = [asyncio.create_task(self._watch_exit()), asyncio.create_task(self._write_queue())]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close stdin, then SIGTERM, then SIGKILL for the whole process tree."""
        try:
            self._process.close_input()
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_SECONDS):
                    await self._process.wait()
            await self._process.end()
        finally:
            try:
                await self._process.close()
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks)

    async def send(self, message: Raw) -> None:
        if self._is_closed:
            lost = self._peer.lost
            raise RequestNotSent(lost.result() if lost.done() else "The server's program has exited.")
        line, number = dumps(message) + b"\n", message["id"] if "method" in message and "id" in message else None
        if written := self._write_now(line):
            line, number = line[written:], None
        if not line:
            return
        self._queue.append((number, line))
        self._queued_bytes += len(line)
        self._has_queued.set()
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._has_room.clear()
            await self._has_room.wait()

    def discard(self, number: int) -> bool:
        """A request that is still in the queue is never sent."""
        for entry in self._queue:
            if entry[0] == number:
                self._queue.remove(entry)
                self._count_written(len(entry[1]))
                return True
        return False

    def _write_now(self, line: bytes) -> int:
        """How many bytes were written without waking the writer task, which writes the rest."""
        now = self._loop.time()
        if self._queued_bytes or now - self._written_at < COALESCE_SECONDS:
            return 0
        self._written_at = now
        with suppress(BrokenPipeError):  # the writer task will see it, too
            return self._process.write_now(line)
        return 0

    async def _write_queue(self) -> None:
        """A single task writes the queue: a canceled call must not leave half a line."""
        try:
            while True:
                self._has_queued.clear()
                while self._queue:
                    data = self._next_lines()
                    await self._process.write(data)
                    self._count_written(len(data))
                await self._has_queued.wait()
        except BrokenPipeError:
            self._close_queue()
            await asyncio.sleep(DRAIN_SECONDS)  # it has most likely exited, and its exit code says more
            self._peer.close_with("The server's program closed its stdin.", self._unsent())

    def _next_lines(self) -> bytes:
        """The queued lines, as many as are written at once."""
        lines, size = [], 0
        while self._queue and size < WRITE_BYTES:
            line = self._queue.popleft()[1]
            lines.append(line)
            size += len(line)
        return b"".join(lines) if len(lines) > 1 else lines[0]

    def _count_written(self, size: int) -> None:
        self._queued_bytes -= size
        if self._queued_bytes <= MAX_QUEUED_BYTES:
            self._has_room.set()

    async def _watch_exit(self) -> None:
        await self._process.read("stdout")
        self._close_queue()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._process.read()
                await self._process.wait()
        self._log_stderr([self._stderr.rest()])
        self._peer.close_with(self._exit_message(self._process.ended), self._unsent())
        await self._process.read()  # a process that still writes must not block

    def _on_output(self, chunk: OutputChunk) -> None:
        try:
            if chunk.stream == "stderr":
                self._log_stderr(self._stderr.feed(chunk.data))
                return
            for line in self._stdout.feed(chunk.data):
                if line and not line.isspace():
                    self._peer.receive(line)
        except Exception:
            log.exception("the output of an MCP server could not be read")
            self._peer.close_with("The server's output could not be read.")

    def _close_queue(self) -> None:
        self._is_closed = True
        self._has_room.set()

    def _unsent(self) -> set[int]:
        return {number for number, _ in self._queue if number is not None}

    def _log_stderr(self, lines: list[bytes]) -> None:
        """Only the end of a very large chunk is logged: some servers write without end."""
        decoded = (line.decode("utf-8", "replace").rstrip() for line in _last_lines(lines, MAX_STDERR_BYTES))
        text = self._log.redact("\n".join(filter(None, decoded)))
        if text:
            self._last_stderr_line = text.rpartition("\n")[2].strip()[:MAX_LAST_LINE]
            self._log.write(text + "\n")

    def _log_long_line(self) -> None:
        self._log.write(f"The server wrote a line of more than {MAX_LINE_BYTES >> 20} MiB, which was dropped.\n")

    def _reject_long_line(self, first: bytes, last: bytes) -> None:
        self._peer.reject_unreadable(
            first, last, f"its answer has more than {MAX_LINE_BYTES >> 20} MiB and was dropped."
        )

    def _exit_message(self, status: ExitStatus | None) -> str:
        if status is None:
            message = "The server's program closed its stdout"
        elif status.limit is not None:
            message = f"The server's program was killed because it exceeded a limit: {status.limit}"
        else:
            message = f"The server's program exited with code {status.code}"
        return f"{message}; last stderr line: {self._last_stderr_line}" if self._last_stderr_line else f"{message}."


def _last_lines(lines: list[bytes], size: int) -> list[bytes]:
    """The last lines that fit into this size."""
    for number in range(len(lines) - 1, -1, -1):
        size -= len(lines[number]) + 1
        if size < 0:
            return lines[number + 1 :]
    return lines
