"""The spool: output in few and bounded pieces, in order, whole characters, told once it is committed."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.redaction import OutputStream, Redactor
from app.core.results import Keep, Result, Truncation, truncate
from app.dispatch.events.output_spool import CHUNK_BYTES, Spool, load_shown
from app.store import outputs
from tests.support.services import HANG, Crib, until


class Heard:
    """A hub that writes down what it is told."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, str, bytes]] = []

    def has_output_listeners(self, call: Call) -> bool:
        return True

    def publish_output(self, call: Call, start: int, stream: str, data: bytes) -> None:
        self.pieces.append((start, stream, data))


CALL = Call("call_1", "admin", "toy", 0)


@pytest.fixture
async def heard() -> Heard:
    return Heard()


@pytest.fixture
async def open_crib(crib: Crib) -> AsyncIterator[Crib]:
    await crib.open()
    yield crib
    crib.change("DROP TRIGGER IF EXISTS refuse")


def spool_on(crib: Crib, heard: Heard, limit: int = 1 << 30) -> Spool:
    return Spool(CALL, crib.services.writer, heard, limit, Redactor().stream)  # type: ignore[arg-type]


def stored(crib: Crib) -> list[tuple[int, str, bytes]]:
    rows = crib.rows("SELECT * FROM outputs ORDER BY start")
    assert all(row["stop"] == row["start"] + len(row["data"]) for row in rows)
    assert all(len(row["data"]) <= CHUNK_BYTES for row in rows)
    return [(row["start"], row["stream"], row["data"]) for row in rows]


def assert_contiguous(pieces: list[tuple[int, str, bytes]]) -> bytes:
    """Each piece starts where the one before ended, and is text by itself; gives the whole."""
    at = 0
    for start, _, data in pieces:
        assert start == at
        assert data
        data.decode()
        at += len(data)
    return b"".join(data for _, _, data in pieces)


async def test_what_is_written_is_stored_and_told_the_same(open_crib: Crib, heard: Heard) -> None:
    spool = spool_on(open_crib, heard)

    await spool.write("one", "stdout")
    await spool.write(" two", "stdout")
    await spool.write("oops", "stderr")
    await spool.write("three", "stdout")
    await spool.finish()

    expected = [(0, "stdout", b"one two"), (7, "stderr", b"oops"), (11, "stdout", b"three")]
    assert stored(open_crib) == expected
    assert heard.pieces == expected
    assert (spool.total, spool.dropped) == (16, 0)


async def test_a_first_word_is_told_without_waiting_for_more(open_crib: Crib, heard: Heard) -> None:
    spool = spool_on(open_crib, heard)

    await spool.write("first", "stdout")
    await until(lambda: heard.pieces)

    assert heard.pieces == [(0, "stdout", b"first")]
    await spool.finish()


