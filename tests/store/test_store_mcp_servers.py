"""MCP servers and what they listed, kept."""

from functools import partial

from sqlalchemy.ext.asyncio import AsyncEngine

from app.store import mcp
from app.store.mcp import StoredServer
from app.store.tables import mcp_servers as table
from app.store.writer import Writer

EVERYBODYS = StoredServer(None, "time", '{"a": 1}')
ANNS = StoredServer("ann", "time", '{"b": 2}')


async def test_servers_are_kept_by_owner_and_name(writer: Writer, engine: AsyncEngine) -> None:
    newer = StoredServer("ann", "time", "{}")

    for at, one in enumerate((ANNS, EVERYBODYS, newer)):
        await writer.submit(partial(mcp.put_server, server=one, at=at))

    assert await mcp.load_servers(engine) == [EVERYBODYS, newer]
    async with engine.connect() as db:
        rows = (await db.execute(table.select().order_by(table.c.created_at))).mappings().all()
    assert [(row["created_at"], row["updated_at"]) for row in rows] == [(0, 2), (1, 1)]


async def test_a_server_that_is_dropped_is_gone_and_only_that(writer: Writer, engine: AsyncEngine) -> None:
    for one in (ANNS, EVERYBODYS):
        await writer.submit(partial(mcp.put_server, server=one, at=1))

    dropped = [
        await writer.submit(partial(mcp.remove_server, name="time", owner=owner)) for owner in ("ann", "ann", "bob")
    ]

    assert dropped == [True, False, False]
    assert await mcp.load_servers(engine) == [EVERYBODYS]


async def test_of_each_server_the_last_list_is_kept(writer: Writer, engine: AsyncEngine) -> None:
    for owner, body in ((None, "old"), ("ann", "hers"), (None, "new")):
        await writer.submit(partial(mcp.put_catalog, server="time", owner=owner, body=body, at=1))

    assert await mcp.load_catalogs(engine) == {(None, "time"): "new", ("ann", "time"): "hers"}


async def test_a_list_that_is_dropped_is_gone_and_only_that(writer: Writer, engine: AsyncEngine) -> None:
    for owner in (None, "ann"):
        await writer.submit(partial(mcp.put_catalog, server="time", owner=owner, body="x", at=1))

    dropped = [await writer.submit(partial(mcp.remove_catalog, server="time", owner=None)) for _ in range(2)]

    assert dropped == [True, False]
    assert await mcp.load_catalogs(engine) == {("ann", "time"): "x"}
