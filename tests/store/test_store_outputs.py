import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from app.store import outputs
from app.store.writer import Batch, Writer

PIECES = [(0, "stdout", b"abcd"), (4, "stderr", b"ef"), (6, "stdout", b"ghij\x00\xff")]
ALL = 1000
WHOLE = b"".join(data for _, _, data in PIECES)


@pytest.fixture
async def kept(writer: Writer) -> None:
    def change(batch: Batch) -> None:
        for start, stream, data in PIECES:
            outputs.add(batch, "call_1", start, stream, data)
        outputs.add(batch, "call_2", 0, "stdout", b"another call's")

    await writer.submit(change)


async def test_every_range_is_cut_to_the_byte_also_across_rows_and_beyond_the_end(
    kept: None, engine: AsyncEngine
) -> None:
    for offset in range(len(WHOLE) + 3):
        for limit in range(len(WHOLE) + 3):
            assert await outputs.read(engine, "call_1", offset, limit) == WHOLE[offset : offset + limit]


async def test_the_pieces_from_any_offset_on_keep_their_streams(kept: None, engine: AsyncEngine) -> None:
    assert await outputs.chunks(engine, "call_1", 0, ALL) == PIECES
    assert await outputs.chunks(engine, "call_1", 2, ALL) == [(2, "stdout", b"cd"), *PIECES[1:]]
    assert await outputs.chunks(engine, "call_1", 4, ALL) == PIECES[1:]
    assert await outputs.chunks(engine, "call_1", 5, ALL) == [(5, "stderr", b"f"), PIECES[2]]
    assert await outputs.chunks(engine, "call_1", len(WHOLE) - 1, ALL) == [(len(WHOLE) - 1, "stdout", b"\xff")]
    assert await outputs.chunks(engine, "call_1", len(WHOLE), ALL) == []


async def test_no_more_pieces_are_read_than_asked_for(kept: None, engine: AsyncEngine) -> None:
    assert await outputs.chunks(engine, "call_1", 0, 1) == PIECES[:1]
    assert await outputs.chunks(engine, "call_1", 0, 4) == PIECES[:1]
    assert await outputs.chunks(engine, "call_1", 0, 5) == PIECES[:2]
    assert await outputs.chunks(engine, "call_1", 3, 2) == [(3, "stdout", b"d"), PIECES[1]]


async def test_the_size_is_what_is_kept(kept: None, engine: AsyncEngine) -> None:
    assert await outputs.size(engine, "call_1") == len(WHOLE)


async def test_a_call_without_output_is_empty(kept: None, engine: AsyncEngine) -> None:
    assert await outputs.size(engine, "call_3") == 0
    assert await outputs.read(engine, "call_3", 0, 100) == b""
    assert await outputs.chunks(engine, "call_3", 0, ALL) == []


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=9), max_size=6), st.integers(0, 60), st.integers(0, 60))
async def test_however_a_stream_was_cut_into_rows_it_reads_the_same(
    writer: Writer, engine: AsyncEngine, pieces: list[bytes], offset: int, limit: int
) -> None:
    call = f"call_{pieces}"
    whole = b"".join(pieces)

    def change(batch: Batch) -> None:
        for n, data in enumerate(pieces):
            outputs.add(batch, call, len(b"".join(pieces[:n])), "stdout", data)

    if await outputs.size(engine, call) == 0:
        await writer.submit(change)

    assert await outputs.size(engine, call) == len(whole)
    assert await outputs.read(engine, call, offset, limit) == whole[offset : offset + limit]
    assert b"".join(data for _, _, data in await outputs.chunks(engine, call, offset, ALL)) == whole[offset:]
