"""The runs table. A model message that is sent again finds its run by fingerprint."""

import json
from typing import Any

from sqlalchemy import RowMapping, bindparam, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.runs import Run, to_model_call
from app.store.tables import runs
from app.store.writer import Batch, Statement, parameters, row_of

ADD = Statement(
    "runs.add",
    insert_or_ignore(runs).values(parameters(runs)).on_conflict_do_nothing().returning(runs.c.id),
)
CORRECT = Statement("runs.correct", update(runs).where(runs.c.id == bindparam("b_id")).values(body=bindparam("body")))


def add(batch: Batch, run: Run, body: str) -> bool:
    """Store a new run; `body` is its redacted JSON. False: the message was run before."""
    return batch.fetch(ADD, row_of(run, runs, body=body)) is not None


def correct(batch: Batch, run: Run, body: str) -> None:
    """Replace the body, when some of the run's calls turned out to exist already."""
    batch.execute(CORRECT, {"b_id": run.id, "body": body})


def body_of(run: Run) -> dict[str, Any]:
    """The fields of a run that have no column; of its calls only what their results need."""
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
    fields: dict[str, Any] = dict(row)
    body = json.loads(fields.pop("body"))
    return Run(
        **fields,
        asked=tuple(to_model_call(view) for view in body["asked"]),
        calls=tuple(tuple(ids) for ids in body["calls"]),
        previous=body["previous"],
    )
