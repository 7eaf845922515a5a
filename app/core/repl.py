"""Runs a REPL cell in a session's kernel: its output, its images, and the tools it calls.

The time limit of a cell does not run while it waits for tools. Messages on the channel come from code that a model
wrote, so they are not trusted.
"""

import asyncio
import base64
import binascii
import codecs
import json
import secrets
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from app.core.errors import CallError, InvalidArgs, ProgramFailed, Refusal, ResourceLimit, TimedOut, ToolUnavailable
from app.core.results import MAX_ATTACHED_BYTES, Attachment, Result, attach
from app.core.sandbox import GRACE_SECONDS, OutputChunk, Process
from app.core.terminals import Kernel
from app.core.tools import Context
from app.core.util.head_tail import HeadTailBuffer
from app.core.util.json_codec import dumps

HEAD_BYTES = TAIL_BYTES = 20_000
LINGER_SECONDS = 2.0
START_SECONDS = 60.0
MAX_PARALLEL_CALLS = 16
MAX_PENDING_CALLS = 1000
MAX_IMAGES = 16
IMAGES = {"image/png": b"\x89PNG\r\n", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8", "image/webp": b"RIFF"}
"""The image types and their first bytes."""
INTERPRETER_ENDED = "The interpreter had ended, so what was defined in it is gone."
GONE = "so nothing is defined any more; the next call starts with a fresh interpreter"


class CellOutput:
    """Publishes the output of a cell as text, with invalid UTF-8 replaced, and stores its head and tail.

    At the end of a cell the kernel writes a mark to both streams, so that the end of its output is known.
    """

    def __init__(self, ctx: Context, mark: bytes) -> None:
        self.buffer = HeadTailBuffer(HEAD_BYTES, TAIL_BYTES)
        self._ctx = ctx
        self._mark = mark
        self._unmarked = {"stdout", "stderr"}
        self._pending = {stream: b"" for stream in self._unmarked}
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in self._unmarked}
        self._last = "\n"

    async def read(self, process: Process) -> None:
        """Read until the mark came on both streams, or there is no more output."""
        while self._unmarked and (chunk := await process.read()) is not None:
            await self._add(chunk)

    async def finish(self) -> None:
        """At the end of the output: what looked like the start of the mark is text."""
        for stream, decoder in self._decoders.items():
            await self._publish(decoder.decode(self._pending[stream], True), stream)

    async def add_line(self, text: str, stream: str) -> None:
        """Add a message of the service on a line of its own."""
        start = "" if self._last == "\n" else "\n"
        await self._publish(f"{start}{text.rstrip()}\n", stream)

    async def _add(self, chunk: OutputChunk) -> None:
        data = self._pending[chunk.stream] + chunk.data
        if self._mark in data:
            self._unmarked.discard(chunk.stream)
            data = data.replace(self._mark, b"", 1)
        pending = 0 if chunk.stream not in self._unmarked else partial_mark_length(data, self._mark)
        self._pending[chunk.stream] = data[len(data) - pending :]
        await self._publish(self._decoders[chunk.stream].decode(data[: len(data) - pending]), chunk.stream)

    async def _publish(self, text: str, stream: str) -> None:
        if text:
            self._last = text[-1]
            self.buffer.feed(text)
            await self._ctx.output(text, stream)


