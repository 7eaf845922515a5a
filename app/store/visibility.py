"""Sights: which sessions a bound key sees, asked in memory and in SQL."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, exists, false, func, or_, true

from app.core.rules import expression, matches
from app.store.tables import sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """`sessions` are patterns, `workspaces` are folders; what is empty hides nothing.

    `has_home`: sessions in the service's own workspace are seen. `within` answers whether a session lies in the
    folders, for those who look at events as they come; without it, none does.
    """

    sessions: tuple[str, ...] = ()
    workspaces: tuple[str, ...] = ()
    has_home: bool = False
    within: Callable[[str, str], bool] | None = None

    def lets_pass(self, principal: str, session: str) -> bool:
        if self.sessions and not any(matches(pattern, session) for pattern in self.sessions):
            return False
        return not self.workspaces or (self.within is not None and self.within(principal, session))


def narrowed(
    query: Select[Any], principal: ColumnElement[str], session: ColumnElement[str], sight: SessionFilter | None
) -> Select[Any]:
    """Only rows of sessions that are seen. Who sees by folders does not see what is left of deleted sessions."""
    if sight is None:
        return query
    query = query.where(is_named(session, sight))
    if not sight.workspaces:
        return query
    is_its = and_(sessions.c.principal == principal, sessions.c.id == session)
    return query.where(exists().where(is_its, lies_within(sight)))


def is_named(session: ColumnElement[str], sight: SessionFilter) -> ColumnElement[bool]:
    """Whether the patterns name a session; with the same expressions as in memory."""
    if not sight.sessions:
        return true()
    return or_(*(session.regexp_match(rf"\A(?:{expression(pattern)})\Z") for pattern in sight.sessions))


def lies_within(sight: SessionFilter) -> ColumnElement[bool]:
    """Whether a session's row says that it lies in one of the folders."""
    root = sessions.c.workspace
    found: list[ColumnElement[bool]] = [root.is_(None)] if sight.has_home else []
    for folder in sight.workspaces:
        prefix = folder.rstrip("/") + "/"
        found += [root == folder, func.substr(root, 1, len(prefix)) == prefix]
    return or_(false(), *found)
