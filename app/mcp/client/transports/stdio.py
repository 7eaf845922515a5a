"""Pipes: a server that is a program of this machine, spoken to line by line over its input and output.

The tree of processes is the server. When its first process ends the rest is killed (a wrapper does not leave its
server behind), and the link is lost.

Lines: bytes as they come, cut where the lines end. One that is too long is dropped, and never held whole.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from app.core.sandbox import ExitStatus, OutputChunk, Process
from app.core.util.json_codec import Raw, dumps
from app.mcp.client.interfaces import RequestNotSent
from app.mcp.client.jsonrpc import JsonRpcPeer
from app.mcp.client.upstream import RedactingLog

EDGE = 256


class LineSplitter:
    """Cuts a stream. `dropped` is told of each line as soon as it is longer than the limit, and `edges` gets its first
    and last bytes when it has come to its end."""

    def __init__(
        self, limit: int, dropped: Callable[[], None], edges: Callable[[bytes, bytes], None] = lambda first, last: None
    ) -> None:
        self._limit = limit
        self._dropped = dropped
        self._edges = edges
        self._parts: list[bytes] = []
        self._size = 0
        self._first: bytes | None = None
        self._last = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends."""
        first, *others = data.split(b"\n")
        self._go_on(first)
        if not others:
            return []
        lines = [] if self._first is not None else [b"".join(self._parts)]
        self._end()
        for line in others[:-1]:
            if len(line) <= self._limit:
                lines.append(line)
            else:
                self._go_on(line)
                self._end()
        self._go_on(others[-1])
        return lines

    def rest(self) -> bytes:
        """What came after the last end."""
        return b"".join(self._parts)

    def _go_on(self, data: bytes) -> None:
        if self._first is not None:
            self._last = (self._last + data)[-EDGE:]
            return
        if not data:
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._limit:
            self._first, self._last = b"".join(self._parts[:2])[:EDGE], data[-EDGE:]
            self._parts, self._size = [], 0
            self._dropped()

    def _end(self) -> None:
        if self._first is not None:
            self._edges(self._first, self._last)
        self._parts, self._size, self._first, self._last = [], 0, None, b""


log = logging.getLogger(__name__)

MOST_LINE = 64 * 1024 * 1024
MOST_WORDS = 16 * 1024
"""The longest line of stderr that is kept as one."""
MOST_QUEUED = 1024 * 1024
PIECE = 256 * 1024
LULL = 0.0005
"""Seconds since the last line after which one goes out by itself, at once; what comes closer is written together."""
GRACE = 1.0
"""Seconds to end by itself when there is no more input."""
LAST_SECONDS = 0.3
LAST_WORDS = 300
MOST_KEPT = 64 * 1024
"""Of what comes on stderr at once; a server's log has no more room."""
OVER = "The server's program has ended."


