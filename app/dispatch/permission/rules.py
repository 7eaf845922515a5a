"""Rules written at run time, mirrored in memory because every call is judged by them.

A change is committed first and applies then.
"""

from collections.abc import Callable, Iterable

from app.core.rules import StoredRule
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.sessions import Session
from app.store import rules
from app.store.writer import Writer

DEFAULT_WORKSPACE = "default"
"""The name of the service's own workspace in rules."""


def workspace_of(session: Session) -> str:
    """The session's workspace as rules name it."""
    return session.workspace or DEFAULT_WORKSPACE


class RuleStore:
    def __init__(self, writer: Writer, stored: Iterable[StoredRule]) -> None:
        self._writer = writer
        self._rules = {one.id: one for one in stored}
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Call this after each change."""
        self._watchers.append(changed)

    def get(self, id: str, principal: str | None) -> StoredRule | None:
        """One rule, if this principal may see it; None sees all."""
        rule = self._rules.get(id)
        return rule if rule and principal in (None, rule.principal) else None

    def listed(self, principal: str | None) -> list[StoredRule]:
        """The rules of one principal, or all, oldest first."""
        return [rule for rule in self._rules.values() if principal in (None, rule.principal)]

    def applying_to(self, principal: str) -> list[StoredRule]:
        """The rules that may apply to a principal's calls: those of all principals and its own, oldest first."""
        return [rule for rule in self._rules.values() if rule.principal in (GLOBAL_PRINCIPAL, principal)]

    async def add(self, rule: StoredRule) -> None:
        await self._writer.commit_and_apply(lambda batch: rules.add(batch, rule), lambda _: self.put(rule))

    async def drop(self, id: str) -> bool:
        """Remove a rule; returns whether it existed."""
        return await self._writer.commit_and_apply(lambda batch: rules.remove(batch, id), lambda _: self._forget(id))

    def put(self, *committed: StoredRule) -> None:
        """Apply rules that are committed."""
        self._rules |= {one.id: one for one in committed}
        self.notify()

    def forget_session(self, principal: str, session: str) -> None:
        """The session was deleted, and its rules with it."""
        self._rules = {
            id: one for id, one in self._rules.items() if (one.principal, one.session) != (principal, session)
        }
        self.notify()

    def _forget(self, id: str) -> None:
        self._rules.pop(id, None)
        self.notify()

    def notify(self) -> None:
        """Rules have changed: call every watcher."""
        for changed in self._watchers:
            changed()
