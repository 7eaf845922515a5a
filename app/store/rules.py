"""The rules table: permission rules written at run time."""

from sqlalchemy import bindparam, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.rules import RuleScope, StoredRule, to_rule
from app.store.tables import rules
from app.store.writer import Batch, Statement, parameters, row_of

ADD = Statement("rules.add", insert(rules).values(parameters(rules)))
REMOVE = Statement("rules.remove", delete(rules).where(rules.c.id == bindparam("b_id")))
REMOVE_OF_SESSION = Statement(
    "rules.remove_of_session",
    delete(rules).where(
        rules.c.scope == bindparam("scope"),
        rules.c.principal == bindparam("b_principal"),
        rules.c.session == bindparam("b_session"),
    ),
)


def add(batch: Batch, stored: StoredRule) -> None:
    batch.execute(ADD, row_of(stored, rules, **stored.rule.view()))


def remove(batch: Batch, id: str) -> bool:
    return batch.execute(REMOVE, {"b_id": id}) == 1


def remove_of_session(batch: Batch, principal: str, session: str) -> int:
    """Delete the rules of a session; returns their number."""
    params = {"scope": RuleScope.SESSION.value, "b_principal": principal, "b_session": session}
    return batch.execute(REMOVE_OF_SESSION, params)


async def load_all(engine: AsyncEngine) -> list[StoredRule]:
    """Every rule, oldest first: of those that match, the newest is the last."""
    loaded = list[StoredRule]()
    async with engine.connect() as db:
        for row in (await db.execute(select(rules).order_by(rules.c.id))).mappings():
            fields = {name: value for name, value in row.items() if name not in ("permission", "pattern", "action")}
            loaded.append(StoredRule(**fields | {"rule": to_rule(dict(row)), "scope": RuleScope(row["scope"])}))
    return loaded
