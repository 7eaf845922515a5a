"""Sessions, kept."""

import json
from typing import Any

from sqlalchemy import RowMapping, bindparam, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.networks import to_policy
from app.core.rules import to_rule
from app.core.sessions import DEFAULT_SESSION, Session
from app.store.db import Statement
from app.store.tables import sessions
from app.store.writer import Batch

ADD = Statement(
    "sessions.add",
    insert_or_ignore(sessions).values({c.name: bindparam(c.name) for c in sessions.columns}).on_conflict_do_nothing(),
)
KEEP_PLAN = Statement(
    "sessions.keep_plan",
    update(sessions)
    .where(sessions.c.principal == bindparam("b_principal"), sessions.c.id == bindparam("b_id"))
    .values(plan=bindparam("plan")),
)


def add_default(batch: Batch, principal: str, at: int) -> None:
    add(batch, Session(principal, DEFAULT_SESSION, created_at=at, updated_at=at))


def add(batch: Batch, session: Session) -> bool:
    """Keep a new session; False when there is one of this id."""
    return batch.execute(ADD, _row(session)) == 1


def keep_plan(batch: Batch, session: Session, plan: str) -> None:
    batch.execute(KEEP_PLAN, {"b_principal": session.principal, "b_id": session.id, "plan": plan})


async def get(engine: AsyncEngine, principal: str, id: str) -> Session | None:
    query = select(sessions).where(sessions.c.principal == principal, sessions.c.id == id)
    async with engine.connect() as db:
        row = (await db.execute(query)).mappings().first()
    return _session(row) if row else None


async def plan_of(engine: AsyncEngine, session: Session) -> str | None:
    query = select(sessions.c.plan).where(sessions.c.principal == session.principal, sessions.c.id == session.id)
    async with engine.connect() as db:
        found: str | None = await db.scalar(query)
    return found


def _row(session: Session) -> dict[str, Any]:
    policy = session.network_policy
    return {
        "principal": session.principal,
        "id": session.id,
        "agent": session.agent,
        "model": session.model,
        "plan": None,
        "created_at": session.created_at,
        "workspace": session.workspace,
        "approval": session.approval,
        "rules": json.dumps([rule.view() for rule in session.rules]),
        "is_trusted": int(session.is_trusted),
        "network_policy": None if policy is None else json.dumps(policy.view()),
        "env": json.dumps(dict(session.env)),
        "labels": json.dumps(dict(session.labels)),
        "updated_at": session.updated_at,
    }


def _session(row: RowMapping) -> Session:
    policy = row["network_policy"]
    return Session(
        principal=row["principal"],
        id=row["id"],
        agent=row["agent"],
        model=row["model"],
        workspace=row["workspace"],
        approval=row["approval"],
        rules=tuple(to_rule(rule) for rule in json.loads(row["rules"] or "[]")),
        is_trusted=bool(row["is_trusted"]),
        network_policy=to_policy(json.loads(policy)) if policy else None,
        env=json.loads(row["env"] or "{}"),
        labels=json.loads(row["labels"] or "{}"),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
