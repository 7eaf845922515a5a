"""Reads what a terminal writes for as long as it lives, and passes it on to calls and subscribers.

The output is decoded and redacted once, for all the calls that will read it: a secret cut between two of them would
not be found.
"""

import asyncio
import codecs
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from app.core.errors import InvalidArgs, ToolUnavailable
from app.core.ports import Clock
from app.core.redaction import OutputStream
from app.core.sandbox import GRACE_SECONDS, ExitStatus, Isolation, Process, WindowSize
from app.core.terminals import Collected, Tell, TerminalView
from app.core.util.head_tail import HeadTailBuffer, encoded

log = logging.getLogger(__name__)

HEAD = TAIL = 512 * 1024
MARKER = "[... {omitted} bytes omitted ...]"
PAUSE_SECONDS = 0.05
MAX_SHOWN_BYTES = 64 * 1024
MAX_UNREAD_BYTES = 1024 * 1024
MAX_UNREAD_BYTES_PER_SECOND = 16 * 1024 * 1024
"""How fast output is read that no call waits for, so that it does not take time from calls."""
QUIET_SECONDS = 0.05
WRITE_SECONDS = 10.0
READ_SECONDS_AFTER_EXIT = 5.0
INTERRUPT = "\x03"
NO_STDIN = "stdin is closed for this session; rerun exec_command with tty=true to keep stdin open"
NOT_READING = "The program does not read what it is given; look at its output, or interrupt it with \\u0003."

Show = Callable[[int, str], None]
"""Publishes a text to subscribers, with its offset in the stream."""


@dataclass(frozen=True, slots=True)
class TerminalInfo:
    """Whose terminal it is, and what runs in it."""

    id: int
    principal: str
    session: str
    call: str
    command: str
    is_tty: bool
    takes_input: bool


