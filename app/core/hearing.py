"""Hearing a cell out: what it writes until its mark, and for how long."""

import asyncio
import codecs

from app.core.ends import Ends
from app.core.tools import Context
from app.core.walls import Child, Piece

SHOWN = 20_000
"""Bytes of each end of an output that the answer has."""


class Heard:
    """What a cell wrote: handed on as text while it comes, with what is no UTF-8 replaced.

    At its end a kernel writes a mark into both streams, so that nothing of a cell is missed or waited for in vain.
    """

    def __init__(self, ctx: Context, mark: bytes) -> None:
        self.ends = Ends(SHOWN, SHOWN)
        self._ctx = ctx
        self._mark = mark
        self._unmarked = {"stdout", "stderr"}
        self._held = {stream: b"" for stream in self._unmarked}
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in self._unmarked}
        self._last = "\n"

    async def listen(self, child: Child) -> None:
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

    async def _take(self, piece: Piece) -> None:
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


class CellTime:
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
