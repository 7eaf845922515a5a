"""Rules written at run time, kept."""

from sqlalchemy import bindparam, delete

from app.core.rules import RuleScope
from app.store.db import Statement
from app.store.tables import rules
from app.store.writer import Batch

DROP_OF_SESSION = Statement(
    "rules.drop_of_session",
    delete(rules).where(
        rules.c.scope == bindparam("scope"),
        rules.c.principal == bindparam("principal"),
        rules.c.session == bindparam("session"),
    ),
)


def drop_of_session(batch: Batch, principal: str, session: str) -> int:
    """Forget the rules that counted in one session only; the answer is how many there were."""
    params = {"scope": RuleScope.SESSION.value, "principal": principal, "session": session}
    return batch.execute(DROP_OF_SESSION, params)
