"""Which sessions a bound key may see, as a check in memory and as a condition in SQL."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, exists, false, func, or_, true

from app.core.rules import expression, matches
from app.store.tables import sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """The sessions that match the patterns in `sessions` and lie in `workspaces`; an empty tuple allows all."""

    sessions: tuple[str, ...] = ()
    workspaces: tuple[str, ...] = ()
    sees_default_workspace: bool = False
    """Sessions in the service's own workspace are visible too."""
    is_in_workspaces: Callable[[str, str], bool] | None = None
    """For live events: whether a session of a principal lies in the workspaces; None: no session does."""

    def matches(self, principal: str, session: str) -> bool:
        if self.sessions and not any(matches(pattern, session) for pattern in self.sessions):
            return False
        return not self.workspaces or (self.is_in_workspaces is not None and self.is_in_workspaces(principal, session))


def only_visible(
    query: Select[Any], principal: ColumnElement[str], session: ColumnElement[str], visible: SessionFilter | None
) -> Select[Any]:
    """Only rows of visible sessions. With `workspaces`, rows of deleted sessions are not visible."""
    if visible is None:
        return query
    query = query.where(matches_patterns(session, visible))
    if not visible.workspaces:
        return query
    is_same = and_(sessions.c.principal == principal, sessions.c.id == session)
    return query.where(exists().where(is_same, lies_in_workspaces(visible)))


def matches_patterns(session: ColumnElement[str], visible: SessionFilter) -> ColumnElement[bool]:
    """Uses the same regular expressions as `SessionFilter.matches`."""
    if not visible.sessions:
        return true()
    return or_(*(session.regexp_match(rf"\A(?:{expression(pattern)})\Z") for pattern in visible.sessions))


def lies_in_workspaces(visible: SessionFilter) -> ColumnElement[bool]:
    root = sessions.c.workspace
    conditions: list[ColumnElement[bool]] = [root.is_(None)] if visible.sees_default_workspace else []
    for folder in visible.workspaces:
        prefix = folder.rstrip("/") + "/"
        conditions += [root == folder, func.substr(root, 1, len(prefix)) == prefix]
    return or_(false(), *conditions)
