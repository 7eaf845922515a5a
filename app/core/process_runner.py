"""Runs a process to its end: publishes its output while it comes, and returns its head and tail.

A program has a time limit, and may have a limit for the time without output. When one is exceeded, or the call is
canceled, the whole tree gets SIGTERM and then SIGKILL; its output until then is returned. No program outlives its
call: for that there are terminals.
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

HEAD_BYTES = TAIL_BYTES = 20_000
TIMED_OUT_EXIT_CODE = 124
SIGNAL_EXIT_CODE = 128
LIMITS = {
    "memory": "The command was stopped: it took more memory than it may. Let it work on less at a time.",
    "processes": "The command was stopped: it started more processes than it may. Let it do less at once.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """The seconds of the whole run, and the seconds without output."""

    seconds: float
    silence: float | None = None


class _TimeOver(Exception):
    """A time limit was exceeded."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause = cause


class _Output:
    """Publishes the output as text, with invalid UTF-8 replaced, and stores its head and tail."""

    def __init__(self, ctx: Context) -> None:
        self.both = HeadTailBuffer(HEAD_BYTES, TAIL_BYTES)
        self.streams = {
            stream: HeadTailBuffer(HEAD_BYTES, TAIL_BYTES, counts_lines=False) for stream in ("stdout", "stderr")
        }
        self._ctx = ctx
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: decoder("replace") for stream in self.streams}

    async def add(self, chunk: OutputChunk) -> None:
        await self._publish(self._decoders[chunk.stream].decode(chunk.data), chunk.stream)

    async def finish(self) -> None:
        """At the end of the output an incomplete character is replaced, too."""
        for stream, decoder in self._decoders.items():
            await self._publish(decoder.decode(b"", True), stream)

    async def _publish(self, text: str, stream: str) -> None:
        if text:
            self.both.feed(text)
            self.streams[stream].feed(text)
            await self._ctx.output(text, stream)


async def run_program(ctx: Context, command: Command, limits: TimeLimits, title: str) -> Result:
    """Run a program; its output, if it ended with exit code 0.

    Raises `ProgramFailed` for another exit code, `TimedOut` when it was stopped and `ResourceLimit` when it exceeded
    one; all of them contain the output.
    """
    start = asyncio.get_running_loop().time()
    output = _Output(ctx)
    async with ctx.process(command) as process:
        cause = await _read_until_exit(process, output, limits, start)
        await output.finish()
        ended = await process.wait()
    seconds = asyncio.get_running_loop().time() - start
    return _to_result(_FinishedRun(title, output, ended, cause, seconds, limits, process.isolation))


async def _read_until_exit(process: Process, output: _Output, limits: TimeLimits, start: float) -> Cause | None:
    """Read until it has ended; the limit that it exceeded, if it did."""
    deadline = _Deadline(limits, start)
    try:
        while chunk := await deadline.wait(process.read()):
            await output.add(chunk)
            deadline.reset_silence()
        await deadline.wait(process.wait())
    except _TimeOver as over:
        await _end(process, output)
        return over.cause
    except asyncio.CancelledError:
        await _end(process, output)
        await output.finish()
        raise
    return None


async def _end(process: Process, output: _Output) -> None:
    """End it and go on reading: a process that blocks on a full pipe cannot handle a signal."""
    async with asyncio.TaskGroup() as group:
        group.create_task(process.end())
        while chunk := await process.read():
            await output.add(chunk)


class _Deadline:
    """Waits no longer than the limits allow."""

    def __init__(self, limits: TimeLimits, start: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence = limits.silence
        self._end = start + limits.seconds
        self._silent_until = start
        self.reset_silence()

    def reset_silence(self) -> None:
        if self._silence is not None:
            self._silent_until = self._loop.time() + self._silence

    async def wait(self, awaitable: Awaitable[T]) -> T:
        is_silence_first = self._silence is not None and self._silent_until < self._end
        try:
            async with asyncio.timeout_at(self._silent_until if is_silence_first else self._end):
                return await awaitable
        except TimeoutError:
            raise _TimeOver("silence" if is_silence_first else "time") from None


@dataclass(frozen=True, slots=True)
class _FinishedRun:
    """A program that has ended."""

    title: str
    output: _Output
    ended: ExitStatus
    cause: Cause | None
    seconds: float
    limits: TimeLimits
    isolation: Isolation

    @property
    def code(self) -> int:
        return self.ended.code if self.cause is None else TIMED_OUT_EXIT_CODE

    @property
    def note(self) -> str:
        """Why it was stopped, as the first line of the output."""
        match self.cause:
            case "time":
                return f"command timed out after {self.limits.seconds * 1000:g} milliseconds\n"
            case "silence":
                return f"command stopped after {self.limits.silence:g} seconds without output\n"
            case None:
                return ""


def _to_result(run: _FinishedRun) -> Result:
    result = _result(run)
    match run.cause:
        case "time":
            raise TimedOut(
                f"The command was stopped after {run.limits.seconds:g} s; its output so far is kept."
                " Give it more time in `timeout_ms`, or let it do less.",
                result=result,
            )
        case "silence":
            raise TimedOut(
                f"The command was stopped because it wrote nothing for {run.limits.silence:g} s; its output so far is"
                " kept. Let it report its progress.",
                result=result,
            )
    if run.ended.limit is not None:
        raise ResourceLimit(LIMITS[run.ended.limit], details={"limit": run.ended.limit}, result=result)
    if run.code != 0:
        raise ProgramFailed(run.code, f"The command ended with exit code {_exit_text(run.code)}.", result=result)
    return result


def _result(run: _FinishedRun) -> Result:
    both = run.output.both
    head = [f"Exit code: {run.code}", f"Wall time: {run.seconds:.1f} seconds"]
    if both.omitted:
        head.append(f"Total output lines: {both.lines}")
    outcome: dict[str, Any] = {"type": "exit", "exit_code": run.code}
    if run.cause is not None:
        outcome = {"type": "timeout"}
    return Result(
        output="\n".join([*head, "Output:", run.note + both.rendered()]),
        title=run.title,
        metadata=_metadata(run, both),
        structured={stream: buffer.rendered() for stream, buffer in run.output.streams.items()} | {"outcome": outcome},
    )


def _metadata(run: _FinishedRun, both: HeadTailBuffer) -> dict[str, Any]:
    """Sizes are bytes of the output."""
    return {
        "exit_code": run.code,
        "duration_ms": round(run.seconds * 1000, 1),
        "timed_out": run.cause is not None,
        "truncated": both.omitted > 0,
        "original_size": both.size,
        "truncated_size": both.size - both.omitted,
        "omitted": both.omitted,
        "sandbox": run.isolation.view(),
    }


def _exit_text(code: int) -> str:
    """An exit code above 128 usually means a signal, whose name is added."""
    try:
        return f"{code} ({signal.Signals(code - SIGNAL_EXIT_CODE).name})"
    except ValueError:
        return str(code)
