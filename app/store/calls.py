"""The calls table. Every change of status is a compare-and-set on id, status and owner: the first end wins."""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from sqlalchemy import RowMapping, Select, bindparam, func, insert, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call, Status, Waiting
from app.store.tables import calls, idempotency_keys
from app.store.visibility import SessionFilter, only_visible
from app.store.writer import Batch, Statement, parameters

FIELDS = tuple(column.name for column in calls.columns if column.name not in ("owner", "cancel_requested"))
OWNER_INDEX = list(calls.columns.keys()).index("owner")
IS_OPEN = calls.c.status.in_([literal_column(f"'{status}'") for status in (Status.PENDING, Status.RUNNING)])
LONG_COLUMNS = ("arguments", "input", "effective", "metadata", "result", "error")
"""The columns without a size limit."""

_values = attrgetter(*("status.value" if name == "status" else name for name in FIELDS))


def _update(name: str, *columns: str) -> Statement:
    """Set these columns, if id, status and owner are as expected."""
    is_unchanged = (
        calls.c.id == bindparam("b_id"),
        calls.c.status == bindparam("was"),
        calls.c.owner == bindparam("b_owner"),
    )
    return Statement(name, update(calls).where(*is_unchanged).values({name: bindparam(name) for name in columns}))


ADD = Statement("calls.add", insert(calls).values({name: bindparam(name) for name in (*FIELDS, "owner")}))
START = _update("calls.start", "status", "started_at", "waiting", "deadline", "sandbox")
CLOSE = _update(
    "calls.close",
    *("status", "waiting", "result", "error", "ended_at", "duration_us", "output_dropped", "sealed"),
)
SET_WAITING = _update("calls.set_waiting", "waiting")
SET_EFFECTIVE = _update("calls.set_effective", "effective", "sealed")
REQUEST_CANCEL = _update("calls.request_cancel", "cancel_requested")
ADOPT = Statement(
    "calls.adopt",
    update(calls)
    .where(calls.c.id == bindparam("b_id"), calls.c.status == bindparam("was"))
    .values({name: bindparam(name) for name in ("owner", "attempt", "waiting")}),
)
CLAIM = Statement(
    "idempotency.claim",
    insert_or_ignore(idempotency_keys)
    .values(parameters(idempotency_keys))
    .on_conflict_do_nothing()
    .returning(idempotency_keys.c.call),
)
CLAIMED = Statement(
    "idempotency.claimed",
    select(idempotency_keys.c.call, idempotency_keys.c.digest).where(
        idempotency_keys.c.principal == bindparam("principal"), idempotency_keys.c.key == bindparam("key")
    ),
)


@dataclass(frozen=True, slots=True)
class Claim:
    """The digest of an Idempotency-Key and the digest of its request body."""

    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """The call that has an Idempotency-Key, and the digest of its request body."""

    call: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFilter:
    """Which calls to list. `principal` None means all; `since`, `until` and `before` are ids, which sort by time."""

    principal: str | None
    session: str | None = None
    status: Status | None = None
    tool: str | None = None
    message_id: str | None = None
    since: str | None = None
    until: str | None = None
    before: str | None = None
    session_filter: SessionFilter | None = None


def add(batch: Batch, call: Call, owner: str) -> None:
    """Store a new call."""
    values = _values(call)
    batch.insert(ADD, (*values[:OWNER_INDEX], owner, *values[OWNER_INDEX:]))


def claim(batch: Batch, call: Call, wanted: Claim) -> Claimed | None:
    """Take an Idempotency-Key for this call; returns its holder when another call has it."""
    params = {"principal": call.principal, "key": wanted.key}
    row = params | {"call": call.id, "digest": wanted.digest, "created_at": call.created_at}
    if batch.fetch(CLAIM, row):
        return None
    holder = batch.fetch(CLAIMED, params)
    assert holder is not None, "a key that cannot be inserted exists"
    return Claimed(*holder)


def start(batch: Batch, call: Call, owner: str, at: int) -> bool:
    params = _expected(call, owner, Status.PENDING)
    params |= {"status": Status.RUNNING.value, "started_at": at, "waiting": None}
    return batch.execute(START, params | {"deadline": call.deadline, "sandbox": call.sandbox}) == 1


def close(batch: Batch, end: Call, was: Status, owner: str) -> bool:
    """End a call with the status, result and error of `end`."""
    params = {
        "b_id": end.id,
        "was": was.value,
        "b_owner": owner,
        "status": end.status.value,
        "waiting": None,
        "result": end.result,
        "error": end.error,
        "ended_at": end.ended_at,
        "duration_us": end.duration_us,
        "output_dropped": end.output_dropped,
        "sealed": None,
    }
    return batch.execute(CLOSE, params) == 1


def set_waiting(batch: Batch, call: Call, owner: str, waiting: Waiting | None) -> bool:
    return batch.execute(SET_WAITING, _expected(call, owner, call.status) | {"waiting": waiting and waiting.value}) == 1


