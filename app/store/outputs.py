"""Outputs, kept as they come: rows of a call's byte stream, so that a crash loses only the last quarter second."""

from sqlalchemy import bindparam, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from app.store import pieces
from app.store.db import Statement
from app.store.tables import outputs
from app.store.writer import Batch

ROWS_AT_ONCE = 8
ADD = Statement("outputs.add", insert(outputs).values({c.name: bindparam(c.name) for c in outputs.columns}))


def add(batch: Batch, call: str, start: int, stream: str, data: bytes) -> None:
    batch.execute(ADD, {"call": call, "start": start, "stop": start + len(data), "stream": stream, "data": data})


async def size(engine: AsyncEngine, call: str) -> int:
    """How many bytes are kept."""
    async with engine.connect() as db:
        return int(await db.scalar(select(func.max(outputs.c.stop)).where(outputs.c.call == call)) or 0)


async def read(engine: AsyncEngine, call: str, offset: int, limit: int) -> bytes:
    """A range of the stream, cut to the byte."""
    query = (
        select(outputs.c.start, outputs.c.data)
        .where(outputs.c.call == call, outputs.c.stop > offset, outputs.c.start < offset + limit)
        .order_by(outputs.c.start)
    )
    return await pieces.read(engine, query, offset, limit)


async def chunks(engine: AsyncEngine, call: str, offset: int, most: int) -> list[tuple[int, str, bytes]]:
    """The stored pieces from an offset on, with their streams, as they were handed out live: so many bytes of them,
    and the rest of the last one."""
    first = select(func.max(outputs.c.start)).where(outputs.c.call == call, outputs.c.start <= offset)
    query = (
        select(outputs.c.start, outputs.c.stream, outputs.c.data)
        .where(outputs.c.call == call, outputs.c.start >= first.scalar_subquery())
        .where(outputs.c.start < offset + most, outputs.c.stop > offset)
        .order_by(outputs.c.start)
    )
    async with engine.connect() as db:
        rows = (await db.execute(query)).all()
    return [(max(r.start, offset), r.stream, r.data[max(offset - r.start, 0) :]) for r in rows]


async def characters(engine: AsyncEngine, call: str) -> int:
    """How many characters are kept, counted row by row: no row splits one."""
    count, after = 0, -1
    while True:
        query = (
            select(outputs.c.start, outputs.c.data)
            .where(outputs.c.call == call, outputs.c.start > after)
            .order_by(outputs.c.start)
            .limit(ROWS_AT_ONCE)
        )
        async with engine.connect() as db:
            rows = (await db.execute(query)).all()
        if not rows:
            return count
        count += sum(len(row.data.decode("utf-8", "replace")) for row in rows)
        after = rows[-1].start
