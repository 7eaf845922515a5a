"""What a cell writes is heard whole and without its mark, however it is cut into pieces."""

import asyncio
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.repl import CellOutput, CellTimer
from app.core.sandbox import OutputChunk, Process
from app.core.tools import Context

MARK = b"\x1e0123\x1e"


class Said:
    """A child that has said all it will, and a context that writes down what it is told."""

    def __init__(self, pieces: list[OutputChunk]) -> None:
        self.pieces = list(pieces)
        self.told: list[tuple[str, str]] = []

    async def read(self) -> OutputChunk | None:
        return self.pieces.pop(0) if self.pieces else None

    async def output(self, text: str, stream: str) -> None:
        self.told.append((text, stream))

    def text(self, stream: str) -> str:
        return "".join(text for text, one in self.told if one == stream)


def heard(pieces: list[OutputChunk]) -> tuple[Said, CellOutput]:
    said = Said(pieces)
    hearing = CellOutput(cast(Context, said), MARK)

    async def listen() -> None:
        await hearing.read(cast(Process, said))
        await hearing.finish()

    asyncio.run(listen())
    return said, hearing


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted({place % (len(data) + 1) for place in at}), len(data)]
    return [data[begin:end] for begin, end in pairwise(places) if end > begin]


@given(st.text(), st.text(max_size=5), st.lists(st.integers(0, 1000)), st.booleans())
def test_the_mark_is_left_out_and_nothing_else(text: str, errors: str, at: list[int], has_half: bool) -> None:
    written = (text + ("\x1e0123\x1d" if has_half else "")).encode("utf-8", "replace")
    pieces: list[OutputChunk] = [OutputChunk("stdout", data) for data in cut(written + MARK, at)]
    pieces.append(OutputChunk("stderr", errors.encode("utf-8", "replace") + MARK))

    said, hearing = heard([*pieces, OutputChunk("stdout", b"later")])

    assert said.text("stdout") == written.decode()
    assert said.text("stderr") == errors.encode("utf-8", "replace").decode()
    assert hearing.buffer.size == len(written) + len(errors.encode("utf-8", "replace"))
    assert said.pieces == [OutputChunk("stdout", b"later")]


def test_what_looks_like_a_mark_and_is_none_is_told_when_no_more_comes() -> None:
    said, _ = heard([OutputChunk("stdout", b"a" + MARK[:-1]), OutputChunk("stderr", b"\xc3")])

    assert said.text("stdout") == "a\x1e0123"
    assert said.text("stderr") == "\ufffd"


async def test_time_that_is_held_does_not_pass_and_begins_once() -> None:
    time = CellTimer(0.05, later=60)
    time.hold()
    time.begin()
    await asyncio.sleep(0.1)
    assert not time.over.done()

    time.release()
    async with asyncio.timeout(20):
        await time.over


@pytest.mark.parametrize("later", [0.0, 60.0])
async def test_nobody_wins_time_by_beginning_again(later: float) -> None:
    time = CellTimer(0.2, later=later)
    time.begin()

    async def begin_again() -> Any:
        while True:
            await asyncio.sleep(0.01)
            time.begin()

    again = asyncio.create_task(begin_again())
    async with asyncio.timeout(20):
        await time.over
    again.cancel()