def set_effective(batch: Batch, call: Call, owner: str, effective: str, sealed: bytes | None) -> bool:
    """Store the arguments after hooks and validation."""
    params = {"effective": effective, "sealed": sealed}
    return batch.execute(SET_EFFECTIVE, _expected(call, owner, Status.PENDING) | params) == 1


def request_cancel(batch: Batch, call: Call, owner: str, at: int) -> bool:
    return batch.execute(REQUEST_CANCEL, _expected(call, owner, Status.RUNNING) | {"cancel_requested": at}) == 1


def adopt(batch: Batch, call: Call, owner: str) -> bool:
    """Become the owner of a call that an earlier service left open."""
    waiting = call.waiting and call.waiting.value
    params = {"b_id": call.id, "was": call.status.value, "owner": owner, "attempt": call.attempt, "waiting": waiting}
    return batch.execute(ADOPT, params) == 1


async def get(engine: AsyncEngine, id: str, principal: str | None) -> Call | None:
    query = select(calls).where(calls.c.id == id)
    if principal is not None:
        query = query.where(calls.c.principal == principal)
    async with engine.connect() as db:
        row = (await db.execute(query)).mappings().first()
    return to_call(row) if row else None


async def get_many(engine: AsyncEngine, ids: set[str]) -> dict[str, Call]:
    if not ids:
        return {}
    async with engine.connect() as db:
        rows = (await db.execute(select(calls).where(calls.c.id.in_(ids)))).mappings().all()
    return {row["id"]: to_call(row) for row in rows}


async def page(engine: AsyncEngine, where: CallFilter, limit: int) -> list[Call]:
    """The newest calls first."""
    async with engine.connect() as db:
        rows = (await db.execute(page_query(where, limit))).mappings().all()
    return [to_call(row) for row in rows]


def page_query(where: CallFilter, limit: int) -> Select[Any]:
    query = select(calls).order_by(calls.c.id.desc()).limit(limit)
    query = only_visible(query, calls.c.principal, calls.c.session, where.session_filter)
    if where.status is not None:  # written like the partial indexes, or SQLite does not use them
        query = query.where(calls.c.status == literal_column(f"'{where.status.value}'"))
        query = query if where.status.is_final else query.where(IS_OPEN)
    for name in ("principal", "session", "tool", "message_id"):
        if (value := getattr(where, name)) is not None:
            query = query.where(calls.c[name] == value)
    if where.since is not None:
        query = query.where(calls.c.id >= where.since)
    upper = [bound for bound in (where.until, where.before) if bound is not None]
    return query.where(calls.c.id < min(upper)) if upper else query


async def iterate(engine: AsyncEngine, where: CallFilter, size: int) -> AsyncIterator[list[Call]]:
    """All matching calls that exist now, oldest first.

    Each query reads at most `size` rows, matching or not, so that no read transaction keeps the WAL for long.
    """
    newest, after = await newest_id(engine), where.since or ""
    while newest is not None:
        window = select(calls.c.id).where(calls.c.id > after, calls.c.id <= newest).order_by(calls.c.id).limit(size)
        async with engine.connect() as db:
            last = await db.scalar(select(func.max(window.subquery().c.id)))
            if last is None:
                return
            query = page_query(where, size).where(calls.c.id > after, calls.c.id <= last)
            rows = (await db.execute(query.order_by(None).order_by(calls.c.id))).mappings().all()
        if rows:
            yield [to_call(row) for row in rows]
        after = last


async def unfinished(engine: AsyncEngine) -> list[Call]:
    """The calls that an earlier service left open, oldest first."""
    async with engine.connect() as db:
        return [to_call(row) for row in (await db.execute(unfinished_query())).mappings()]


def unfinished_query() -> Select[Any]:
    return select(calls).where(IS_OPEN).order_by(calls.c.id)


async def cancel_requested(engine: AsyncEngine) -> set[str]:
    """The ids of open calls that a client has asked to cancel."""
    query = select(calls.c.id).where(IS_OPEN, calls.c.cancel_requested.is_not(None))
    async with engine.connect() as db:
        return set((await db.scalars(query)).all())


async def find_claims(engine: AsyncEngine, principal: str, keys: Collection[str]) -> dict[str, Claimed]:
    """The calls that have these Idempotency-Keys; keys without a call are missing."""
    table = idempotency_keys
    query = select(table.c.key, table.c.call, table.c.digest).where(
        table.c.principal == principal, table.c.key.in_(keys)
    )
    async with engine.connect() as db:
        return {key: Claimed(call, digest) for key, call, digest in (await db.execute(query)).all()}


async def newest_id(engine: AsyncEngine) -> str | None:
    async with engine.connect() as db:
        id: str | None = await db.scalar(select(calls.c.id).order_by(calls.c.id.desc()).limit(1))
    return id


def to_call(row: RowMapping) -> Call:
    fields = {name: row[name] for name in FIELDS}
    fields["status"] = Status(fields["status"])
    fields["waiting"] = Waiting(fields["waiting"]) if fields["waiting"] else None
    return Call(**fields)


def _expected(call: Call, owner: str, was: Status) -> dict[str, Any]:
    return {"b_id": call.id, "was": was.value, "b_owner": owner}
