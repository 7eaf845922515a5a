"""The outputs and attachments tables: bytes in rows of limited size.

Output is stored while a call runs, so that a crash loses only the last quarter second.
"""

from typing import Any

from sqlalchemy import Select, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from app.store.tables import attachments, outputs
from app.store.writer import Batch, Statement, parameters

ROWS_PER_READ = 8
ATTACHMENT_ROW_BYTES = 256 * 1024
ADD = Statement("outputs.add", insert(outputs).values(parameters(outputs)))
ADD_ATTACHMENT = Statement("attachments.add", insert(attachments).values(parameters(attachments)))


def add(batch: Batch, call: str, start: int, stream: str, data: bytes) -> None:
    batch.execute(ADD, {"call": call, "start": start, "stop": start + len(data), "stream": stream, "data": data})


async def size(engine: AsyncEngine, call: str) -> int:
    """How many bytes of output are stored."""
    async with engine.connect() as db:
        return int(await db.scalar(select(func.max(outputs.c.stop)).where(outputs.c.call == call)) or 0)


async def read(engine: AsyncEngine, call: str, offset: int, limit: int) -> bytes:
    """Up to `limit` bytes of the output, from `offset` on."""
    query = (
        select(outputs.c.start, outputs.c.data)
        .where(outputs.c.call == call, outputs.c.stop > offset, outputs.c.start < offset + limit)
        .order_by(outputs.c.start)
    )
    return await _read_rows(engine, query, offset, limit)


async def chunks(engine: AsyncEngine, call: str, offset: int, max_bytes: int) -> list[tuple[int, str, bytes]]:
    """The stored chunks from an offset on, with their streams, until they have `max_bytes`; the last one is whole."""
    first = select(func.max(outputs.c.start)).where(outputs.c.call == call, outputs.c.start <= offset)
    query = (
        select(outputs.c.start, outputs.c.stream, outputs.c.data)
        .where(outputs.c.call == call, outputs.c.start >= first.scalar_subquery())
        .where(outputs.c.start < offset + max_bytes, outputs.c.stop > offset)
        .order_by(outputs.c.start)
    )
    async with engine.connect() as db:
        rows = (await db.execute(query)).all()
    return [(max(r.start, offset), r.stream, r.data[max(offset - r.start, 0) :]) for r in rows]


async def characters(engine: AsyncEngine, call: str) -> int:
    """How many characters are stored, counted row by row: no row splits a character."""
    count, after = 0, -1
    while True:
        query = (
            select(outputs.c.start, outputs.c.data)
            .where(outputs.c.call == call, outputs.c.start > after)
            .order_by(outputs.c.start)
            .limit(ROWS_PER_READ)
        )
        async with engine.connect() as db:
            rows = (await db.execute(query)).all()
        if not rows:
            return count
        count += sum(len(row.data.decode("utf-8", "replace")) for row in rows)
        after = rows[-1].start


def add_attachment(batch: Batch, call: str, number: int, data: bytes) -> None:
    """Store one attachment; `number` is its index among the attachments of its call."""
    for start in range(0, len(data), ATTACHMENT_ROW_BYTES):
        chunk = data[start : start + ATTACHMENT_ROW_BYTES]
        row = {"call": call, "number": number, "start": start, "stop": start + len(chunk), "data": chunk}
        batch.execute(ADD_ATTACHMENT, row)


async def attachment_sizes(engine: AsyncEngine, call: str) -> dict[int, int]:
    """The stored attachments of a call by number, with their sizes in bytes."""
    query = (
        select(attachments.c.number, func.max(attachments.c.stop))
        .where(attachments.c.call == call)
        .group_by(attachments.c.number)
    )
    async with engine.connect() as db:
        return {number: size for number, size in (await db.execute(query)).all()}


async def read_attachment(engine: AsyncEngine, call: str, number: int, offset: int, limit: int) -> bytes:
    """Up to `limit` bytes of an attachment, from `offset` on."""
    start, stop = attachments.c.start, attachments.c.stop
    query = (
        select(start, attachments.c.data)
        .where(attachments.c.call == call, attachments.c.number == number)
        .where(start > offset - ATTACHMENT_ROW_BYTES, start < offset + limit, stop > offset)
        .order_by(start)
    )
    return await _read_rows(engine, query, offset, limit)


async def _read_rows(engine: AsyncEngine, query: Select[Any], offset: int, limit: int) -> bytes:
    """The bytes of consecutive rows with `start` and `data`, cut to the range."""
    async with engine.connect() as db:
        rows = (await db.execute(query)).all()
    if not rows:
        return b""
    joined = b"".join(row.data for row in rows)
    begin = offset - rows[0].start
    return joined[max(begin, 0) : begin + limit]
