"""Tools that were registered at run time, kept as they were asked for."""

from dataclasses import dataclass

from sqlalchemy import RowMapping, bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.secrets import GLOBAL_PRINCIPAL
from app.store.db import Statement
from app.store.tables import tools
from app.store.writer import Batch

_insert = upsert(tools).values({c.name: bindparam(c.name) for c in tools.columns})
_mine = (tools.c.principal == bindparam("b_principal"), tools.c.name == bindparam("b_name"))

ADD = Statement("tools.add", _insert.on_conflict_do_nothing())
PUT = Statement(
    "tools.put",
    _insert.on_conflict_do_update(
        index_elements=[tools.c.principal, tools.c.name],
        set_={name: _insert.excluded[name] for name in ("kind", "definition", "updated_at")},
    ),
)
DROP = Statement("tools.drop", delete(tools).where(*_mine))


@dataclass(frozen=True, slots=True)
class KeptTool:
    """A definition as it is kept: JSON text, with whose tool it makes (None: everybody's)."""

    owner: str | None
    name: str
    kind: str
    definition: str


def add(batch: Batch, kept: KeptTool, at: int) -> bool:
    """Keep a new one; False when its owner has one of this name."""
    return batch.execute(ADD, _row(kept, at)) == 1


def put(batch: Batch, kept: KeptTool, at: int) -> None:
    """Keep it, in place of the old one if there is one."""
    batch.execute(PUT, _row(kept, at))


def drop(batch: Batch, name: str, owner: str | None) -> bool:
    return batch.execute(DROP, {"b_principal": _principal(owner), "b_name": name}) == 1


async def all_kept(engine: AsyncEngine) -> list[KeptTool]:
    async with engine.connect() as db:
        query = select(tools).order_by(tools.c.principal, tools.c.name)
        return [_kept(row) for row in (await db.execute(query)).mappings()]


def _kept(row: RowMapping) -> KeptTool:
    owner = None if row["principal"] == GLOBAL_PRINCIPAL else row["principal"]
    return KeptTool(owner, row["name"], row["kind"], row["definition"])


def _row(kept: KeptTool, at: int) -> dict[str, object]:
    return {
        "principal": _principal(kept.owner),
        "name": kept.name,
        "kind": kept.kind,
        "definition": kept.definition,
        "created_at": at,
        "updated_at": at,
    }


def _principal(owner: str | None) -> str:
    return GLOBAL_PRINCIPAL if owner is None else owner
