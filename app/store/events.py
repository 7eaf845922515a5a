"""Events, kept. They are written by the writer; here they are read back in order."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping, Select, select
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.events import VIEWS, Event, EventType
from app.store import calls
from app.store.tables import counters, events
from app.store.writer import EVENT_COUNTER, Told


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events to see. None means all."""

    principal: str | None
    session: str | None = None
    call: str | None = None
    types: frozenset[EventType] | None = None

    def lets_pass(self, event: Event) -> bool:
        return (
            (self.principal is None or event.principal == self.principal)
            and (self.call is None or event.call == self.call)
            and (self.session is None or event.session == self.session)
            and (self.types is None or event.type in self.types)
        )


async def page(engine: AsyncEngine, wanted: EventFilter, after: int, upto: int | None, limit: int) -> list[Told]:
    """The stored events behind `after`, oldest first, each with the call it is a view of."""
    async with engine.connect() as db:
        rows = (await db.execute(page_query(wanted, after, upto, limit))).mappings().all()
    found = [_event(row) for row in rows]
    shown = await calls.get_many(engine, {e.call for e in found if e.call and e.type in VIEWS})
    return [(event, shown.get(event.call or "")) for event in found]


def page_query(wanted: EventFilter, after: int, upto: int | None, limit: int) -> Select[Any]:
    query = select(events).where(events.c.seq > after).order_by(events.c.seq).limit(limit)
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


def _event(row: RowMapping) -> Event:
    return Event(**{**row, "type": EventType(row["type"])})
