"""Finds the oldest calls and deletes them with everything that belongs to them."""

from dataclasses import dataclass

from sqlalchemy import bindparam, delete, exists, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Status
from app.core.util.ids import earliest, time_of
from app.store.tables import asks, attachments, calls, counters, events, idempotency_keys, outputs, runs
from app.store.writer import Batch, Statement

FLOOR_COUNTER = "event_floor"
ENDED = (Status.COMPLETED.value, Status.ERROR.value)

LAST_EVENT = Statement(
    "retention.last_event", select(func.max(events.c.seq)).where(events.c.call == bindparam("b_call"))
)
REMOVALS = (
    *(
        Statement(f"retention.{table.name}", delete(table).where(table.c.call == bindparam("b_call")))
        for table in (events, outputs, attachments, idempotency_keys, asks)
    ),
    Statement("retention.calls", delete(calls).where(calls.c.id == bindparam("b_call"))),
)
REMOVE_OTHER_EVENTS = Statement(
    "retention.events_without_call", delete(events).where(events.c.call.is_(None), events.c.seq <= bindparam("upto"))
)
REMOVE_RUNS = Statement("retention.runs", delete(runs).where(runs.c.id <= bindparam("upto")))
RAISE_FLOOR = Statement(
    "retention.floor",
    update(counters)
    .where(counters.c.name == bindparam("b_name"), counters.c.value < bindparam("floor"))
    .values(value=bindparam("floor")),
)


@dataclass(frozen=True, slots=True)
class OldCall:
    """A call that may be deleted, with the bytes of its output and attachments."""

    id: str
    output: int


async def oldest(engine: AsyncEngine, *, ended_before: int, keys_before: int, limit: int) -> list[OldCall]:
    """The oldest calls that ended before a time, without those whose Idempotency-Key is newer than `keys_before`."""
    has_young_key = exists().where(idempotency_keys.c.call == calls.c.id, idempotency_keys.c.created_at >= keys_before)
    size = select(func.max(outputs.c.stop)).where(outputs.c.call == calls.c.id).scalar_subquery()
    files = select(func.sum(attachments.c.stop - attachments.c.start)).where(attachments.c.call == calls.c.id)
    query = (
        select(calls.c.id, func.coalesce(size, 0) + func.coalesce(files.scalar_subquery(), 0))
        .where(calls.c.status.in_(ENDED), calls.c.ended_at < ended_before, ~has_young_key)
        .order_by(calls.c.id)
        .limit(limit)
    )
    async with engine.connect() as db:
        return [OldCall(id, output) for id, output in (await db.execute(query)).all()]


def remove(batch: Batch, ids: list[str]) -> int:
    """Delete calls and what belongs to them; returns the event number above which no event is missing."""
    floor = 0
    for id in ids:
        row = batch.fetch(LAST_EVENT, {"b_call": id})
        floor = max(floor, (row and row[0]) or 0)
        for statement in REMOVALS:
            batch.execute(statement, {"b_call": id})
    batch.execute(REMOVE_OTHER_EVENTS, {"upto": floor})
    batch.execute(
        REMOVE_RUNS, {"upto": earliest("run", time_of(max(ids, default="")))}
    )  # older runs have no calls left
    batch.execute(RAISE_FLOOR, {"b_name": FLOOR_COUNTER, "floor": floor})
    return floor


async def floor_of(engine: AsyncEngine) -> int:
    """The highest event number that may be deleted."""
    async with engine.connect() as db:
        return int(await db.scalar(select(counters.c.value).where(counters.c.name == FLOOR_COUNTER)) or 0)


async def used_bytes(engine: AsyncEngine) -> int:
    """The size of the database without free pages."""
    pragmas = "pragma_page_count, pragma_freelist_count, pragma_page_size"
    query = f"SELECT (page_count - freelist_count) * page_size FROM {pragmas}"
    async with engine.connect() as db:
        return int(await db.scalar(text(query)) or 0)
