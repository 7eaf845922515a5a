"""Reads the events table in order. The writer inserts the rows."""

import sqlite3
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, Select, and_, func, literal, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.errors import StoreUnavailable
from app.core.events import VIEWS, Event, EventType
from app.store import calls
from app.store.tables import calls as calls_table
from app.store.tables import counters, events
from app.store.visibility import SessionFilter, only_visible
from app.store.writer import EVENT_COUNTER, CommittedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events to read; None means all."""

    principal: str | None
    session: str | None = None
    call: str | None = None
    types: frozenset[EventType] | None = None
    session_filter: SessionFilter | None = None

    def matches(self, event: Event) -> bool:
        return (
            (self.principal is None or event.principal == self.principal)
            and (self.call is None or event.call == self.call)
            and (self.session is None or event.session == self.session)
            and (self.types is None or event.type in self.types)
            and (self.session_filter is None or self.session_filter.matches(event.principal, event.session))
        )


async def page(
    engine: AsyncEngine, where: EventFilter, after: int, upto: int | None, limit: int
) -> list[CommittedEvent]:
    """The stored events after the number `after`, oldest first, each with the call it is a view of."""
    async with engine.connect() as db:
        rows = (await db.execute(page_query(where, after, upto, limit))).mappings().all()
    stored = [Event(**{**row, "type": EventType(row["type"])}) for row in rows]
    viewed = await calls.get_many(engine, {e.call for e in stored if e.call and e.type in VIEWS})
    return [(event, viewed.get(event.call or "")) for event in stored]


@dataclass(slots=True)
class Span:
    """Consecutive events: the last number, the count, and the approximate size. Each call counts once."""

    upto: int = 0
    count: int = 0
    size: int = 0
    calls: set[str] = field(default_factory=set)

    def try_add(self, row: Row[Any], max_bytes: int) -> bool:
        """Add an event if it fits; the first one always does."""
        size = row.event_bytes + (row.call_bytes if row.call not in self.calls else 0)
        if self.count and self.size + size > max_bytes:
            return False
        self.upto, self.count, self.size = row.seq, self.count + 1, self.size + size
        if row.call_bytes:
            self.calls.add(row.call)
        return True


async def spans(
    engine: AsyncEngine, where: EventFilter, after: int, upto: int, *, limit: int, max_bytes: int
) -> list[Span]:
    """The next events in spans of at most `max_bytes`; a larger event has a span of its own."""
    async with engine.connect() as db:
        rows = (await db.execute(span_query(where, after, upto, limit))).all()
    spans = list[Span]()
    for row in rows:
        if not spans or not spans[-1].try_add(row, max_bytes):
            spans.append(Span())
            spans[-1].try_add(row, max_bytes)
    return spans


def page_query(where: EventFilter, after: int, upto: int | None, limit: int) -> Select[Any]:
    return _filtered(select(events), where, after, upto).limit(limit)


def span_query(where: EventFilter, after: int, upto: int, limit: int) -> Select[Any]:
    is_view = and_(calls_table.c.id == events.c.call, events.c.type.in_(sorted(VIEWS)))
    sizes = [func.coalesce(func.length(calls_table.c[name]), 0) for name in calls.LONG_COLUMNS]
    event_bytes = func.coalesce(func.length(events.c.data), 0).label("event_bytes")
    query = select(events.c.seq, events.c.call, event_bytes, sum(sizes, literal(0)).label("call_bytes"))
    return _filtered(query.outerjoin_from(events, calls_table, is_view), where, after, upto).limit(limit)


def _filtered(query: Select[Any], where: EventFilter, after: int, upto: int | None) -> Select[Any]:
    query = query.where(events.c.seq > after).order_by(events.c.seq)
    query = only_visible(query, events.c.principal, events.c.session, where.session_filter)
    if upto is not None:
        query = query.where(events.c.seq <= upto)
    for name in ("principal", "session", "call"):
        if (value := getattr(where, name)) is not None:
            query = query.where(events.c[name] == value)
    if where.types is not None:
        query = query.where(events.c.type.in_(sorted(where.types)))
    return query


async def last_seq(engine: AsyncEngine) -> int:
    async with engine.connect() as db:
        value = await db.scalar(select(counters.c.value).where(counters.c.name == EVENT_COUNTER))
    return int(value or 0)


async def check_readable(engine: AsyncEngine) -> None:
    """Read one row; raises `StoreUnavailable`."""
    try:
        await last_seq(engine)
    except (SQLAlchemyError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise StoreUnavailable(f"The database cannot be read: {cause}.") from error
