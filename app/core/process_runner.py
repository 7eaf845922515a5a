"""Programs: a process run to its end, its output told as it comes, both ends of it kept for the answer.

A program has so many seconds for all of its work, and may have fewer for each silence. When a limit is over, or
somebody cancels the call, the whole tree gets a kind signal and then one that cannot be refused; what it writes until
then is kept. No program outlives its call, so here is no answer with what is there while it goes on: that is what a
terminal is for.
"""

import asyncio
import codecs
import signal
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from app.core.errors import ProgramFailed, ResourceLimit, TimedOut
from app.core.results import Result
from app.core.sandbox import Command, ExitStatus, Isolation, OutputChunk, Process
from app.core.tools import Context
from app.core.util.head_tail import HeadTailBuffer

T = TypeVar("T")
Cause = Literal["time", "silence"]

SHOWN = 20_000
"""Bytes of each end of an output that the answer has."""
TIMED_OUT = 124
SIGNALED = 128
LIMITS = {
    "memory": "The command was stopped: it took more memory than it may. Let it work on less at a time.",
    "processes": "The command was stopped: it started more processes than it may. Let it do less at once.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How many seconds a program has for everything, and how many it may write nothing for."""

    seconds: float
    silence: float | None = None


class _Over(Exception):
    """The patience with a program is at its end."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause = cause


class _Heard:
    """What a program wrote: handed on as text while it comes, with what is no UTF-8 replaced."""

    def __init__(self, ctx: Context) -> None:
        self.both = HeadTailBuffer(SHOWN, SHOWN)
        self.streams = {stream: HeadTailBuffer(SHOWN, SHOWN, counts_lines=False) for stream in ("stdout", "stderr")}
        self._ctx = ctx
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: decoder("replace") for stream in self.streams}

    async def take(self, piece: OutputChunk) -> None:
        await self._tell(self._decoders[piece.stream].decode(piece.data), piece.stream)

    async def finish(self) -> None:
        """Nothing more comes: a character that began and never ended is replaced too."""
        for stream, decoder in self._decoders.items():
            await self._tell(decoder.decode(b"", True), stream)

    async def _tell(self, text: str, stream: str) -> None:
        if text:
            self.both.feed(text)
            self.streams[stream].feed(text)
            await self._ctx.output(text, stream)


async def run_program(ctx: Context, command: Command, patience: Patience, title: str) -> Result:
    """What it wrote, if it ended well.

    Raises `ProgramFailed` for another exit code than 0, `TimedOut` when it was stopped and `ResourceLimit` when it took
    too much; all of them bring along what it wrote.
    """
    begun = asyncio.get_running_loop().time()
    heard = _Heard(ctx)
    async with ctx.process(command) as child:
        cause = await _followed(child, heard, patience, begun)
        await heard.finish()
        ended = await child.wait()
    seconds = asyncio.get_running_loop().time() - begun
    return _settled(_Ran(title, heard, ended, cause, seconds, patience, child.isolation))


async def _followed(child: Process, heard: _Heard, patience: Patience, begun: float) -> Cause | None:
    """Listen until it has ended; the answer is why it had to be ended, if it had."""
    clock = _Clock(patience, begun)
    try:
        while piece := await clock.bear(child.read()):
            await heard.take(piece)
            clock.wind()
        await clock.bear(child.wait())
    except _Over as over:
        await _end(child, heard)
        return over.cause
    except asyncio.CancelledError:
        await _end(child, heard)
        await heard.finish()
        raise
    return None


async def _end(child: Process, heard: _Heard) -> None:
    """End it and listen on meanwhile: who writes much cannot heed a signal before somebody reads."""
    async with asyncio.TaskGroup() as group:
        group.create_task(child.end())
        while piece := await child.read():
            await heard.take(piece)


class _Clock:
    """Says when to wait no longer."""

    def __init__(self, patience: Patience, begun: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence = patience.silence
        self._end = begun + patience.seconds
        self._silent_until = begun
        self.wind()

    def wind(self) -> None:
        """It has said something."""
        if self._silence is not None:
            self._silent_until = self._loop.time() + self._silence

    async def bear(self, waiting: Awaitable[T]) -> T:
        is_silence_first = self._silence is not None and self._silent_until < self._end
        try:
            async with asyncio.timeout_at(self._silent_until if is_silence_first else self._end):
                return await waiting
        except TimeoutError:
            raise _Over("silence" if is_silence_first else "time") from None


@dataclass(frozen=True, slots=True)
class _Ran:
    """Everything there is to say about a program that has ended."""

    title: str
    heard: _Heard
    ended: ExitStatus
    cause: Cause | None
    seconds: float
    patience: Patience
    isolation: Isolation

    @property
    def code(self) -> int:
        return self.ended.code if self.cause is None else TIMED_OUT

    @property
    def note(self) -> str:
        """Why it was stopped, as the first line of the output."""
        match self.cause:
            case "time":
                return f"command timed out after {self.patience.seconds * 1000:g} milliseconds\n"
            case "silence":
                return f"command stopped after {self.patience.silence:g} seconds without output\n"
            case None:
                return ""


def _settled(ran: _Ran) -> Result:
    result = _result(ran)
    match ran.cause:
        case "time":
            raise TimedOut(
                f"The command was stopped after {ran.patience.seconds:g} s; its output so far is kept."
                " Give it more time in `timeout_ms`, or let it do less.",
                result=result,
            )
        case "silence":
            raise TimedOut(
                f"The command was stopped because it wrote nothing for {ran.patience.silence:g} s; its output so far is"
                " kept. Let it tell how far it is.",
                result=result,
            )
    if ran.ended.limit is not None:
        raise ResourceLimit(LIMITS[ran.ended.limit], details={"limit": ran.ended.limit}, result=result)
    if ran.code != 0:
        raise ProgramFailed(ran.code, f"The command ended with exit code {_told(ran.code)}.", result=result)
    return result


def _result(ran: _Ran) -> Result:
    both = ran.heard.both
    head = [f"Exit code: {ran.code}", f"Wall time: {ran.seconds:.1f} seconds"]
    if both.omitted:
        head.append(f"Total output lines: {both.lines}")
    return Result(
        output="\n".join([*head, "Output:", ran.note + both.rendered()]),
        title=ran.title,
        metadata=_facts(ran, both),
        structured={stream: ends.rendered() for stream, ends in ran.heard.streams.items()} | {"outcome": _outcome(ran)},
    )


def _facts(ran: _Ran, both: HeadTailBuffer) -> dict[str, Any]:
    """Sizes are bytes of what the program wrote."""
    return {
        "exit_code": ran.code,
        "duration_ms": round(ran.seconds * 1000, 1),
        "timed_out": ran.cause is not None,
        "truncated": both.omitted > 0,
        "original_size": both.size,
        "truncated_size": both.size - both.omitted,
        "omitted": both.omitted,
        "sandbox": ran.isolation.view(),
    }


def _outcome(ran: _Ran) -> dict[str, Any]:
    return {"type": "timeout"} if ran.cause is not None else {"type": "exit", "exit_code": ran.code}


def _told(code: int) -> str:
    """A code above 128 mostly means a signal, and its name says more."""
    try:
        return f"{code} ({signal.Signals(code - SIGNALED).name})"
    except ValueError:
        return str(code)
