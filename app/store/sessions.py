"""Sessions, kept."""

from sqlalchemy import bindparam, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncEngine

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
    empty = {"agent": None, "model": None, "plan": None}
    batch.execute(ADD, {"principal": principal, "id": DEFAULT_SESSION, "created_at": at} | empty)


def keep_plan(batch: Batch, session: Session, plan: str) -> None:
    batch.execute(KEEP_PLAN, {"b_principal": session.principal, "b_id": session.id, "plan": plan})


async def get(engine: AsyncEngine, principal: str, id: str) -> Session | None:
    query = select(sessions).where(sessions.c.principal == principal, sessions.c.id == id)
    async with engine.connect() as db:
        row = (await db.execute(query)).mappings().first()
    return Session(row["principal"], row["id"], row["agent"], row["model"]) if row else None


async def plan_of(engine: AsyncEngine, session: Session) -> str | None:
    query = select(sessions.c.plan).where(sessions.c.principal == session.principal, sessions.c.id == session.id)
    async with engine.connect() as db:
        found: str | None = await db.scalar(query)
    return found
