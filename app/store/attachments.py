"""Attachments that are kept beside their results, in rows of the size that outputs have."""

from sqlalchemy import bindparam, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from app.store import pieces
from app.store.db import Statement
from app.store.tables import attachments
from app.store.writer import Batch

CHUNK = 256 * 1024
ADD = Statement("attachments.add", insert(attachments).values({c.name: bindparam(c.name) for c in attachments.columns}))


def add(batch: Batch, call: str, number: int, data: bytes) -> None:
    """Keep one, whole; `number` is its place among the attachments of its call, the first is 0."""
    for start in range(0, len(data), CHUNK):
        piece = data[start : start + CHUNK]
        row = {"call": call, "number": number, "start": start, "stop": start + len(piece), "data": piece}
        batch.execute(ADD, row)


async def sizes(engine: AsyncEngine, call: str) -> dict[int, int]:
    """Which of a call's attachments are kept here, and how many bytes each has."""
    query = (
        select(attachments.c.number, func.max(attachments.c.stop))
        .where(attachments.c.call == call)
        .group_by(attachments.c.number)
    )
    async with engine.connect() as db:
        return {number: size for number, size in (await db.execute(query)).all()}


async def read(engine: AsyncEngine, call: str, number: int, offset: int, limit: int) -> bytes:
    """A range of one, cut to the byte."""
    query = (
        select(attachments.c.start, attachments.c.data)
        .where(attachments.c.call == call, attachments.c.number == number)
        .where(attachments.c.start > offset - CHUNK, attachments.c.start < offset + limit, attachments.c.stop > offset)
        .order_by(attachments.c.start)
    )
    return await pieces.read(engine, query, offset, limit)
