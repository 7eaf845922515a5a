"""What MCP servers listed last, kept, so that their tools are known before they are up."""

from collections.abc import Mapping

from sqlalchemy import bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.secrets import GLOBAL_PRINCIPAL
from app.store.db import Statement
from app.store.tables import mcp_catalogues
from app.store.writer import Batch

_insert = upsert(mcp_catalogues).values({c.name: bindparam(c.name) for c in mcp_catalogues.columns})

PUT = Statement(
    "mcp_catalogues.put",
    _insert.on_conflict_do_update(
        index_elements=[mcp_catalogues.c.principal, mcp_catalogues.c.server],
        set_={name: _insert.excluded[name] for name in ("body", "updated_at")},
    ),
)
DROP = Statement(
    "mcp_catalogues.drop",
    delete(mcp_catalogues).where(
        mcp_catalogues.c.principal == bindparam("b_principal"), mcp_catalogues.c.server == bindparam("b_server")
    ),
)

Kept = Mapping[tuple[str | None, str], str]
"""Catalogues by whose server it is (None: everybody's) and its name."""


def put(batch: Batch, server: str, owner: str | None, body: str, at: int) -> None:
    """Keep it, in place of what the server listed before."""
    batch.execute(PUT, {"principal": owner or GLOBAL_PRINCIPAL, "server": server, "body": body, "updated_at": at})


def drop(batch: Batch, server: str, owner: str | None) -> bool:
    return batch.execute(DROP, {"b_principal": owner or GLOBAL_PRINCIPAL, "b_server": server}) == 1


async def all_kept(engine: AsyncEngine) -> Kept:
    async with engine.connect() as db:
        rows = (await db.execute(select(mcp_catalogues))).mappings()
        return {
            (None if row["principal"] == GLOBAL_PRINCIPAL else row["principal"], row["server"]): row["body"]
            for row in rows
        }
