"""The asks table. An ask ends once: to answer or expire it is a compare-and-set on its status `open`."""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping, bindparam, insert, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.asks import Answer, Ask, AskKind, AskStatus, Decision
from app.core.rules import Need, RuleScope, to_rule
from app.store.tables import asks
from app.store.visibility import SessionFilter, only_visible
from app.store.writer import Batch, Statement, parameters, row_of

ADD = Statement("asks.add", insert(asks).values(parameters(asks)))
END = Statement(
    "asks.end",
    update(asks)
    .where(asks.c.id == bindparam("b_id"), asks.c.status == bindparam("was"))
    .values({name: bindparam(name) for name in ("status", "answer", "reason", "ended_at")}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskFilter:
    """Which asks to list. `principal` None means all principals."""

    principal: str | None
    status: AskStatus | None = None
    session: str | None = None
    call: str | None = None
    before: str | None = None
    session_filter: SessionFilter | None = None


def add(batch: Batch, ask: Ask, body: str) -> None:
    """Store a new ask; `body` is its redacted JSON."""
    batch.execute(ADD, row_of(ask, asks, body=body, answer=None, reason=None, ended_at=None))


def end(batch: Batch, ask: Ask) -> bool:
    """End an open ask with the status, answer and reason of `ask`; False when it is not open."""
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
    """The open ask of each waiting call; a call waits for one ask at a time."""
    query = select(asks).where(asks.c.status == literal_column(f"'{AskStatus.OPEN.value}'"))
    async with engine.connect() as db:
        return {row["call"]: to_ask(row) for row in (await db.execute(query)).mappings()}


async def page(engine: AsyncEngine, where: AskFilter, limit: int) -> list[Ask]:
    """The newest asks first."""
    query = select(asks).order_by(asks.c.id.desc()).limit(limit)
    query = only_visible(query, asks.c.principal, asks.c.session, where.session_filter)
    if where.status is not None:  # written like the partial index, or SQLite does not use it
        query = query.where(asks.c.status == literal_column(f"'{where.status.value}'"))
    for name in ("principal", "session", "call"):
        if (value := getattr(where, name)) is not None:
            query = query.where(asks.c[name] == value)
    if where.before is not None:
        query = query.where(asks.c.id < where.before)
    async with engine.connect() as db:
        return [to_ask(row) for row in (await db.execute(query)).mappings()]


def to_ask(row: RowMapping) -> Ask:
    fields: dict[str, Any] = dict(row)
    body = json.loads(fields.pop("body"))
    return Ask(
        **fields
        | {
            "kind": AskKind(row["kind"]),
            "status": AskStatus(row["status"]),
            "answer": _to_answer(json.loads(row["answer"])) if row["answer"] else None,
            "needs": tuple(Need(**need) for need in body["needs"]),
            "always": tuple(to_rule(rule) for rule in body["always"]),
            "questions": body["questions"],
            "metadata": body["metadata"],
        }
    )


def _to_answer(view: dict[str, Any]) -> Answer:
    return Answer(
        **view
        | {
            "decision": Decision(view["decision"]) if view["decision"] else None,
            "rules": tuple(to_rule(rule) for rule in view["rules"]),
            "scope": RuleScope(view["scope"]) if view["scope"] else None,
        }
    )
