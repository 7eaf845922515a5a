"""The tools table: definitions of tools registered at run time."""

from dataclasses import dataclass

from sqlalchemy import bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.secrets import GLOBAL_PRINCIPAL, owner_of
from app.store.tables import tools
from app.store.writer import Batch, Statement, parameters, put_statement, row_of

ADD = Statement("tools.add", insert_or_ignore(tools).values(parameters(tools)).on_conflict_do_nothing())
PUT = put_statement("tools.put", tools, "kind", "definition", "updated_at")
REMOVE = Statement(
    "tools.remove",
    delete(tools).where(tools.c.principal == bindparam("b_principal"), tools.c.name == bindparam("b_name")),
)


@dataclass(frozen=True, slots=True)
class StoredTool:
    """A definition as JSON text, and the principal it belongs to (None: all)."""

    owner: str | None
    name: str
    kind: str
    definition: str


def add(batch: Batch, tool: StoredTool, at: int) -> bool:
    """Store a new tool; False when its owner has one of this name."""
    return batch.execute(ADD, _row(tool, at)) == 1


def put(batch: Batch, tool: StoredTool, at: int) -> None:
    """Store a tool, replacing the owner's tool of this name."""
    batch.execute(PUT, _row(tool, at))


def remove(batch: Batch, name: str, owner: str | None) -> bool:
    return batch.execute(REMOVE, {"b_principal": owner or GLOBAL_PRINCIPAL, "b_name": name}) == 1


async def load_all(engine: AsyncEngine) -> list[StoredTool]:
    async with engine.connect() as db:
        rows = (await db.execute(select(tools).order_by(tools.c.principal, tools.c.name))).mappings()
        return [StoredTool(owner_of(row["principal"]), row["name"], row["kind"], row["definition"]) for row in rows]


def _row(tool: StoredTool, at: int) -> dict[str, object]:
    return row_of(tool, tools, principal=tool.owner or GLOBAL_PRINCIPAL, created_at=at, updated_at=at)