async def test_words_in_quick_succession_are_gathered(
    open_crib: Crib, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.events.output_spool.FLUSH_SECONDS", 0.05)
    spool = spool_on(open_crib, heard)
    await spool.write("first ", "stdout")
    await until(lambda: heard.pieces)

    for number in range(100):
        await spool.write(f"{number} ", "stdout")
    assert len(heard.pieces) == 1
    await until(lambda: len(heard.pieces) == 2)

    assert heard.pieces[1][2].decode() == "".join(f"{number} " for number in range(100))
    await spool.finish()


async def test_nothing_is_told_before_it_is_committed(open_crib: Crib, heard: Heard) -> None:
    spool = spool_on(open_crib, heard)
    with open_crib.stalled_writer():
        await spool.write("x", "stdout")
        finishing = asyncio.create_task(spool.finish())
        for _ in range(50):
            await asyncio.sleep(0)
        assert heard.pieces == []
        assert not finishing.done()
    async with asyncio.timeout(HANG):
        await finishing

    assert heard.pieces == [(0, "stdout", b"x")]


async def test_a_flood_is_cut_into_chunks_of_whole_characters(open_crib: Crib, heard: Heard) -> None:
    spool = spool_on(open_crib, heard)
    text = "x" + "€" * 300_000

    await spool.write(text, "stdout")
    await spool.finish()

    assert assert_contiguous(heard.pieces) == assert_contiguous(stored(open_crib)) == text.encode()
    assert [len(data) for _, _, data in stored(open_crib)] == [262_144, 262_143, 262_143, 113_571]


async def test_random_writes_on_two_streams_come_out_in_order_and_whole(open_crib: Crib, heard: Heard) -> None:
    dice = random.Random(1)
    spool = spool_on(open_crib, heard)
    written: list[tuple[str, str]] = []
    for _ in range(300):
        text = "".join(dice.choices("a é€😀\n", k=dice.choice([0, 1, 5, 50, 20_000])))
        written.append((dice.choice(["stdout", "stdout", "stderr"]), text))
        await spool.write(text, written[-1][0])
        if dice.random() < 0.1:
            await asyncio.sleep(0.001)
    await spool.finish()

    rows = stored(open_crib)
    assert assert_contiguous(heard.pieces) == assert_contiguous(rows) == "".join(text for _, text in written).encode()
    for name in ("stdout", "stderr"):
        kept = b"".join(data for _, stream, data in rows if stream == name)
        assert kept == "".join(text for stream, text in written if stream == name).encode()


async def test_a_tool_that_writes_faster_than_the_store_takes_it_waits(open_crib: Crib, heard: Heard) -> None:
    spool = spool_on(open_crib, heard)
    written = []

    async def write_much() -> None:
        for number in range(20):
            await spool.write("x" * (CHUNK_BYTES // 2), "stdout")
            written.append(number)

    with open_crib.stalled_writer():
        writing = asyncio.create_task(write_much())
        for _ in range(100):
            await asyncio.sleep(0)
        assert written == [0, 1, 2][: len(written)]
        assert len(written) <= 3
    async with asyncio.timeout(HANG):
        await writing
    await spool.finish()

    assert len(assert_contiguous(heard.pieces)) == 20 * CHUNK_BYTES // 2


async def test_beyond_the_limit_everything_is_dropped_and_counted(open_crib: Crib, heard: Heard) -> None:
    spool = spool_on(open_crib, heard, limit=10)

    for text in ("12345", "678é😀", "9", "x" * 1000):
        await spool.write(text, "stdout")
    await spool.finish()

    assert stored(open_crib) == [(0, "stdout", "12345678é".encode())]
    assert (spool.total, spool.dropped) == (10, 4 + 1 + 1000)


async def test_beyond_the_limit_nothing_is_looked_at_any_more(open_crib: Crib, heard: Heard) -> None:
    """A flood that is dropped must cost nothing, and what was held back as the beginning of a secret is counted too."""
    fed = list[str]()

    class Watched(OutputStream):
        def feed(self, text: str) -> str:
            fed.append(text)
            return super().feed(text)

    redactor = Redactor(["hunter2hunter2"])
    spool = Spool(CALL, open_crib.services.writer, heard, 6, lambda: Watched(redactor))  # type: ignore[arg-type]

    for text in ("123456hunter2", "hunter2", "é" * 1000, "end"):
        await spool.write(text, "stdout")
    await spool.finish()

    assert fed == ["123456hunter2"]
    assert stored(open_crib) == [(0, "stdout", b"123456")]
    assert (spool.total, spool.dropped) == (6, 7 + 7 + 2000 + 3)


async def test_a_character_that_does_not_fit_ends_the_output_there(open_crib: Crib, heard: Heard) -> None:
    spool = spool_on(open_crib, heard, limit=3)

    for text in ("ab", "é", "c"):
        await spool.write(text, "stdout")
    await spool.finish()

    assert stored(open_crib) == [(0, "stdout", b"ab")]
    assert (spool.total, spool.dropped) == (2, 3)


async def test_what_the_store_refuses_is_dropped_with_all_that_follows(open_crib: Crib, heard: Heard) -> None:
    spool = spool_on(open_crib, heard)
    await spool.write("kept", "stdout")
    await spool.finish()
    open_crib.change("CREATE TRIGGER refuse BEFORE INSERT ON outputs BEGIN SELECT RAISE(ABORT, 'full'); END")

    await spool.write("lost", "stdout")
    await spool.finish()
    open_crib.change("DROP TRIGGER refuse")
    await spool.write("after", "stdout")
    await spool.finish()

    assert stored(open_crib) == heard.pieces == [(0, "stdout", b"kept")]
    assert (spool.total, spool.dropped) == (4, 9)


async def test_a_finished_spool_has_nothing_left_to_do(open_crib: Crib, heard: Heard) -> None:
    spool = spool_on(open_crib, heard)
    await spool.finish()
    await spool.write("", "stdout")
    await spool.finish()

    assert stored(open_crib) == []
    assert spool._timer is None


async def test_what_is_no_character_is_replaced(open_crib: Crib, heard: Heard) -> None:
    spool = spool_on(open_crib, heard)

    await spool.write("a\ud800b\udc80", "stdout")
    await spool.finish()

    ((_, _, data),) = stored(open_crib)
    assert data.decode().replace("\ufffd", "") == "ab"


async def test_a_running_call_tells_its_output_with_right_offsets(crib: Crib) -> None:
    await crib.open()
    texts = ["héllo ", "wörld\n", "€" * 100_000, "end"]

    view = await crib.run("say", {"texts": texts, "streams": ["stdout", "stderr"]})

    rows = stored(crib)
    assert assert_contiguous(rows) == "".join(texts).encode()
    assert crib.row(view["id"])["output_dropped"] == 0


@pytest.mark.parametrize("keep", Keep)
async def test_of_a_long_output_what_is_shown_is_the_same_as_of_the_whole(
    open_crib: Crib, heard: Heard, monkeypatch: pytest.MonkeyPatch, keep: Keep
) -> None:
    text = "a€" + "😀é" * 5000 + "z€"
    spool = spool_on(open_crib, heard)
    await spool.write(text, "stdout")
    await spool.finish()
    asked = list[int]()
    read = outputs.read

    async def watched(engine: AsyncEngine, call: str, offset: int, limit: int) -> bytes:
        asked.append(limit)
        return await read(engine, call, offset, limit)

    monkeypatch.setattr("app.store.outputs.read", watched)

    for limit in (100, 101, 9999, 10_004, 20_000):
        policy = Truncation(limit, keep)
        assert await load_shown(open_crib.services.engine, CALL.id, policy) == truncate(Result(text), policy)
    assert asked[:2] == [400, 400]


async def test_what_is_not_there_is_shown_as_nothing(open_crib: Crib) -> None:
    assert (await load_shown(open_crib.services.engine, "call_9", Truncation())).output == ""
