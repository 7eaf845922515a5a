"""Sessions, kept."""

import json
from typing import Any

from sqlalchemy import RowMapping, Select, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.network_policy import to_policy
from app.core.rules import to_rule
from app.core.sessions import DEFAULT_SESSION, Profile, Session
from app.store import visibility
from app.store.db import Statement
from app.store.tables import sessions
from app.store.visibility import SessionFilter
from app.store.writer import Batch

ADD = Statement(
    "sessions.add",
    insert_or_ignore(sessions).values({c.name: bindparam(c.name) for c in sessions.columns}).on_conflict_do_nothing(),
)
_mine = (sessions.c.principal == bindparam("b_principal"), sessions.c.id == bindparam("b_id"))
_LASTING = ("principal", "id", "workspace", "plan", "created_at")
"""What a change leaves as it is."""
REPLACE = Statement(
    "sessions.replace",
    update(sessions)
    .where(*_mine, sessions.c.updated_at == bindparam("was"))
    .values({c.name: bindparam(c.name) for c in sessions.columns if c.name not in _LASTING}),
)
REMOVE = Statement("sessions.remove", delete(sessions).where(*_mine))
KEEP_PLAN = Statement("sessions.keep_plan", update(sessions).where(*_mine).values(plan=bindparam("plan")))


def add_default(batch: Batch, principal: str, at: int) -> None:
    add(batch, Session(principal, DEFAULT_SESSION, created_at=at, updated_at=at))


def add(batch: Batch, session: Session) -> bool:
    """Keep a new session; False when there is one of this id."""
    return batch.execute(ADD, _row(session)) == 1


def replace(batch: Batch, session: Session, was: int) -> bool:
    """Keep a session as it is now, if it was last changed at `was`. Its workspace and its plan stay."""
    return batch.execute(REPLACE, _row(session) | _key(session) | {"was": was}) == 1


def remove(batch: Batch, session: Session) -> bool:
    """Forget a session, not what happened in it."""
    return batch.execute(REMOVE, _key(session)) == 1


def keep_plan(batch: Batch, session: Session, plan: str) -> None:
    batch.execute(KEEP_PLAN, _key(session) | {"plan": plan})


async def get(engine: AsyncEngine, principal: str, id: str) -> Session | None:
    query = select(sessions).where(sessions.c.principal == principal, sessions.c.id == id)
    async with engine.connect() as db:
        row = (await db.execute(query)).mappings().first()
    return _session(row) if row else None


async def page(
    engine: AsyncEngine,
    principal: str | None,
    after: tuple[str, str] | None,
    limit: int,
    sight: SessionFilter | None = None,
) -> list[Session]:
    """A principal's sessions by id, or everybody's (None) by principal and id, behind one of them."""
    async with engine.connect() as db:
        rows = (await db.execute(page_query(principal, after, limit, sight))).mappings().all()
    return [_session(row) for row in rows]


def page_query(
    principal: str | None, after: tuple[str, str] | None, limit: int, sight: SessionFilter | None = None
) -> Select[Any]:
    owner, id = sessions.c.principal, sessions.c.id
    query = _seen(select(sessions), principal, sight).order_by(owner, id).limit(limit)
    if after is not None:
        query = query.where(or_(owner > after[0], and_(owner == after[0], id > after[1])))
    return query


async def within(engine: AsyncEngine, principal: str | None, sight: SessionFilter) -> set[tuple[str, str]]:
    """The principal and the id of each session that is seen."""
    query = _seen(select(sessions.c.principal, sessions.c.id), principal, sight)
    async with engine.connect() as db:
        return {(owner, id) for owner, id in (await db.execute(query)).all()}


async def roots(engine: AsyncEngine, but_in: str) -> list[str]:
    """The workspaces of all sessions, each once, but those in one folder and the service's own."""
    prefix, root = but_in.rstrip("/") + "/", sessions.c.workspace
    query = select(root).distinct().where(root.is_not(None), func.substr(root, 1, len(prefix)) != prefix)
    async with engine.connect() as db:
        return list((await db.scalars(query)).all())


def _seen(query: Select[Any], principal: str | None, sight: SessionFilter | None) -> Select[Any]:
    if principal is not None:
        query = query.where(sessions.c.principal == principal)
    if sight is None:
        return query
    query = query.where(visibility.is_named(sessions.c.id, sight))
    return query.where(visibility.lies_within(sight)) if sight.workspaces else query


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
        "profile": session.profile,
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
        profile=Profile(row["profile"]) if row["profile"] else None,
        env=json.loads(row["env"] or "{}"),
        labels=json.loads(row["labels"] or "{}"),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _key(session: Session) -> dict[str, str]:
    return {"b_principal": session.principal, "b_id": session.id}