class CellTimer:
    """The time limit of a cell. It stands still while held, and starts with the first message of a kernel that was
    started for this cell, or after `later` seconds."""

    def __init__(self, seconds: float, *, later: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._left = seconds
        self._holders = 0
        self.is_waiting = later > 0
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._start(seconds + later)

    def begin(self) -> None:
        """Start the time, once."""
        if self.is_waiting and not self._holders:
            self.is_waiting = False
            self._timer.cancel()
            self._start(self._left)

    def hold(self) -> None:
        self._holders += 1
        if self._holders == 1:
            self._timer.cancel()
            self._left -= self._loop.time() - self._since

    def release(self) -> None:
        self._holders -= 1
        if not self._holders and not self.over.done():
            self._start(self._left)

    def stop(self) -> None:
        self._timer.cancel()
        self.over.cancel()

    def _start(self, seconds: float) -> None:
        self._since = self._loop.time()
        self._timer = self._loop.call_later(max(seconds, 0), self._end)

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


def partial_mark_length(data: bytes, mark: bytes) -> int:
    """How many of the last bytes could be the start of the mark."""
    longest = min(len(data), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if mark.startswith(data[len(data) - size :])), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Code for a kernel. `more_time` tells the model how to get more seconds. An interruptible one can be stopped
    without losing what is defined."""

    kind: Literal["js", "python"]
    code: str
    seconds: float
    more_time: str
    memory: int | None = None
    is_interruptible: bool = False


async def run_cell(ctx: Context, cell: Cell) -> Result:
    """Run a cell; its output, its last value and its images.

    Raises `ProgramFailed` when it failed or ended its interpreter, `TimedOut` and `ResourceLimit`; all of them contain
    the output.
    """
    start = asyncio.get_running_loop().time()
    run = await _run_once(ctx, cell, None)
    if run.is_not_received:
        run = await _run_once(ctx, cell, INTERPRETER_ENDED)
    return _to_result(run, asyncio.get_running_loop().time() - start)


async def _run_once(ctx: Context, cell: Cell, lost: str | None) -> "_Run":
    async with ctx.kernel(cell.kind, cell.memory) as kernel:
        run = _Run(ctx, cell, kernel, lost or kernel.lost)
        await run.run()
    return run


@dataclass(slots=True)
class _Run:
    """One cell in a kernel, until the kernel is idle again or has ended."""

    ctx: Context
    cell: Cell
    kernel: Kernel
    lost: str | None = None
    images: list[Attachment] = field(default_factory=list)
    done: dict[str, Any] | None = None
    unavailable: str | None = None
    is_over: bool = False
    is_not_received: bool = False
    mark: str = field(default_factory=lambda: f"\x1e{secrets.token_hex(16)}\x1e")
    _room: int = MAX_ATTACHED_BYTES
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_PARALLEL_CALLS))
    _calls: set["asyncio.Task[None]"] = field(default_factory=set)
    output: CellOutput = field(init=False)
    _time: CellTimer = field(init=False)

    def __post_init__(self) -> None:
        self.output = CellOutput(self.ctx, self.mark.encode())
        self._time = CellTimer(self.cell.seconds, later=START_SECONDS if self.kernel.is_fresh else 0)

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of the code, as reported by the kernel."""
        error = (self.done or {}).get("error")
        return error if isinstance(error, dict) else None

    @property
    def has_exited(self) -> bool:
        """Whether the code ended its interpreter with exit code 0."""
        ended = self.kernel.process.ended
        is_gone = self.done is None and self.unavailable is None and not self.is_not_received and not self.is_over
        return is_gone and ended == (0, None)

    async def run(self) -> None:
        if self.lost is not None:
            await self.output.add_line(f"[{self.lost}]", "stderr")
        reading = asyncio.create_task(self.output.read(self.kernel.process))
        listening = asyncio.create_task(self._listen())
        try:
            await self._until_done(listening, reading)
        finally:
            self._time.stop()
            try:
                await self._stop(listening)
                await asyncio.wait([reading], timeout=LINGER_SECONDS)
                await _cancel([listening, reading])
            finally:
                self._abandon(listening, reading)
        await self.output.finish()
        await self._publish_end()

    async def _until_done(self, listening: "asyncio.Task[None]", reading: "asyncio.Task[None]") -> None:
        """Wait until the cell is done or its time is over. Reading ends earlier at the end of output or an error."""
        await asyncio.wait([listening, reading, self._time.over], return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
            await asyncio.wait([listening, self._time.over], return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            return listening.result()
        self.is_over = True
        return None

    async def _stop(self, listening: "asyncio.Task[None]") -> None:
        """Stop what still runs of the cell: by an interrupt if it is interruptible, else with its kernel."""
        process = self.kernel.process
        await _cancel(self._calls)
        if not listening.done() and self.cell.is_interruptible:
            with suppress(BrokenPipeError):
                await process.send(dumps({"stop": True}))
            await asyncio.wait([listening], timeout=GRACE_SECONDS)
        if self.done is not None:
            return
        if listening.done():  # it is ending by itself: get its exit code
            await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=LINGER_SECONDS)
        await process.end(0)

    def _abandon(self, *tasks: "asyncio.Task[None]") -> None:
        """After a second cancel: kill a kernel that still runs the cell, so that no later call gets it."""
        for task in tasks:
            task.cancel()
        if self.done is None and self.kernel.process.ended is None:
            self.kernel.process.signal(signal.SIGKILL)

    async def _listen(self) -> None:
        """Send the code to the kernel and handle its messages, until it is done or has ended."""
        process = self.kernel.process
        try:
            await process.send(dumps({"run": self.cell.code, "mark": self.mark}))
        except BrokenPipeError:
            self.is_not_received = not self.kernel.is_fresh  # a new kernel may have reported why
        while (line := await process.receive()) is not None:
            message = _read(line)
            if message.get("done") == self.mark:
                self.done = message
                return
            if "ready" in message:
                self._time.begin()
            if "unavailable" in message and self._time.is_waiting:
                self.unavailable = str(message["unavailable"])
            if "image" in message:
                self._add_image(message)
            if "call" in message:
                await self._start_call(message)

    def _add_image(self, message: dict[str, Any]) -> None:
        mime, text = message.get("mime"), message["image"]
        magic = IMAGES.get(mime) if isinstance(mime, str) else None
        if magic is None or not isinstance(text, str) or len(self.images) >= MAX_IMAGES:
            return
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error:
            return
        if data.startswith(magic) and len(data) <= self._room:
            self._room -= len(data)
            kind = str(mime).removeprefix("image/")
            self.images.append(attach(data, str(mime), f"image-{len(self.images) + 1}.{kind}"))

    async def _start_call(self, message: dict[str, Any]) -> None:
        """With too many pending calls the kernel has to wait."""
        if len(self._calls) >= MAX_PENDING_CALLS:
            await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
        self._time.hold()
        task = asyncio.create_task(self._call(message))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(lambda _: self._time.release())

    async def _call(self, message: dict[str, Any]) -> None:
        try:
            async with self._slots:
                tool, arguments = message.get("tool"), message.get("arguments")
                if not isinstance(tool, str) or not isinstance(arguments, dict):
                    raise InvalidArgs("tool() takes the name of a tool, and an object with its arguments.")
                answer = {"value": asdict(await self.ctx.call(tool, arguments))}
        except CallError as error:
            body: dict[str, Any] = {"code": error.code, "message": error.message}
            answer = {"error": body if error.result is None else body | {"result": asdict(error.result)}}
        except Refusal as refusal:
            answer = {"error": {"code": refusal.code, "message": str(refusal)}}
        try:
            await self.kernel.process.send(dumps({"answer": message["call"]} | answer))
        except BrokenPipeError:
            return  # the kernel has ended

    async def _publish_end(self) -> None:
        """Add the last value, or the error, at the end of the output."""
        value = (self.done or {}).get("value")
        if isinstance(value, str):
            await self.output.add_line(value, "stdout")
        if self.error is not None and isinstance(text := self.error.get("text"), str):
            await self.output.add_line(text, "stderr")
        if self.has_exited:
            await self.output.add_line(f"[The cell ended its interpreter, {GONE}.]", "stderr")


def _to_result(run: _Run, seconds: float) -> Result:
    cell, ended = run.cell, run.kernel.process.ended
    if run.unavailable is not None:
        raise ToolUnavailable(run.unavailable)
    if run.is_over and run.done is not None:
        message = f"The cell took longer than {cell.seconds:g} s and was stopped; what was defined is still there."
        raise TimedOut(f"{message} {cell.more_time}", result=_result(run, seconds, "incomplete"))
    if run.is_over:
        message = f"The cell took longer than {cell.seconds:g} s and was ended with its interpreter, {GONE}."
        raise TimedOut(f"{message} {cell.more_time}", result=_result(run, seconds, "incomplete"))
    if ended is not None and ended.limit is not None:
        what = "took more memory" if ended.limit == "memory" else "started more processes"
        raise ResourceLimit(
            f"The interpreter {what} than it may and was ended, {GONE}.",
            details={"limit": ended.limit},
            result=_result(run, seconds, "failed"),
        )
    if run.done is None and not run.has_exited:
        code = ended.code if ended is not None else 1
        message = f"The cell ended its interpreter (exit code {code}), {GONE}."
        raise ProgramFailed(code, message, result=_result(run, seconds, "failed"))
    if run.error is not None:
        summary = run.error.get("summary")
        message = summary if isinstance(summary, str) and summary else "The cell failed."
        raise ProgramFailed(1, message, result=_result(run, seconds, "failed"))
    return _result(run, seconds, "completed")


def _result(run: _Run, seconds: float, status: str) -> Result:
    buffer = run.output.buffer
    text = buffer.rendered()
    url = f"/v1/calls/{run.ctx.id}/attachments"
    images = [{"type": "image", "url": f"{url}/{number}"} for number in range(len(run.images))]
    logs = [{"type": "logs", "logs": text}] if text else []
    metadata = {
        "duration_ms": round(seconds * 1000, 1),
        "fresh": run.kernel.is_fresh,
        "truncated": buffer.omitted > 0,
        "original_size": buffer.size,
        "truncated_size": buffer.size - buffer.omitted,
        "omitted": buffer.omitted,
        "sandbox": run.kernel.process.isolation.view(),
    }
    return Result(
        output=text,
        title=_title(run.cell.code),
        metadata=metadata,
        attachments=tuple(run.images),
        structured={"code": run.cell.code, "outputs": [*logs, *images], "status": status},
    )


def _title(code: str) -> str:
    """The first line that is neither empty nor a comment."""
    lines = (line.strip() for line in code.splitlines())
    first = next((line for line in lines if line and not line.startswith(("//", "#"))), "")
    return first if len(first) <= 80 else f"{first[:79]}…"


def _read(line: bytes) -> dict[str, Any]:
    """A message of the kernel; empty for invalid ones."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


async def _cancel(tasks: Iterable["asyncio.Task[None]"]) -> None:
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
