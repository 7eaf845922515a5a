"""Pumps: what a terminal writes, read for its whole life and handed on to all who want it.

It is decoded and redacted once, in one piece for all the calls that will ever
read it, because a secret that is cut between two of them would not be found.
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
MOST_SHOWN = 64 * 1024
UNHEARD = 1024 * 1024
UNHEARD_SPEED = 16 * 1024 * 1024
"""Bytes in a second that are read of what no call waits for: nobody has a use for it, and others need the time."""
QUIET_SECONDS = 0.05
WRITE_SECONDS = 10.0
LAST_SECONDS = 5.0
INTERRUPT = "\x03"
NO_STDIN = "stdin is closed for this session; rerun exec_command with tty=true to keep stdin open"
DEAF = "The program does not read what it is given; look at its output, or interrupt it with \\u0003."

Show = Callable[[int, str], None]
"""Tells those who watch: where in the stream a text begins, and the text."""


@dataclass(frozen=True, slots=True)
class TerminalInfo:
    """What is written on a terminal's door: whose it is, and what runs in it."""

    id: int
    principal: str
    session: str
    call: str
    command: str
    is_tty: bool
    takes_input: bool


class OutputBuffer:
    """What is shown to those who watch, at most twenty times a second. Of what is too much the latest is shown; its
    offset says how much was left out. Nothing is shown of a terminal before it was told that there is one."""

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
        if (extra := len(self._waiting) - MOST_SHOWN) > 0:
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
    """One stream of a process on its way from bytes to text without secrets."""

    def __init__(self, cover: OutputStream) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._cover = cover

    def feed(self, data: bytes) -> str:
        return self._cover.feed(self._decoder.decode(data))

    def pause(self) -> str:
        return self._cover.pause()

    def finish(self) -> str:
        return self._cover.feed(self._decoder.decode(b"", final=True)) + self._cover.finish()


