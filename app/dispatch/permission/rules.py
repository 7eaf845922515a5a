"""The rule book: every rule written at run time, mirrored in memory because each call is judged by it.

Only this service writes it. A change is committed first and counts then.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

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
    def __init__(self, writer: Writer, kept: Iterable[StoredRule]) -> None:
        self._writer = writer
        self._kept = {one.id: one for one in kept}
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Call this after each change."""
        self._watchers.append(changed)

    def get(self, id: str, principal: str | None) -> StoredRule | None:
        """One rule, if this principal may see it; None sees all."""
        kept = self._kept.get(id)
        return kept if kept and principal in (None, kept.principal) else None

    def listed(self, principal: str | None) -> list[StoredRule]:
        """The rules of one principal, or all, oldest first."""
        return [kept for kept in self._kept.values() if principal in (None, kept.principal)]

    def counting_for(self, principal: str) -> list[StoredRule]:
        """The rules that may count for a principal's calls: everybody's and its own, oldest first."""
        return [kept for kept in self._kept.values() if kept.principal in (GLOBAL_PRINCIPAL, principal)]

    async def add(self, kept: StoredRule) -> None:
        change = self._writer.submit(lambda batch: rules.add(batch, kept))
        change.add_done_callback(lambda done: self.put(kept) if _succeeded(done) else None)
        await asyncio.shield(change)

    async def drop(self, id: str) -> bool:
        """Take a rule back; the answer is whether it was there."""
        change = self._writer.submit(lambda batch: rules.remove(batch, id))
        change.add_done_callback(lambda done: self._forget(id) if _succeeded(done) else None)
        return await asyncio.shield(change)

    def put(self, *kept: StoredRule) -> None:
        """These are committed."""
        self._kept |= {one.id: one for one in kept}
        self.tell()

    def forget_session(self, principal: str, session: str) -> None:
        """The session is gone, and its rules with it."""
        self._kept = {id: one for id, one in self._kept.items() if (one.principal, one.session) != (principal, session)}
        self.tell()

    def _forget(self, id: str) -> None:
        self._kept.pop(id, None)
        self.tell()

    def tell(self) -> None:
        """Something that calls are judged by has changed."""
        for changed in self._watchers:
            changed()


def _succeeded(done: "asyncio.Future[Any]") -> bool:
    return not done.cancelled() and done.exception() is None
