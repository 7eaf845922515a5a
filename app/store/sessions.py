"""The sessions table."""

import json
from typing import Any

from sqlalchemy import RowMapping, Select, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.network_policy import to_policy
from app.core.rules import to_rule
from app.core.sessions import DEFAULT_SESSION, Profile, Session
from app.store import visibility
from app.store.tables import sessions
from app.store.visibility import SessionFilter
from app.store.writer import Batch, Statement, parameters, row_of

ADD = Statement("sessions.add", insert_or_ignore(sessions).values(parameters(sessions)).on_conflict_do_nothing())
_is_key = (sessions.c.principal == bindparam("b_principal"), sessions.c.id == bindparam("b_id"))
_CONSTANT = ("principal", "id", "workspace", "plan", "created_at")
"""Columns that `replace` does not change."""
REPLACE = Statement(
    "sessions.replace",
    update(sessions)
    .where(*_is_key, sessions.c.updated_at == bindparam("was"))
    .values({c.name: bindparam(c.name) for c in sessions.columns if c.name not in _CONSTANT}),
)
REMOVE = Statement("sessions.remove", delete(sessions).where(*_is_key))
SAVE_PLAN = Statement("sessions.save_plan", update(sessions).where(*_is_key).values(plan=bindparam("plan")))


def add_default(batch: Batch, principal: str, at: int) -> None:
    add(batch, Session(principal, DEFAULT_SESSION, created_at=at, updated_at=at))


def add(batch: Batch, session: Session) -> bool:
    """Store a new session; False when the id is in use."""
    return batch.execute(ADD, _row(session)) == 1


def replace(batch: Batch, session: Session, was: int) -> bool:
    """Store a changed session, if its stored `updated_at` is `was`. Its workspace and its plan do not change."""
    return batch.execute(REPLACE, _row(session) | _key(session) | {"was": was}) == 1


def remove(batch: Batch, session: Session) -> bool:
    """Delete a session, but not its calls and events."""
    return batch.execute(REMOVE, _key(session)) == 1


def save_plan(batch: Batch, session: Session, plan: str) -> None:
    batch.execute(SAVE_PLAN, _key(session) | {"plan": plan})


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
    session_filter: SessionFilter | None = None,
) -> list[Session]:
    """The sessions of a principal, or of all (None), by principal and id, after one of them."""
    async with engine.connect() as db:
        rows = (await db.execute(page_query(principal, after, limit, session_filter))).mappings().all()
    return [_session(row) for row in rows]


def page_query(
    principal: str | None, after: tuple[str, str] | None, limit: int, session_filter: SessionFilter | None = None
) -> Select[Any]:
    owner, id = sessions.c.principal, sessions.c.id
    query = _visible(select(sessions), principal, session_filter).order_by(owner, id).limit(limit)
    if after is not None:
        query = query.where(or_(owner > after[0], and_(owner == after[0], id > after[1])))
    return query


async def visible_keys(
    engine: AsyncEngine, principal: str | None, session_filter: SessionFilter
) -> set[tuple[str, str]]:
    """The principal and the id of each visible session."""
    query = _visible(select(sessions.c.principal, sessions.c.id), principal, session_filter)
    async with engine.connect() as db:
        return {(owner, id) for owner, id in (await db.execute(query)).all()}


async def workspaces(engine: AsyncEngine, not_in: str) -> list[str]:
    """The workspaces of all sessions, each once, except those in one directory and the service's own."""
    prefix, root = not_in.rstrip("/") + "/", sessions.c.workspace
    query = select(root).distinct().where(root.is_not(None), func.substr(root, 1, len(prefix)) != prefix)
    async with engine.connect() as db:
        return list((await db.scalars(query)).all())


def _visible(query: Select[Any], principal: str | None, session_filter: SessionFilter | None) -> Select[Any]:
    if principal is not None:
        query = query.where(sessions.c.principal == principal)
    if session_filter is None:
        return query
    query = query.where(visibility.matches_patterns(sessions.c.id, session_filter))
    return query.where(visibility.lies_in_workspaces(session_filter)) if session_filter.workspaces else query


async def plan_of(engine: AsyncEngine, session: Session) -> str | None:
    query = select(sessions.c.plan).where(sessions.c.principal == session.principal, sessions.c.id == session.id)
    async with engine.connect() as db:
        plan: str | None = await db.scalar(query)
    return plan


def _row(session: Session) -> dict[str, Any]:
    policy = session.network_policy
    return row_of(
        session,
        sessions,
        plan=None,
        rules=json.dumps([rule.view() for rule in session.rules]),
        network_policy=None if policy is None else json.dumps(policy.view()),
        env=json.dumps(dict(session.env)),
        labels=json.dumps(dict(session.labels)),
    )


def _session(row: RowMapping) -> Session:
    fields: dict[str, Any] = dict(row)
    del fields["plan"]
    policy = row["network_policy"]
    return Session(
        **fields
        | {
            "rules": tuple(to_rule(rule) for rule in json.loads(row["rules"] or "[]")),
            "is_trusted": bool(row["is_trusted"]),
            "network_policy": to_policy(json.loads(policy)) if policy else None,
            "profile": Profile(row["profile"]) if row["profile"] else None,
            "env": json.loads(row["env"] or "{}"),
            "labels": json.loads(row["labels"] or "{}"),
        }
    )


def _key(session: Session) -> dict[str, str]:
    return {"b_principal": session.principal, "b_id": session.id}