class LiveTerminal:
    """The `Terminal` port around a child. `opened` is done when its beginning was told, `over` is called when it has
    ended, `told` when a call was told of that."""

    def __init__(
        self,
        plate: TerminalInfo,
        child: Process,
        clock: Clock,
        *,
        cover: Callable[[], OutputStream],
        show: Show,
        opened: "asyncio.Future[None]",
        over: Callable[["LiveTerminal"], None],
        told: Callable[["LiveTerminal"], None],
    ) -> None:
        self.plate = plate
        self.ended: ExitStatus | None = None
        self.reason = "exited"
        self.typed = ""
        self.is_dismissed = False
        self._child = child
        self._clock = clock
        self._cover = cover
        self._screen = OutputBuffer(show, opened)
        self._opened = opened
        self._on_over = over
        self._on_told = told
        self._unread = HeadTailBuffer(HEAD, TAIL)
        self._inflows: dict[str, _Reader] = {}
        self._last = float("-inf")
        self._hearing: list[Tell] = []
        self._heard = asyncio.Event()
        self._users = 0
        self._over = asyncio.Event()
        self._opened_at = self._used_at = clock.now()
        self.used = clock.monotonic()
        self._life = asyncio.get_running_loop().create_task(self._live())

    @property
    def id(self) -> int:
        return self.plate.id

    @property
    def command(self) -> str:
        return self.plate.command

    @property
    def takes_input(self) -> bool:
        return self.plate.takes_input

    @property
    def isolation(self) -> Isolation:
        return self._child.isolation

    @property
    def is_used(self) -> bool:
        """Whether a call is at it now."""
        return self._users > 0

    def view(self) -> TerminalView:
        return TerminalView(
            id=self.id,
            call=self.plate.call,
            command=self.plate.command,
            is_tty=self.plate.is_tty,
            isolation=self.isolation,
            opened_at=self._opened_at,
            used_at=self._used_at,
            exit_code=None if self.ended is None else self.ended.code,
        )

    async def write(self, text: str) -> None:
        if not self.takes_input and text != INTERRUPT:
            raise InvalidArgs(NO_STDIN)
        self.typed = _unfinished(self.typed + text)
        with self._in_use():
            if text == INTERRUPT and not self.plate.is_tty:
                self._child.signal(signal.SIGINT)
                return
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._child.write(encoded(text))
            except TimeoutError:
                raise ToolUnavailable(DEAF) from None
            except BrokenPipeError:
                if self._child.ended is None:
                    raise InvalidArgs(NO_STDIN) from None

    async def collect(self, seconds: float, tell: Tell | None = None) -> Collected:
        with self._in_use(), suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._listen(tell)
        await self._settle(tell)
        unread, self._unread = self._unread, HeadTailBuffer(HEAD, TAIL)
        if self.ended is not None:
            self._on_told(self)
        return Collected(unread.rendered(MARKER), unread.size, unread.lines, unread.omitted, self.ended)

    def resize(self, window: WindowSize) -> None:
        if self.ended is None:
            self._child.resize(window)

    async def end(self) -> None:
        await self.stop("killed")
        self._on_told(self)

    async def stop(self, reason: str) -> None:
        """End the process. Who asks after it is still told how."""
        if self._child.ended is None:
            self.reason = reason
            if self.plate.is_tty:
                self._child.signal(signal.SIGHUP)  # what a shell heeds that waits for input
        await self._child.end(GRACE_SECONDS)
        await asyncio.wait([self._life], timeout=LAST_SECONDS)
        if not self._life.done():  # whom it tells does not listen, and the process is gone anyway
            self._life.cancel()
            await asyncio.wait([self._life])

    async def _listen(self, tell: Tell | None) -> None:
        """Until the end. Who hears is noted before what is unread is told, so that nothing comes between."""
        self._hearing.append(tell or _nowhere)
        self._heard.set()
        try:
            if tell is not None and self._unread.size:
                await tell(self._unread.rendered(MARKER), "stdout")
            await self._over.wait()
        finally:
            self._hearing.remove(tell or _nowhere)
            if not self._hearing:
                self._heard.clear()

    async def _settle(self, tell: Tell | None) -> None:
        """A prompt does not end its line; when nothing follows it, it is all there is."""
        if asyncio.get_running_loop().time() - self._last < QUIET_SECONDS:
            return
        for stream, inflow in self._inflows.items():
            if text := inflow.pause():
                self._unread.feed(text)
                self._screen.feed(text)
                await (tell or _nowhere)(text, stream)

    async def _live(self) -> None:
        try:
            await self._pump()
            self.ended = await self._child.wait()
        except Exception:
            log.exception("terminal %d of %s broke", self.id, self.plate.session)
        finally:
            if self.ended is None:
                self.ended = await self._child.end(0)
            self._over.set()
            await self._child.close()
            await self._say_so()

    async def _say_so(self) -> None:
        """Its end is told after its beginning and after all that it wrote."""
        try:
            await asyncio.wait([self._opened])
        finally:
            self._screen.flush()
            self._on_over(self)

    async def _pump(self) -> None:
        unheard = 0
        while (piece := await self._child.read()) is not None:
            if piece.stream not in self._inflows:
                self._inflows[piece.stream] = _Reader(self._cover())
            self._last = asyncio.get_running_loop().time()
            await self._hand_on(self._inflows[piece.stream].feed(piece.data), piece.stream)
            unheard = 0 if self._hearing else unheard + len(piece.data)
            if unheard > UNHEARD:
                await self._linger(unheard / UNHEARD_SPEED)
                unheard = 0
        for stream, inflow in self._inflows.items():
            await self._hand_on(inflow.finish(), stream)

    async def _linger(self, seconds: float) -> None:
        """Let a process wait that writes much, unless somebody wants to hear it or it has ended."""
        if self._child.ended is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._heard.wait()

    async def _hand_on(self, text: str, stream: str) -> None:
        if not text:
            return
        self._unread.feed(text)
        self._screen.feed(text)
        for tell in tuple(self._hearing):
            try:
                await tell(text, stream)
            except Exception:
                log.exception("the output of terminal %d could not be kept with its call", self.id)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._used_at = self._clock.now()
            self.used = self._clock.monotonic()


def _unfinished(text: str) -> str:
    return text[max(text.rfind("\n"), text.rfind("\r")) + 1 :]


async def _nowhere(text: str, stream: str) -> None:
    """For who wants to know only what is left to be told."""
