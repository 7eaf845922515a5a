"""Cells: code that is run in a session's kernel, with what it prints and shows, and the tools it calls.

A cell has so many seconds of its own; while tools that it called run, they do not pass. What comes over the channel
is said by code that a model wrote, so nothing of it is believed.

Hearing a cell out: what it writes until its mark, and for how long.

Kernels: the interpreters of a session that keep what was defined from one call to the next.
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

SHOWN = 20_000
"""Bytes of each end of an output that the answer has."""


class CellOutput:
    """What a cell wrote: handed on as text while it comes, with what is no UTF-8 replaced.

    At its end a kernel writes a mark into both streams, so that nothing of a cell is missed or waited for in vain.
    """

    def __init__(self, ctx: Context, mark: bytes) -> None:
        self.ends = HeadTailBuffer(SHOWN, SHOWN)
        self._ctx = ctx
        self._mark = mark
        self._unmarked = {"stdout", "stderr"}
        self._held = {stream: b"" for stream in self._unmarked}
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in self._unmarked}
        self._last = "\n"

    async def listen(self, child: Process) -> None:
        """Until both streams have come to the mark, or there is no more."""
        while self._unmarked and (piece := await child.read()) is not None:
            await self._take(piece)

    async def finish(self) -> None:
        """Nothing more comes: what looked like the beginning of the mark was none."""
        for stream, decoder in self._decoders.items():
            await self._say(decoder.decode(self._held[stream], True), stream)

    async def say(self, text: str, stream: str) -> None:
        """Something of our own, on a line of its own."""
        start = "" if self._last == "\n" else "\n"
        await self._say(f"{start}{text.rstrip()}\n", stream)

    async def _take(self, piece: OutputChunk) -> None:
        data = self._held[piece.stream] + piece.data
        if self._mark in data:
            self._unmarked.discard(piece.stream)
            data = data.replace(self._mark, b"", 1)
        held = 0 if piece.stream not in self._unmarked else beginning_of(data, self._mark)
        self._held[piece.stream] = data[len(data) - held :]
        await self._say(self._decoders[piece.stream].decode(data[: len(data) - held]), piece.stream)

    async def _say(self, text: str, stream: str) -> None:
        if text:
            self._last = text[-1]
            self.ends.feed(text)
            await self._ctx.output(text, stream)


class CellTimer:
    """The seconds a cell has. While they are held they do not pass; nor do they before the first word of a kernel that
    was started for it, unless that comes too late."""

    def __init__(self, seconds: float, *, later: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._left = seconds
        self._holders = 0
        self.is_waiting = later > 0
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._go_on(seconds + later)

    def begin(self) -> None:
        """Now they count, and no second time."""
        if self.is_waiting and not self._holders:
            self.is_waiting = False
            self._timer.cancel()
            self._go_on(self._left)

    def hold(self) -> None:
        self._holders += 1
        if self._holders == 1:
            self._timer.cancel()
            self._left -= self._loop.time() - self._since

    def release(self) -> None:
        self._holders -= 1
        if not self._holders and not self.over.done():
            self._go_on(self._left)

    def stop(self) -> None:
        self._timer.cancel()
        self.over.cancel()

    def _go_on(self, seconds: float) -> None:
        self._since = self._loop.time()
        self._timer = self._loop.call_later(max(seconds, 0), self._end)

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


def beginning_of(data: bytes, mark: bytes) -> int:
    """How many of the last bytes could be the beginning of the mark."""
    most = min(len(data), len(mark) - 1)
    return next((size for size in range(most, 0, -1) if mark.startswith(data[len(data) - size :])), 0)


LAST_SECONDS = 2.0
START_SECONDS = 60.0
MOST_CALLS = 16
"""Tools that one cell has running at once; the others wait."""
MOST_ASKED = 1000
MOST_IMAGES = 16
IMAGES = {"image/png": b"\x89PNG\r\n", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8", "image/webp": b"RIFF"}
"""The kinds of images there are, and how each begins."""
UNHEARD = "The interpreter had ended, so what was defined in it is gone."
GONE = "so nothing is defined any more; the next call starts with a fresh interpreter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Code for a kernel. `more_time` says how to ask for more seconds than these. One that `is_interruptible` may be
    stopped without losing what is defined."""

    kind: Literal["js", "python"]
    code: str
    seconds: float
    more_time: str
    memory: int | None = None
    is_interruptible: bool = False


