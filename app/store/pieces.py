"""Pieces: bytes that are kept in rows one after the other, read as the one thing they are."""

from typing import Any

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncEngine


async def read(engine: AsyncEngine, query: Select[Any], offset: int, limit: int) -> bytes:
    """A range, cut to the byte. The query gives the `start` and `data` of the rows that hold it, in their order."""
    async with engine.connect() as db:
        rows = (await db.execute(query)).all()
    if not rows:
        return b""
    joined = b"".join(row.data for row in rows)
    begin = offset - rows[0].start
    return joined[max(begin, 0) : begin + limit]
