"""Calls, kept. Every change of status is a compare-and-set on id, status and owner: the first end wins."""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping, Select, bindparam, func, insert, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call, Status, Waiting
from app.store.db import Statement
from app.store.tables import calls, idempotency_keys
from app.store.visibility import SessionFilter, narrowed
from app.store.writer import Batch

COLUMNS = tuple(c.name for c in calls.columns)
IS_OPEN = calls.c.status.in_([literal_column(f"'{status}'") for status in (Status.PENDING, Status.RUNNING)])
LONG = ("arguments", "input", "effective", "metadata", "result", "error")
"""The columns that can be of any size."""

ADD = Statement("calls.add", insert(calls).values({name: bindparam(name) for name in COLUMNS}))

_mine = (calls.c.id == bindparam("b_id"), calls.c.status == bindparam("was"), calls.c.owner == bindparam("b_owner"))

START = Statement(
    "calls.start",
    update(calls)
    .where(*_mine)
    .values(
        status=bindparam("status"),
        started_at=bindparam("started_at"),
        waiting=bindparam("waiting"),
        deadline=bindparam("deadline"),
        sandbox=bindparam("sandbox"),
    ),
)
CLOSE = Statement(
    "calls.close",
    update(calls)
    .where(*_mine)
    .values(
        status=bindparam("status"),
        waiting=bindparam("waiting"),
        result=bindparam("result"),
        error=bindparam("error"),
        ended_at=bindparam("ended_at"),
        duration_us=bindparam("duration_us"),
        output_dropped=bindparam("output_dropped"),
        sealed=bindparam("sealed"),
    ),
)
WAIT = Statement("calls.wait", update(calls).where(*_mine).values(waiting=bindparam("waiting")))
SETTLE = Statement(
    "calls.settle",
    update(calls).where(*_mine).values(effective=bindparam("effective"), sealed=bindparam("sealed")),
)
CANCEL = Statement("calls.cancel", update(calls).where(*_mine).values(cancel_requested=bindparam("at")))
ADOPT = Statement(
    "calls.adopt",
    update(calls)
    .where(calls.c.id == bindparam("b_id"), calls.c.status == bindparam("was"))
    .values(owner=bindparam("owner"), attempt=bindparam("attempt"), waiting=bindparam("waiting")),
)
CLAIM = Statement(
    "idempotency.claim",
    insert_or_ignore(idempotency_keys)
    .values({c.name: bindparam(c.name) for c in idempotency_keys.columns})
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
    """The digest of an Idempotency-Key, with that of the body it came with."""

    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """The call that holds an Idempotency-Key already."""

    call: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFilter:
    """Which calls to list. `principal` None means everybody's; bounds are ids, which sort by time."""

    principal: str | None
    session: str | None = None
    status: Status | None = None
    tool: str | None = None
    message_id: str | None = None
    since: str | None = None
    until: str | None = None
    before: str | None = None
    sight: SessionFilter | None = None


def add(batch: Batch, call: Call, owner: str) -> None:
    """Keep a new call as it stands."""
    batch.execute(
        ADD,
        {
            "id": call.id,
            "principal": call.principal,
            "session": call.session,
            "tool": call.tool,
            "status": call.status.value,
            "waiting": call.waiting and call.waiting.value,
            "arguments": call.arguments,
            "input": call.input,
            "effective": call.effective,
            "call_id": call.call_id,
            "message_id": call.message_id,
            "parent": call.parent,
            "metadata": call.metadata,
            "options": call.options,
            "result": call.result,
            "error": call.error,
            "sandbox": call.sandbox,
            "owner": owner,
            "cancel_requested": None,
            "attempt": call.attempt,
            "created_at": call.created_at,
            "started_at": call.started_at,
            "ended_at": call.ended_at,
            "duration_us": call.duration_us,
            "output_dropped": call.output_dropped,
            "sealed": call.sealed,
            "key": call.key,
            "deadline": call.deadline,
        },
    )


def claim(batch: Batch, call: Call, wanted: Claim) -> Claimed | None:
    """Take an Idempotency-Key for this call; the answer is who has it, when somebody else does."""
    params = {"principal": call.principal, "key": wanted.key}
    row = params | {"call": call.id, "digest": wanted.digest, "created_at": call.created_at}
    if batch.fetch(CLAIM, row):
        return None
    holder = batch.fetch(CLAIMED, params)
    assert holder is not None, "a key that cannot be inserted is there"
    return Claimed(*holder)


def start(batch: Batch, call: Call, owner: str, at: int) -> bool:
    params = {"status": Status.RUNNING.value, "started_at": at, "waiting": None}
    params |= {"deadline": call.deadline, "sandbox": call.sandbox}
    return batch.execute(START, _cas(call, owner, Status.PENDING) | params) == 1


def close(batch: Batch, end: Call, was: Status, owner: str) -> bool:
    """Give a call its end, taken from `end`."""
    return (
        batch.execute(
            CLOSE,
            {
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
            },
        )
        == 1
    )


def wait(batch: Batch, call: Call, owner: str, waiting: Waiting | None) -> bool:
    return batch.execute(WAIT, _cas(call, owner, call.status) | {"waiting": waiting and waiting.value}) == 1


def settle(batch: Batch, call: Call, owner: str, effective: str, sealed: bytes | None) -> bool:
    """Keep the arguments as hooks and validation left them."""
    params = {"effective": effective, "sealed": sealed}
    return batch.execute(SETTLE, _cas(call, owner, Status.PENDING) | params) == 1


def request_cancel(batch: Batch, call: Call, owner: str, at: int) -> bool:
    return batch.execute(CANCEL, _cas(call, owner, Status.RUNNING) | {"at": at}) == 1


def adopt(batch: Batch, call: Call, owner: str) -> bool:
    """Take over a call that an earlier service left open."""
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


async def page(engine: AsyncEngine, wanted: CallFilter, limit: int) -> list[Call]:
    """The newest calls first."""
    async with engine.connect() as db:
        rows = (await db.execute(page_query(wanted, limit))).mappings().all()
    return [to_call(row) for row in rows]


def page_query(wanted: CallFilter, limit: int) -> Select[Any]:
    query = select(calls).order_by(calls.c.id.desc()).limit(limit)
    query = narrowed(query, calls.c.principal, calls.c.session, wanted.sight)
    if wanted.status is not None:  # said as the partial indexes say it: only then SQLite uses them
        query = query.where(calls.c.status == literal_column(f"'{wanted.status.value}'"))
        query = query if wanted.status.is_final else query.where(IS_OPEN)
    for name in ("principal", "session", "tool", "message_id"):
        if (value := getattr(wanted, name)) is not None:
            query = query.where(calls.c[name] == value)
    if wanted.since is not None:
        query = query.where(calls.c.id >= wanted.since)
    upper = [bound for bound in (wanted.until, wanted.before) if bound is not None]
    return query.where(calls.c.id < min(upper)) if upper else query


async def sweep(engine: AsyncEngine, wanted: CallFilter, size: int) -> AsyncIterator[list[Call]]:
    """All that match, oldest first, up to the newest of now.

    Each read looks at no more than `size` calls, matching or not, so that none holds the WAL for long.
    """
    newest, after = await newest_id(engine), wanted.since or ""
    while newest is not None:
        window = select(calls.c.id).where(calls.c.id > after, calls.c.id <= newest).order_by(calls.c.id).limit(size)
        async with engine.connect() as db:
            last = await db.scalar(select(func.max(window.subquery().c.id)))
            if last is None:
                return
            query = page_query(wanted, size).where(calls.c.id > after, calls.c.id <= last)
            rows = (await db.execute(query.order_by(None).order_by(calls.c.id))).mappings().all()
        if rows:
            yield [to_call(row) for row in rows]
        after = last


async def unfinished(engine: AsyncEngine) -> list[Call]:
    """What an earlier service left open, oldest first."""
    async with engine.connect() as db:
        return [to_call(row) for row in (await db.execute(unfinished_query())).mappings()]


def unfinished_query() -> Select[Any]:
    return select(calls).where(IS_OPEN).order_by(calls.c.id)


async def unwanted(engine: AsyncEngine) -> set[str]:
    """Which open calls somebody wished to cancel."""
    query = select(calls.c.id).where(IS_OPEN, calls.c.cancel_requested.is_not(None))
    async with engine.connect() as db:
        return set((await db.scalars(query)).all())


async def holders(engine: AsyncEngine, principal: str, keys: Collection[str]) -> dict[str, Claimed]:
    """Who has these Idempotency-Keys, as far as somebody has them."""
    table = idempotency_keys
    query = select(table.c.key, table.c.call, table.c.digest).where(
        table.c.principal == principal, table.c.key.in_(keys)
    )
    async with engine.connect() as db:
        return {key: Claimed(call, digest) for key, call, digest in (await db.execute(query)).all()}


async def newest_id(engine: AsyncEngine) -> str | None:
    async with engine.connect() as db:
        found: str | None = await db.scalar(select(calls.c.id).order_by(calls.c.id.desc()).limit(1))
    return found


def to_call(row: RowMapping) -> Call:
    skipped = ("owner", "cancel_requested")
    fields = {name: row[name] for name in COLUMNS if name not in skipped}
    fields["status"] = Status(fields["status"])
    fields["waiting"] = Waiting(fields["waiting"]) if fields["waiting"] else None
    return Call(**fields)


def _cas(call: Call, owner: str, was: Status) -> dict[str, Any]:
    return {"b_id": call.id, "was": was.value, "b_owner": owner}