async def run_cell(ctx: Context, cell: Cell) -> Result:
    """What a cell printed, its last value and its images.

    Raises `ProgramFailed` when it failed or ended its interpreter, `TimedOut` and `ResourceLimit`; all of them bring
    along what there was until then.
    """
    begun = asyncio.get_running_loop().time()
    run = await _ran(ctx, cell, None)
    if run.is_unheard:
        run = await _ran(ctx, cell, UNHEARD)
    return _settled(run, asyncio.get_running_loop().time() - begun)


async def _ran(ctx: Context, cell: Cell, lost: str | None) -> "_Run":
    async with ctx.kernel(cell.kind, cell.memory) as kernel:
        run = _Run(ctx, cell, kernel, lost or kernel.lost)
        await run.to_end()
    return run


@dataclass(slots=True)
class _Run:
    """One cell, from the moment its kernel is ours until it is idle again, or gone."""

    ctx: Context
    cell: Cell
    kernel: Kernel
    lost: str | None = None
    images: list[Attachment] = field(default_factory=list)
    done: dict[str, Any] | None = None
    unavailable: str | None = None
    is_over: bool = False
    is_unheard: bool = False
    mark: str = field(default_factory=lambda: f"\x1e{secrets.token_hex(16)}\x1e")
    _room: int = MAX_ATTACHED_BYTES
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_CALLS))
    _calls: set["asyncio.Task[None]"] = field(default_factory=set)
    heard: CellOutput = field(init=False)
    _time: CellTimer = field(init=False)

    def __post_init__(self) -> None:
        self.heard = CellOutput(self.ctx, self.mark.encode())
        self._time = CellTimer(self.cell.seconds, later=START_SECONDS if self.kernel.is_fresh else 0)

    @property
    def error(self) -> dict[str, Any] | None:
        """What the code raised, as its kernel tells it."""
        found = (self.done or {}).get("error")
        return found if isinstance(found, dict) else None

    @property
    def is_left(self) -> bool:
        """Whether the code ended its interpreter, and called that a success."""
        ended = self.kernel.process.ended
        is_gone = self.done is None and self.unavailable is None and not self.is_unheard and not self.is_over
        return is_gone and ended == (0, None)

    async def to_end(self) -> None:
        if self.lost is not None:
            await self.heard.say(f"[{self.lost}]", "stderr")
        reading = asyncio.create_task(self.heard.listen(self.kernel.process))
        listening = asyncio.create_task(self._listen())
        try:
            await self._until_done(listening, reading)
        finally:
            self._time.stop()
            try:
                await self._quiet(listening)
                await asyncio.wait([reading], timeout=LAST_SECONDS)
                await _cancel([listening, reading])
            finally:
                self._let_go(listening, reading)
        await self.heard.finish()
        await self._tell_end()

    async def _until_done(self, listening: "asyncio.Task[None]", reading: "asyncio.Task[None]") -> None:
        """Or until its time is over. Who reads ends earlier only when there is nothing to be read, or it broke."""
        await asyncio.wait([listening, reading, self._time.over], return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
            await asyncio.wait([listening, self._time.over], return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            return listening.result()
        self.is_over = True
        return None

    async def _quiet(self, listening: "asyncio.Task[None]") -> None:
        """See to it that nothing of the cell runs on: asked kindly where that may help, else with its kernel."""
        child = self.kernel.process
        await _cancel(self._calls)
        if not listening.done() and self.cell.is_interruptible:
            with suppress(BrokenPipeError):
                await child.send(dumps({"stop": True}))
            await asyncio.wait([listening], timeout=GRACE_SECONDS)
        if self.done is not None:
            return
        if listening.done():  # it goes by itself, and how it does is worth knowing
            await asyncio.wait([asyncio.ensure_future(child.wait())], timeout=LAST_SECONDS)
        await child.end(0)

    def _let_go(self, *tasks: "asyncio.Task[None]") -> None:
        """Somebody may not have waited for all of that; still nobody gets a kernel that is at work on this."""
        for task in tasks:
            task.cancel()
        if self.done is None and self.kernel.process.ended is None:
            self.kernel.process.signal(signal.SIGKILL)

    async def _listen(self) -> None:
        """Give the kernel the code and do what it asks for, until it says that it is done, or it is gone."""
        child = self.kernel.process
        try:
            await child.send(dumps({"run": self.cell.code, "mark": self.mark}))
        except BrokenPipeError:
            self.is_unheard = not self.kernel.is_fresh  # one that has just been started may have said why
        while (line := await child.receive()) is not None:
            message = _read(line)
            if message.get("done") == self.mark:
                self.done = message
                return
            if "ready" in message:
                self._time.begin()
            if "unavailable" in message and self._time.is_waiting:
                self.unavailable = str(message["unavailable"])
            if "image" in message:
                self._take_image(message)
            if "call" in message:
                await self._take_call(message)

    def _take_image(self, message: dict[str, Any]) -> None:
        mime, text = message.get("mime"), message["image"]
        begins = IMAGES.get(mime) if isinstance(mime, str) else None
        if begins is None or not isinstance(text, str) or len(self.images) >= MOST_IMAGES:
            return
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error:
            return
        if data.startswith(begins) and len(data) <= self._room:
            self._room -= len(data)
            kind = str(mime).removeprefix("image/")
            self.images.append(attach(data, str(mime), f"image-{len(self.images) + 1}.{kind}"))

    async def _take_call(self, message: dict[str, Any]) -> None:
        """Who asks for more than anybody can do has to wait."""
        if len(self._calls) >= MOST_ASKED:
            await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
        self._time.hold()
        task = asyncio.create_task(self._call(message))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(lambda _: self._time.release())

    async def _call(self, message: dict[str, Any]) -> None:
        try:
            async with self._turn:
                answer = {"value": asdict(await self._called(message.get("tool"), message.get("arguments")))}
        except CallError as error:
            told = {"code": error.code, "message": error.message}
            answer = {"error": told if error.result is None else told | {"result": asdict(error.result)}}
        except Refusal as refusal:
            answer = {"error": {"code": refusal.code, "message": str(refusal)}}
        try:
            await self.kernel.process.send(dumps({"answer": message["call"]} | answer))
        except BrokenPipeError:
            return  # nobody wants to know any more

    async def _called(self, tool: Any, arguments: Any) -> Result:
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            raise InvalidArgs("tool() takes the name of a tool, and an object with its arguments.")
        return await self.ctx.call(tool, arguments)

    async def _tell_end(self) -> None:
        """The last value, or what went wrong, at the end of what was printed."""
        value = (self.done or {}).get("value")
        if isinstance(value, str):
            await self.heard.say(value, "stdout")
        if self.error is not None and isinstance(text := self.error.get("text"), str):
            await self.heard.say(text, "stderr")
        if self.is_left:
            await self.heard.say(f"[The cell ended its interpreter, {GONE}.]", "stderr")


def _settled(run: _Run, seconds: float) -> Result:
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
    if run.done is None and not run.is_left:
        code = ended.code if ended is not None else 1
        message = f"The cell ended its interpreter (exit code {code}), {GONE}."
        raise ProgramFailed(code, message, result=_result(run, seconds, "failed"))
    if run.error is not None:
        summary = run.error.get("summary")
        message = summary if isinstance(summary, str) and summary else "The cell failed."
        raise ProgramFailed(1, message, result=_result(run, seconds, "failed"))
    return _result(run, seconds, "completed")


def _result(run: _Run, seconds: float, status: str) -> Result:
    ends = run.heard.ends
    text = ends.rendered()
    place = f"/v1/calls/{run.ctx.id}/attachments"
    images = [{"type": "image", "url": f"{place}/{number}"} for number in range(len(run.images))]
    logs = [{"type": "logs", "logs": text}] if text else []
    metadata = {
        "duration_ms": round(seconds * 1000, 1),
        "fresh": run.kernel.is_fresh,
        "truncated": ends.omitted > 0,
        "original_size": ends.size,
        "truncated_size": ends.size - ends.omitted,
        "omitted": ends.omitted,
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
    """The first line that says something."""
    lines = (line.strip() for line in code.splitlines())
    first = next((line for line in lines if line and not line.startswith(("//", "#"))), "")
    return first if len(first) <= 80 else f"{first[:79]}…"


def _read(line: bytes) -> dict[str, Any]:
    """A message of the kernel; what is none says nothing."""
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
