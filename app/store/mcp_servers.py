"""MCP servers that were added at run time, kept as they were asked for."""

from dataclasses import dataclass

from sqlalchemy import RowMapping, bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.secrets import GLOBAL_PRINCIPAL
from app.store.db import Statement
from app.store.tables import mcp_servers
from app.store.writer import Batch

_insert = upsert(mcp_servers).values({c.name: bindparam(c.name) for c in mcp_servers.columns})
_mine = (mcp_servers.c.principal == bindparam("b_principal"), mcp_servers.c.name == bindparam("b_name"))

PUT = Statement(
    "mcp_servers.put",
    _insert.on_conflict_do_update(
        index_elements=[mcp_servers.c.principal, mcp_servers.c.name],
        set_={name: _insert.excluded[name] for name in ("definition", "updated_at")},
    ),
)
DROP = Statement("mcp_servers.drop", delete(mcp_servers).where(*_mine))


@dataclass(frozen=True, slots=True)
class StoredServer:
    """A definition as it is kept: JSON text, with whose server it is (None: everybody's)."""

    owner: str | None
    name: str
    definition: str


def put(batch: Batch, kept: StoredServer, at: int) -> None:
    """Keep it, in place of the old one if there is one."""
    row = {"principal": kept.owner or GLOBAL_PRINCIPAL, "name": kept.name, "definition": kept.definition}
    batch.execute(PUT, row | {"created_at": at, "updated_at": at})


def drop(batch: Batch, name: str, owner: str | None) -> bool:
    return batch.execute(DROP, {"b_principal": owner or GLOBAL_PRINCIPAL, "b_name": name}) == 1


async def all_kept(engine: AsyncEngine) -> list[StoredServer]:
    async with engine.connect() as db:
        query = select(mcp_servers).order_by(mcp_servers.c.principal, mcp_servers.c.name)
        return [_kept(row) for row in (await db.execute(query)).mappings()]


def _kept(row: RowMapping) -> StoredServer:
    owner = None if row["principal"] == GLOBAL_PRINCIPAL else row["principal"]
    return StoredServer(owner, row["name"], row["definition"])
