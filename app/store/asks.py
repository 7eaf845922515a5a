"""Asks, kept. An ask ends once: answered and expired are both a compare-and-set on open."""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping, bindparam, insert, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.asks import Answer, Ask, AskKind, AskStatus, Decision
from app.core.rules import Need, RuleScope, to_rule
from app.store.db import Statement
from app.store.tables import asks
from app.store.visibility import SessionFilter, narrowed
from app.store.writer import Batch

COLUMNS = tuple(c.name for c in asks.columns)
ADD = Statement("asks.add", insert(asks).values({name: bindparam(name) for name in COLUMNS}))
END = Statement(
    "asks.end",
    update(asks)
    .where(asks.c.id == bindparam("b_id"), asks.c.status == bindparam("was"))
    .values(
        status=bindparam("status"),
        answer=bindparam("answer"),
        reason=bindparam("reason"),
        ended_at=bindparam("ended_at"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskFilter:
    """Which asks to list. `principal` None means everybody's."""

    principal: str | None
    status: AskStatus | None = None
    session: str | None = None
    call: str | None = None
    before: str | None = None
    sight: SessionFilter | None = None


def add(batch: Batch, ask: Ask, body: str) -> None:
    """Keep a new ask; `body` is what it shows, as it may be kept."""
    batch.execute(
        ADD,
        {
            "id": ask.id,
            "call": ask.call,
            "principal": ask.principal,
            "session": ask.session,
            "tool": ask.tool,
            "kind": ask.kind.value,
            "digest": ask.digest,
            "status": ask.status.value,
            "body": body,
            "answer": None,
            "reason": None,
            "created_at": ask.created_at,
            "expires_at": ask.expires_at,
            "ended_at": None,
        },
    )


def end(batch: Batch, ask: Ask) -> bool:
    """Give an open ask the end that `ask` has; False when it has one already."""
    params = {
        "b_id": ask.id,
        "was": AskStatus.OPEN.value,
        "status": ask.status.value,
        "answer": None if ask.answer is None else json.dumps(ask.answer.view()),
        "reason": ask.reason,
        "ended_at": ask.ended_at,
    }
    return batch.execute(END, params) == 1


async def get(engine: AsyncEngine, id: str, principal: str | None) -> Ask | None:
    query = select(asks).where(asks.c.id == id)
    if principal is not None:
        query = query.where(asks.c.principal == principal)
    async with engine.connect() as db:
        row = (await db.execute(query)).mappings().first()
    return to_ask(row) if row else None


async def of_call(engine: AsyncEngine, call: str) -> list[Ask]:
    """All asks of a call, oldest first."""
    async with engine.connect() as db:
        rows = (await db.execute(select(asks).where(asks.c.call == call).order_by(asks.c.id))).mappings().all()
    return [to_ask(row) for row in rows]


async def open_by_call(engine: AsyncEngine) -> dict[str, Ask]:
    """The open ask of each call that waits; a call waits for one at a time."""
    query = select(asks).where(asks.c.status == literal_column(f"'{AskStatus.OPEN.value}'"))
    async with engine.connect() as db:
        return {row["call"]: to_ask(row) for row in (await db.execute(query)).mappings()}


async def page(engine: AsyncEngine, wanted: AskFilter, limit: int) -> list[Ask]:
    """The newest asks first."""
    query = select(asks).order_by(asks.c.id.desc()).limit(limit)
    query = narrowed(query, asks.c.principal, asks.c.session, wanted.sight)
    if wanted.status is not None:  # said as the partial index says it
        query = query.where(asks.c.status == literal_column(f"'{wanted.status.value}'"))
    for name in ("principal", "session", "call"):
        if (value := getattr(wanted, name)) is not None:
            query = query.where(asks.c[name] == value)
    if wanted.before is not None:
        query = query.where(asks.c.id < wanted.before)
    async with engine.connect() as db:
        return [to_ask(row) for row in (await db.execute(query)).mappings()]


def to_ask(row: RowMapping) -> Ask:
    body = json.loads(row["body"])
    return Ask(
        id=row["id"],
        call=row["call"],
        principal=row["principal"],
        session=row["session"],
        tool=row["tool"],
        kind=AskKind(row["kind"]),
        digest=row["digest"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        needs=tuple(Need(**need) for need in body["needs"]),
        always=tuple(to_rule(rule) for rule in body["always"]),
        questions=body["questions"],
        metadata=body["metadata"],
        status=AskStatus(row["status"]),
        answer=_answer(json.loads(row["answer"])) if row["answer"] else None,
        reason=row["reason"],
        ended_at=row["ended_at"],
    )


def _answer(given: dict[str, Any]) -> Answer:
    return Answer(
        decision=Decision(given["decision"]) if given["decision"] else None,
        message=given["message"],
        rules=tuple(to_rule(rule) for rule in given["rules"]),
        scope=RuleScope(given["scope"]) if given["scope"] else None,
        content=given["content"],
        action=given["action"],
        principal=given["principal"],
        key=given["key"],
    )