class StdioTransport:
    """The `Wire` to a child, whose life ends with it."""

    def __init__(self, child: Process, peer: JsonRpcPeer, journal: RedactingLog) -> None:
        self._child = child
        self._peer = peer
        self._log = journal
        self._last_words = ""
        self._queue: deque[tuple[int | None, bytes]] = deque()
        self._queued = 0
        self._written_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_over = False
        self._out = LineSplitter(MOST_LINE, self._dropped, self._answered_at_length)
        self._err = LineSplitter(MOST_WORDS, lambda: self._log.write("A very long line was left out.\n"))

    async def __aenter__(self) -> Self:
        self._child.listen(self._hear)
        self._tasks = [asyncio.create_task(self._attend()), asyncio.create_task(self._write())]
        return self

    async def __aexit__(self, *_: object) -> None:
        """First it may end by itself, then it is asked to, then it is killed, with all it started."""
        try:
            self._child.close_input()
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await self._child.wait()
            await self._child.end()
        finally:
            try:
                await self._child.close()
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks)

    async def send(self, message: Raw) -> None:
        if self._is_over:
            raise RequestNotSent(self._peer.lost.result() if self._peer.lost.done() else OVER)
        line, number = dumps(message) + b"\n", message["id"] if "method" in message and "id" in message else None
        if written := self._write_now(line):
            line, number = line[written:], None
        if not line:
            return
        self._queue.append((number, line))
        self._queued += len(line)
        self._news.set()
        if self._queued > MOST_QUEUED:
            self._room.clear()
            await self._room.wait()

    def drop(self, number: int) -> bool:
        """What is still in the queue never goes out."""
        for entry in self._queue:
            if entry[0] == number:
                self._queue.remove(entry)
                self._sent(len(entry[1]))
                return True
        return False

    def speak(self, version: str | None) -> None:
        """Programs read it in the messages."""

    def begin(self) -> None:
        """It reads and writes from the start."""

    def learn(self, listed: Any) -> None:
        """Nothing stands beside a line."""

    def _write_now(self, line: bytes) -> int:
        """How much of a line went out without waking the task. What is left is for that."""
        now = self._loop.time()
        if self._queued or now - self._written_at < LULL:
            return 0
        self._written_at = now
        with suppress(BrokenPipeError):  # the task finds out, too
            return self._child.write_now(line)
        return 0

    async def _write(self) -> None:
        """One task writes what has to wait: half a line, because somebody canceled, would spoil all that follow."""
        try:
            while True:
                self._news.clear()
                while self._queue:
                    data = self._next()
                    await self._child.write(data)
                    self._sent(len(data))
                await self._news.wait()
        except BrokenPipeError:
            self._close_queue()
            await asyncio.sleep(LAST_SECONDS)  # it has most likely ended, and that says more
            self._peer.lose("The server's program takes no more input.", self._unsent())

    def _next(self) -> bytes:
        """The lines that wait, as many as go at once."""
        lines, size = [], 0
        while self._queue and size < PIECE:
            line = self._queue.popleft()[1]
            lines.append(line)
            size += len(line)
        return b"".join(lines) if len(lines) > 1 else lines[0]

    def _sent(self, size: int) -> None:
        self._queued -= size
        if self._queued <= MOST_QUEUED:
            self._room.set()

    async def _attend(self) -> None:
        """Wait for its end, and hear its last words."""
        await self._child.read("stdout")
        self._close_queue()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await self._child.read()
                await self._child.wait()
        self._keep([self._err.rest()])
        self._peer.lose(self._ending(self._child.ended), self._unsent())
        await self._child.read()  # nobody has to wait for us who still has to say something

    def _hear(self, piece: OutputChunk) -> None:
        try:
            self._take(piece)
        except Exception:
            log.exception("what an MCP server wrote could not be read")
            self._peer.lose("What the server wrote could not be read.")

    def _take(self, piece: OutputChunk) -> None:
        if piece.stream == "stderr":
            self._keep(self._err.feed(piece.data))
            return
        for line in self._out.feed(piece.data):
            if line and not line.isspace():
                self._peer.hear(line)

    def _close_queue(self) -> None:
        self._is_over = True
        self._room.set()

    def _unsent(self) -> set[int]:
        return {number for number, _ in self._queue if number is not None}

    def _keep(self, lines: list[bytes]) -> None:
        """All that came at once in one go, and of very much the end only: some servers write without end."""
        words = (line.decode("utf-8", "replace").rstrip() for line in _last(lines, MOST_KEPT))
        text = self._log.hide("\n".join(filter(None, words)))
        if text:
            self._last_words = text.rpartition("\n")[2].strip()[:LAST_WORDS]
            self._log.write(text + "\n")

    def _dropped(self) -> None:
        self._log.write(f"The server wrote a line of more than {MOST_LINE >> 20} MiB, which was left out.\n")

    def _answered_at_length(self, first: bytes, last: bytes) -> None:
        self._peer.misheard(first, last, f"its answer has more than {MOST_LINE >> 20} MiB and was left out.")

    def _ending(self, ended: ExitStatus | None) -> str:
        if ended is None:
            sentence = "The server's program closed its output"
        elif ended.limit is not None:
            sentence = f"The server's program was ended because it took too much: {ended.limit}"
        else:
            sentence = f"The server's program ended with exit code {ended.code}"
        return f"{sentence}; its last words: {self._last_words}" if self._last_words else f"{sentence}."


def _last(lines: list[bytes], size: int) -> list[bytes]:
    """So many of them, from the end, as fit into that size."""
    for number in range(len(lines) - 1, -1, -1):
        size -= len(lines[number]) + 1
        if size < 0:
            return lines[number + 1 :]
    return lines
