"""Registered tools, kept."""

from functools import partial

from sqlalchemy.ext.asyncio import AsyncEngine

from app.store import tools
from app.store.tables import tools as table
from app.store.tools import StoredTool
from app.store.writer import Writer

EVERYBODYS = StoredTool(None, "get_weather", "http", '{"a": 1}')
ANNS = StoredTool("ann", "get_weather", "client", '{"b": 2}')


async def test_tools_are_kept_by_owner_and_name(writer: Writer, engine: AsyncEngine) -> None:
    new = [await writer.submit(partial(tools.add, tool=one, at=1)) for one in (ANNS, EVERYBODYS, ANNS)]

    assert new == [True, True, False]
    assert await tools.load_all(engine) == [EVERYBODYS, ANNS]


async def test_what_is_put_takes_the_place_of_the_old_one_and_keeps_when_that_was_made(
    writer: Writer, engine: AsyncEngine
) -> None:
    newer = StoredTool("ann", "get_weather", "http", "{}")
    await writer.submit(lambda batch: tools.add(batch, ANNS, 1))

    await writer.submit(lambda batch: tools.put(batch, newer, 2))
    await writer.submit(lambda batch: tools.put(batch, EVERYBODYS, 3))

    assert await tools.load_all(engine) == [EVERYBODYS, newer]
    async with engine.connect() as db:
        rows = (await db.execute(table.select().order_by(table.c.created_at))).mappings().all()
    assert [(row["created_at"], row["updated_at"]) for row in rows] == [(1, 2), (3, 3)]


async def test_what_is_dropped_is_gone_and_only_that(writer: Writer, engine: AsyncEngine) -> None:
    for one in (ANNS, EVERYBODYS):
        await writer.submit(partial(tools.add, tool=one, at=1))

    dropped = [
        await writer.submit(partial(tools.remove, name="get_weather", owner=owner)) for owner in ("ann", "ann", "bob")
    ]

    assert dropped == [True, False, False]
    assert await tools.load_all(engine) == [EVERYBODYS]
