"""Runs, kept. A message that comes again finds the run that was made of it."""

import json
from typing import Any

from sqlalchemy import RowMapping, bindparam, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.runs import Run, to_model_call
from app.store.db import Statement
from app.store.tables import runs
from app.store.writer import Batch

ADD = Statement(
    "runs.add",
    insert_or_ignore(runs)
    .values({c.name: bindparam(c.name) for c in runs.columns})
    .on_conflict_do_nothing()
    .returning(runs.c.id),
)
CORRECT = Statement("runs.correct", update(runs).where(runs.c.id == bindparam("b_id")).values(body=bindparam("body")))


def add(batch: Batch, run: Run, body: str) -> bool:
    """Keep a new run; `body` is what there is to it, as it may be kept. False: the message was run before."""
    row = {
        "id": run.id,
        "principal": run.principal,
        "session": run.session,
        "dialect": run.dialect,
        "fingerprint": run.fingerprint,
        "body": body,
        "created_at": run.created_at,
    }
    return batch.fetch(ADD, row) is not None


def correct(batch: Batch, run: Run, body: str) -> None:
    """Some of its calls turned out to be calls that were there already."""
    batch.execute(CORRECT, {"b_id": run.id, "body": body})


def body_of(run: Run) -> dict[str, Any]:
    """What a run is besides its row's own columns. Of its calls, only what their answers need."""
    return {"asked": [call.outline() for call in run.asked], "calls": run.calls, "previous": run.previous}


async def get(engine: AsyncEngine, id: str, principal: str | None) -> Run | None:
    query = select(runs).where(runs.c.id == id)
    if principal is not None:
        query = query.where(runs.c.principal == principal)
    return await _first(engine, query)


async def by_fingerprint(engine: AsyncEngine, principal: str, fingerprint: str) -> Run | None:
    return await _first(engine, select(runs).where(runs.c.principal == principal, runs.c.fingerprint == fingerprint))


async def _first(engine: AsyncEngine, query: Any) -> Run | None:
    async with engine.connect() as db:
        row = (await db.execute(query)).mappings().first()
    return to_run(row) if row else None


def to_run(row: RowMapping) -> Run:
    body = json.loads(row["body"])
    return Run(
        id=row["id"],
        principal=row["principal"],
        session=row["session"],
        dialect=row["dialect"],
        created_at=row["created_at"],
        fingerprint=row["fingerprint"],
        asked=tuple(to_model_call(view) for view in body["asked"]),
        calls=tuple(tuple(ids) for ids in body["calls"]),
        previous=body["previous"],
    )