class OutputBuffer:
    """Publishes output to subscribers at most twenty times a second, and only after `terminal.opened` is stored.

    Of too much output the latest part is published; its offset says how much was left out.
    """

    def __init__(self, show: Show, opened: "asyncio.Future[None]") -> None:
        self._show = show
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._last = float("-inf")

    def feed(self, text: str) -> None:
        data = encoded(text)
        self._waiting += data
        self._size += len(data)
        if (extra := len(self._waiting) - MAX_SHOWN_BYTES) > 0:
            while extra < len(self._waiting) and self._waiting[extra] & 0xC0 == 0x80:
                extra += 1
            del self._waiting[:extra]
        if not self._opened.done():
            self._opened.remove_done_callback(self._begin)
            self._opened.add_done_callback(self._begin)
        elif self._timer is None:
            self._timer = self._loop.call_at(self._last + PAUSE_SECONDS, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._last = self._loop.time()
        if self._waiting:
            text, start = self._waiting.decode(), self._size - len(self._waiting)
            self._waiting.clear()
            self._show(start, text)

    def _begin(self, opened: "asyncio.Future[None]") -> None:
        self.flush()


class _Reader:
    """Decodes and redacts one stream of a process."""

    def __init__(self, redaction: OutputStream) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._redaction = redaction

    def feed(self, data: bytes) -> str:
        return self._redaction.feed(self._decoder.decode(data))

    def pause(self) -> str:
        return self._redaction.pause()

    def finish(self) -> str:
        return self._redaction.feed(self._decoder.decode(b"", final=True)) + self._redaction.finish()


class LiveTerminal:
    """The `Terminal` port around a process. `opened` is done when `terminal.opened` is stored, `on_exit` is called when
    the process has ended, `on_exit_read` when a call has read that."""

    def __init__(
        self,
        info: TerminalInfo,
        child: Process,
        clock: Clock,
        *,
        redaction: Callable[[], OutputStream],
        show: Show,
        opened: "asyncio.Future[None]",
        on_exit: Callable[["LiveTerminal"], None],
        on_exit_read: Callable[["LiveTerminal"], None],
    ) -> None:
        self.info = info
        self.ended: ExitStatus | None = None
        self.reason = "exited"
        self.typed = ""
        self.is_dismissed = False
        self._child = child
        self._clock = clock
        self._redaction = redaction
        self._buffer = OutputBuffer(show, opened)
        self._opened = opened
        self._on_exit = on_exit
        self._on_exit_read = on_exit_read
        self._unread = HeadTailBuffer(HEAD, TAIL)
        self._readers: dict[str, _Reader] = {}
        self._last = float("-inf")
        self._listeners: list[Tell] = []
        self._has_listener = asyncio.Event()
        self._users = 0
        self._has_ended = asyncio.Event()
        self._opened_at = self._used_at = clock.now()
        self.used = clock.monotonic()
        self._life = asyncio.get_running_loop().create_task(self._live())

    @property
    def id(self) -> int:
        return self.info.id

    @property
    def command(self) -> str:
        return self.info.command

    @property
    def takes_input(self) -> bool:
        return self.info.takes_input

    @property
    def isolation(self) -> Isolation:
        return self._child.isolation

    @property
    def is_used(self) -> bool:
        """Whether a call uses it now."""
        return self._users > 0

    def view(self) -> TerminalView:
        return TerminalView(
            id=self.id,
            call=self.info.call,
            command=self.info.command,
            is_tty=self.info.is_tty,
            isolation=self.isolation,
            opened_at=self._opened_at,
            used_at=self._used_at,
            exit_code=None if self.ended is None else self.ended.code,
        )

    async def write(self, text: str) -> None:
        if not self.takes_input and text != INTERRUPT:
            raise InvalidArgs(NO_STDIN)
        typed = self.typed + text
        self.typed = typed[max(typed.rfind("\n"), typed.rfind("\r")) + 1 :]
        with self._in_use():
            if text == INTERRUPT and not self.info.is_tty:
                self._child.signal(signal.SIGINT)
                return
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._child.write(encoded(text))
            except TimeoutError:
                raise ToolUnavailable(NOT_READING) from None
            except BrokenPipeError:
                if self._child.ended is None:
                    raise InvalidArgs(NO_STDIN) from None

    async def collect(self, seconds: float, send: Tell | None = None) -> Collected:
        with self._in_use(), suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._listen(send)
        await self._flush_prompt(send)
        unread, self._unread = self._unread, HeadTailBuffer(HEAD, TAIL)
        if self.ended is not None:
            self._on_exit_read(self)
        return Collected(unread.rendered(MARKER), unread.size, unread.lines, unread.omitted, self.ended)

    def resize(self, window: WindowSize) -> None:
        if self.ended is None:
            self._child.resize(window)

    async def end(self) -> None:
        await self.stop("killed")
        self._on_exit_read(self)

    async def stop(self, reason: str) -> None:
        """End the process. A later call can still read how it ended."""
        if self._child.ended is None:
            self.reason = reason
            if self.info.is_tty:
                self._child.signal(signal.SIGHUP)  # an interactive shell ignores SIGTERM
        await self._child.end(GRACE_SECONDS)
        await asyncio.wait([self._life], timeout=READ_SECONDS_AFTER_EXIT)
        if not self._life.done():  # a listener does not return; the process has ended anyway
            self._life.cancel()
            await asyncio.wait([self._life])

    async def _listen(self, send: Tell | None) -> None:
        """Pass output to this listener until the end. It is registered before the unread output is sent, so that
        nothing is missed."""
        self._listeners.append(send or _discard)
        self._has_listener.set()
        try:
            if send is not None and self._unread.size:
                await send(self._unread.rendered(MARKER), "stdout")
            await self._has_ended.wait()
        finally:
            self._listeners.remove(send or _discard)
            if not self._listeners:
                self._has_listener.clear()

    async def _flush_prompt(self, send: Tell | None) -> None:
        """Pass on an incomplete line, such as a prompt, when nothing follows it."""
        if asyncio.get_running_loop().time() - self._last < QUIET_SECONDS:
            return
        for stream, reader in self._readers.items():
            if text := reader.pause():
                self._unread.feed(text)
                self._buffer.feed(text)
                await (send or _discard)(text, stream)

    async def _live(self) -> None:
        try:
            await self._read_all()
            self.ended = await self._child.wait()
        except Exception:
            log.exception("terminal %d of %s broke", self.id, self.info.session)
        finally:
            if self.ended is None:
                self.ended = await self._child.end(0)
            self._has_ended.set()
            await self._child.close()
            await self._publish_exit()

    async def _publish_exit(self) -> None:
        """`terminal.closed` is published after `terminal.opened` and after all output."""
        try:
            await asyncio.wait([self._opened])
        finally:
            self._buffer.flush()
            self._on_exit(self)

    async def _read_all(self) -> None:
        unread = 0
        while (chunk := await self._child.read()) is not None:
            if chunk.stream not in self._readers:
                self._readers[chunk.stream] = _Reader(self._redaction())
            self._last = asyncio.get_running_loop().time()
            await self._pass_on(self._readers[chunk.stream].feed(chunk.data), chunk.stream)
            unread = 0 if self._listeners else unread + len(chunk.data)
            if unread > MAX_UNREAD_BYTES:
                await self._slow_down(unread / MAX_UNREAD_BYTES_PER_SECOND)
                unread = 0
        for stream, reader in self._readers.items():
            await self._pass_on(reader.finish(), stream)

    async def _slow_down(self, seconds: float) -> None:
        """Let a process that writes much wait, unless a call listens or it has ended."""
        if self._child.ended is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._has_listener.wait()

    async def _pass_on(self, text: str, stream: str) -> None:
        if not text:
            return
        self._unread.feed(text)
        self._buffer.feed(text)
        for send in tuple(self._listeners):
            try:
                await send(text, stream)
            except Exception:
                log.exception("the output of terminal %d could not be stored with its call", self.id)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._used_at = self._clock.now()
            self.used = self._clock.monotonic()


async def _discard(text: str, stream: str) -> None:
    """The listener of a call that only reads the rest at its end."""
