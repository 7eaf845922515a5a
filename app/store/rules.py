"""Rules written at run time, kept."""

from sqlalchemy import RowMapping, bindparam, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.rules import Action, Rule, RuleScope, StoredRule
from app.store.db import Statement
from app.store.tables import rules
from app.store.writer import Batch

ADD = Statement("rules.add", insert(rules).values({c.name: bindparam(c.name) for c in rules.columns}))
DROP = Statement("rules.drop", delete(rules).where(rules.c.id == bindparam("b_id")))
DROP_OF_SESSION = Statement(
    "rules.drop_of_session",
    delete(rules).where(
        rules.c.scope == bindparam("scope"),
        rules.c.principal == bindparam("b_principal"),
        rules.c.session == bindparam("b_session"),
    ),
)


def add(batch: Batch, kept: StoredRule) -> None:
    batch.execute(
        ADD,
        {
            "id": kept.id,
            "principal": kept.principal,
            "scope": kept.scope.value,
            "session": kept.session,
            "workspace": kept.workspace,
            "permission": kept.rule.permission,
            "pattern": kept.rule.pattern,
            "action": kept.rule.action.value,
            "ask": kept.ask,
            "created_by": kept.created_by,
            "created_at": kept.created_at,
        },
    )


def drop(batch: Batch, id: str) -> bool:
    return batch.execute(DROP, {"b_id": id}) == 1


def drop_of_session(batch: Batch, principal: str, session: str) -> int:
    """Rules of a session go with it; the answer is how many there were."""
    params = {"scope": RuleScope.SESSION.value, "b_principal": principal, "b_session": session}
    return batch.execute(DROP_OF_SESSION, params)


async def all_kept(engine: AsyncEngine) -> list[StoredRule]:
    """Every rule, oldest first: of those that match, the newest is the last."""
    async with engine.connect() as db:
        return [_kept(row) for row in (await db.execute(select(rules).order_by(rules.c.id))).mappings()]


def _kept(row: RowMapping) -> StoredRule:
    return StoredRule(
        id=row["id"],
        principal=row["principal"],
        rule=Rule(row["permission"], row["pattern"], Action(row["action"])),
        scope=RuleScope(row["scope"]),
        session=row["session"],
        workspace=row["workspace"],
        ask=row["ask"],
        created_by=row["created_by"],
        created_at=row["created_at"],
    )
