"""Events, kept. They are written by the writer; here they are read back in order."""

import sqlite3
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, RowMapping, Select, and_, func, literal, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.errors import StoreUnavailable
from app.core.events import VIEWS, Event, EventType
from app.store import calls
from app.store.tables import calls as calls_table
from app.store.tables import counters, events
from app.store.visibility import SessionFilter, narrowed
from app.store.writer import EVENT_COUNTER, Told


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events to see. None means all."""

    principal: str | None
    session: str | None = None
    call: str | None = None
    types: frozenset[EventType] | None = None
    sight: SessionFilter | None = None

    def lets_pass(self, event: Event) -> bool:
        return (
            (self.principal is None or event.principal == self.principal)
            and (self.call is None or event.call == self.call)
            and (self.session is None or event.session == self.session)
            and (self.types is None or event.type in self.types)
            and (self.sight is None or self.sight.lets_pass(event.principal, event.session))
        )


async def page(engine: AsyncEngine, wanted: EventFilter, after: int, upto: int | None, limit: int) -> list[Told]:
    """The stored events behind `after`, oldest first, each with the call it is a view of."""
    async with engine.connect() as db:
        rows = (await db.execute(page_query(wanted, after, upto, limit))).mappings().all()
    found = [_event(row) for row in rows]
    shown = await calls.get_many(engine, {e.call for e in found if e.call and e.type in VIEWS})
    return [(event, shown.get(event.call or "")) for event in found]


@dataclass(slots=True)
class Span:
    """Events that follow each other: up to which, how many, and about how many bytes. A call counts once."""

    upto: int = 0
    count: int = 0
    size: int = 0
    calls: set[str] = field(default_factory=set)

    def takes(self, row: Row[Any], most: int) -> bool:
        """Put one more in, if there is room for it; for the first there always is."""
        more = row.own + (row.shown if row.call not in self.calls else 0)
        if self.count and self.size + more > most:
            return False
        self.upto, self.count, self.size = row.seq, self.count + 1, self.size + more
        if row.shown:
            self.calls.add(row.call)
        return True


async def spans(
    engine: AsyncEngine, wanted: EventFilter, after: int, upto: int, *, limit: int, most: int
) -> list[Span]:
    """The next events, in spans of at most so many bytes each, or of one event that is larger."""
    async with engine.connect() as db:
        rows = (await db.execute(span_query(wanted, after, upto, limit))).all()
    found = list[Span]()
    for row in rows:
        if not found or not found[-1].takes(row, most):
            found.append(Span())
            found[-1].takes(row, most)
    return found


def page_query(wanted: EventFilter, after: int, upto: int | None, limit: int) -> Select[Any]:
    return _narrowed(select(events), wanted, after, upto).limit(limit)


def span_query(wanted: EventFilter, after: int, upto: int, limit: int) -> Select[Any]:
    is_view = and_(calls_table.c.id == events.c.call, events.c.type.in_(sorted(VIEWS)))
    sizes = [func.coalesce(func.length(calls_table.c[name]), 0) for name in calls.LONG]
    own = func.coalesce(func.length(events.c.data), 0).label("own")
    query = select(events.c.seq, events.c.call, own, sum(sizes, literal(0)).label("shown"))
    return _narrowed(query.outerjoin_from(events, calls_table, is_view), wanted, after, upto).limit(limit)


def _narrowed(query: Select[Any], wanted: EventFilter, after: int, upto: int | None) -> Select[Any]:
    query = query.where(events.c.seq > after).order_by(events.c.seq)
    query = narrowed(query, events.c.principal, events.c.session, wanted.sight)
    if upto is not None:
        query = query.where(events.c.seq <= upto)
    for name in ("principal", "session", "call"):
        if (value := getattr(wanted, name)) is not None:
            query = query.where(events.c[name] == value)
    if wanted.types is not None:
        query = query.where(events.c.type.in_(sorted(wanted.types)))
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


def _event(row: RowMapping) -> Event:
    return Event(**{**row, "type": EventType(row["type"])})
