"""Pumps: what a terminal writes, handed on to all who want it. The child is a toy: slow, deaf or broken at will."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from app.core.errors import InvalidArgs, ToolUnavailable
from app.core.redaction import Redactor
from app.core.sandbox import Backend, ExitStatus, Isolation, Network, OutputChunk, WindowSize
from app.core.sessions import Profile
from app.core.util.clocks import SystemClock
from app.dispatch.session import terminal_reader
from app.dispatch.session.terminal_reader import MAX_SHOWN_BYTES, LiveTerminal, OutputBuffer, TerminalInfo
from tests.support.services import HANG, until

SECRET = "hunter2hunter2"
WALLS = Isolation(Backend.NONE, Profile.WORKSPACE_WRITE, Network.FULL)


class ToyChild:
    """The `Child` port, played by a test."""

    isolation = WALLS

    def __init__(self) -> None:
        self.ended: ExitStatus | None = None
        self.pieces: asyncio.Queue[OutputChunk | Exception | None] = asyncio.Queue()
        self.reads = 0
        self.got: list[bytes] = []
        self.signals: list[int] = []
        self.refusal: Exception | None = None
        self.is_deaf = False
        self.is_closed = False

    def say(self, text: str | bytes) -> None:
        self.pieces.put_nowait(OutputChunk("stdout", text.encode() if isinstance(text, str) else text))

    def leave(self, code: int = 0) -> None:
        self.ended = ExitStatus(code)
        self.pieces.put_nowait(None)

    async def read(self, until: str | None = None) -> OutputChunk | None:
        piece = await self.pieces.get()
        self.reads += 1
        if isinstance(piece, Exception):
            raise piece
        return piece

    def listen(self, take: Callable[[OutputChunk], None]) -> None:
        raise AssertionError("a terminal is read in its own time")

    def write_now(self, data: bytes) -> int:
        raise AssertionError("a terminal is waited for")

    async def write(self, data: bytes) -> None:
        if self.is_deaf:
            await asyncio.Event().wait()
        if self.refusal is not None:
            raise self.refusal
        self.got.append(data)

    async def wait(self) -> ExitStatus:
        assert self.ended is not None
        return self.ended

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def resize(self, window: WindowSize) -> None: ...

    def close_input(self) -> None: ...

    async def send(self, line: bytes) -> None: ...

    async def receive(self) -> bytes | None:
        return None

    async def end(self, grace: float = 0) -> ExitStatus:
        if self.ended is None:
            self.leave(143)
        assert self.ended is not None
        return self.ended

    async def close(self) -> None:
        self.is_closed = True


class Stage:
    """A terminal with its child, and what was shown and told of it."""

    def __init__(self, redactor: Redactor) -> None:
        self.child = ToyChild()
        self.shown: list[tuple[int, str]] = []
        self.ends: list[str] = []
        self.told = 0
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.terminal = LiveTerminal(
            TerminalInfo(1234, "admin", "default", "call_1", "toy", is_tty=True, takes_input=True),
            self.child,
            SystemClock(),
            redaction=redactor.stream,
            show=lambda start, text: self.shown.append((start, text)),
            opened=self.opened,
            on_exit=lambda terminal: self.ends.append(terminal.reason),
            on_exit_read=lambda terminal: self._told(),
        )

    def _told(self) -> None:
        self.told += 1

    def open(self) -> None:
        self.opened.set_result(None)


@pytest.fixture
def redactor() -> Redactor:
    return Redactor([SECRET])


@pytest.fixture
async def stage(redactor: Redactor) -> AsyncIterator[Stage]:
    stage = Stage(redactor)
    yield stage
    if not stage.opened.done():
        stage.open()
    await stage.terminal.stop("over")
    assert stage.child.is_closed


async def unread(stage: Stage, size: int) -> None:
    await until(lambda: stage.terminal._unread.size == size)


async def test_a_piece_of_a_secret_waits_for_what_follows(stage: Stage) -> None:
    stage.child.say("a hunter2")
    await unread(stage, 2)
    first = await stage.terminal.collect(0)
    stage.child.say("hunter2 b")
    await unread(stage, len("[redacted] b"))
    second = await stage.terminal.collect(0)

    assert (first.text, second.text) == ("a ", "[redacted] b")


@pytest.mark.parametrize("redactor", [Redactor([SECRET], shapes_in_output=True)])
async def test_a_prompt_is_told_though_its_line_does_not_end(
    stage: Stage, redactor: Redactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_reader, "QUIET_SECONDS", 0.0)
    stage.child.say(">>> sk-proj-4f9Xq2LmT0b7Zk1RcV8sYw hunter2")
    await until(lambda: stage.child.reads)

    collected = await stage.terminal.collect(0.01)

    assert collected.text == ">>> [redacted] "


async def test_who_waits_hears_what_was_there_and_what_comes(stage: Stage) -> None:
    heard: list[str] = []

    async def tell(text: str, stream: str) -> None:
        heard.append(text)

    stage.child.say("before ")
    await unread(stage, 7)
    waiting = asyncio.create_task(stage.terminal.collect(HANG, tell))
    await until(lambda: heard)
    stage.child.say("after")
    stage.child.leave(3)
    collected = await waiting

    assert heard == ["before ", "after"]
    assert (collected.text, collected.ended) == ("before after", ExitStatus(3))
    assert stage.told == 1


async def test_who_cannot_listen_keeps_nobody_else_from_it(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def tell(text: str, stream: str) -> None:
        raise OSError("no room")

    waiting = asyncio.create_task(stage.terminal.collect(HANG, tell))
    await until(lambda: stage.terminal.is_used)
    stage.child.say("all the same")
    stage.child.leave()

    assert (await waiting).text == "all the same"
    assert "could not be stored with its call" in caplog.text


async def test_what_nobody_waits_for_is_read_slowly(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_reader, "MAX_UNREAD_BYTES", 10)
    monkeypatch.setattr(terminal_reader, "MAX_UNREAD_BYTES_PER_SECOND", 0.001)
    for _ in range(3):
        stage.child.say("eleven more")
    await unread(stage, 11)
    for _ in range(10):
        await asyncio.sleep(0)
    assert stage.child.reads == 1

    waiting = asyncio.create_task(stage.terminal.collect(HANG))
    await until(lambda: stage.child.reads == 3)
    stage.child.leave()

    assert (await waiting).text == "eleven more" * 3


async def test_what_is_typed_is_remembered_to_the_end_of_its_line(stage: Stage) -> None:
    typed = []
    for text in ("ec", "ho a", "\nl", "s\r", "\x03"):
        await stage.terminal.write(text)
        typed.append(stage.terminal.typed)

    assert typed == ["ec", "echo a", "l", "", "\x03"]
    assert b"".join(stage.child.got) == b"echo a\nls\r\x03"


async def test_who_does_not_read_is_not_waited_for_forever(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_reader, "WRITE_SECONDS", 0.01)
    stage.child.is_deaf = True

    with pytest.raises(ToolUnavailable, match="does not read"):
        await stage.terminal.write("hello")


async def test_who_closed_its_input_takes_no_more_and_who_has_ended_takes_all(stage: Stage) -> None:
    stage.child.refusal = BrokenPipeError()
    with pytest.raises(InvalidArgs, match="stdin is closed"):
        await stage.terminal.write("hello")

    stage.child.leave()
    await stage.terminal.write("hello")


async def test_a_terminal_that_breaks_ends(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.child.pieces.put_nowait(OSError("a bug"))

    collected = await stage.terminal.collect(HANG)

    assert collected.ended == ExitStatus(143)
    assert "terminal 1234 of default broke" in caplog.text


async def test_nothing_is_shown_before_the_beginning_was_told_and_the_end_is_told_last(stage: Stage) -> None:
    stage.child.say("quick")
    stage.child.leave(1)
    collected = await stage.terminal.collect(HANG)
    assert (stage.shown, stage.ends) == ([], [])

    stage.open()
    await until(lambda: stage.ends)

    assert collected.ended == ExitStatus(1)
    assert stage.shown == [(0, "quick")]
    assert stage.ends == ["exited"]


class Screening:
    """A screen whose time a test lets pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[tuple[int, str]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        opened.set_result(None)
        self.screen = OutputBuffer(lambda start, text: self.shown.append((start, text)), opened)
        monkeypatch.setattr(self.screen, "_loop", self)
        self.now = 100.0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, run: Callable[[], None]) -> "Screening":
        self.timers.append((when, run))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def ring(self) -> float:
        """Let the one timer come, and say when that was."""
        [(when, run)] = self.timers
        self.now = max(self.now, when)
        self.timers.clear()
        run()
        return when


async def test_a_screen_shows_at_most_twenty_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Screening(monkeypatch)
    for text in ("a", "ä"):
        at.screen.feed(text)
    at.ring()
    at.screen.feed("b")
    at.screen.feed("c")

    assert at.ring() == pytest.approx(100.05)
    assert at.shown == [(0, "aä"), (3, "bc")]


async def test_of_too_much_a_screen_shows_the_latest_in_whole_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Screening(monkeypatch)
    at.screen.feed("x" * MAX_SHOWN_BYTES)
    at.screen.feed("ä" * (MAX_SHOWN_BYTES // 2) + "y")
    at.ring()

    [(start, text)] = at.shown
    assert text == "ä" * (MAX_SHOWN_BYTES // 2 - 1) + "y"
    assert start == MAX_SHOWN_BYTES * 2 + 1 - len(text.encode())
