import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.store import outputs
from app.store.writer import Batch, Writer

WHOLE = bytes(range(11))


@pytest.fixture
async def kept(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "ATTACHMENT_ROW_BYTES", 4)

    def change(batch: Batch) -> None:
        outputs.add_attachment(batch, "call_1", 0, WHOLE)
        outputs.add_attachment(batch, "call_1", 2, b"the other")
        outputs.add_attachment(batch, "call_2", 0, b"another call's")

    await writer.submit(change)


async def test_every_range_is_cut_to_the_byte_also_across_rows_and_beyond_the_end(
    kept: None, engine: AsyncEngine
) -> None:
    for offset in range(len(WHOLE) + 3):
        for limit in range(len(WHOLE) + 3):
            assert await outputs.read_attachment(engine, "call_1", 0, offset, limit) == WHOLE[offset : offset + limit]


async def test_each_has_its_own_size_and_its_own_bytes(kept: None, engine: AsyncEngine) -> None:
    assert await outputs.attachment_sizes(engine, "call_1") == {0: 11, 2: 9}
    assert await outputs.attachment_sizes(engine, "call_3") == {}
    assert await outputs.read_attachment(engine, "call_1", 2, 0, 100) == b"the other"
    assert await outputs.read_attachment(engine, "call_1", 1, 0, 100) == b""
