"""Sessions: every one by its principal and its id, the recent ones in memory. What is shown is committed.

Each change is written with its `session.changed` event in one transaction, and
remembered when that is committed. A session that is being deleted is not found
any more from the first moment on, so that no call can slip in behind those
that are stopped.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.events import Event, EventType
from app.core.ports import Clock
from app.core.principals import Key
from app.core.sessions import DEFAULT_SESSION, InvalidSession, Session
from app.core.util.json_codec import dumps
from app.dispatch.permission.rules import RuleStore
from app.store import rules as stored_rules
from app.store import sessions as stored
from app.store.visibility import SessionFilter
from app.store.writer import Batch, Writer

MAX_CACHED = 10_000
DELETED = "The session was deleted."

Name = tuple[str, str]
"""A principal and the id of one of its sessions."""


class LiveSessionFilter:
    """Which sessions lie in some folders, kept current for as long as a stream uses it."""

    __slots__ = ("__weakref__", "_filter", "_names", "_sees")

    def __init__(self, session_filter: SessionFilter, sees: Callable[[Session], bool]) -> None:
        self._filter = session_filter
        self._sees = sees
        self._names: set[Name] = set()

    def __call__(self, principal: str, id: str) -> bool:
        """A default session is always in the service's own workspace, and may be younger than this."""
        return self._filter.sees_default_workspace if id == DEFAULT_SESSION else (principal, id) in self._names

    def fill(self, names: set[Name]) -> None:
        self._names |= names

    def update(self, session: Session) -> None:
        if self._sees(session):
            self._names.add(_name_of(session))

    def forget(self, name: Name) -> None:
        self._names.discard(name)


class Sessions:
    """Nothing else writes sessions, except the default one that is created with a principal.

    `departures` counts the deletions that began, so that code that looks up several sessions can see one meanwhile.
    `on_delete`: called in order with the principal and id of a session that is deleted, to end what runs for it.
    """

    def __init__(self, engine: AsyncEngine, writer: Writer, clock: Clock, rules: RuleStore, home: str) -> None:
        self.departures = 0
        self.on_delete: list[Callable[[str, str], Awaitable[None]]] = []
        self._engine = engine
        self._writer = writer
        self._clock = clock
        self._rules = rules
        self._home = home
        self._known: OrderedDict[Name, Session] = OrderedDict()
        self._making: set[Name] = set()
        self._closing: set[Name] = set()
        self._loading: dict[Name, object] = {}
        self._live_filters: WeakSet[LiveSessionFilter] = WeakSet()

    def peek(self, principal: str, id: str) -> Session | None:
        """A session that is in memory; one that is not may be there all the same."""
        name = (principal, id)
        found = self._known.get(name)
        if found is None or name in self._closing:
            return None
        self._known.move_to_end(name)
        return found

    async def find(self, principal: str, id: str) -> Session | None:
        """A session, if there is one. The default one is always there."""
        if (principal, id) in self._closing:
            return None
        found = self.peek(principal, id) or await self._load((principal, id))
        if (principal, id) in self._closing:
            return None
        return found or (Session(principal, id) if id == DEFAULT_SESSION else None)

    async def seen(self, key: Key, id: str, principal: str | None = None) -> Session | None:
        """A session, if this key may see it: one of its principal's, or of a given one's."""
        found = await self.find(principal or key.principal, id)
        return found if found is not None and self.shows(key, found) else None

    def shows(self, key: Key, session: Session) -> bool:
        """Whether what a key is bound to lets it see this session."""
        bounds = key.bounds
        return bounds.allows_session(session.id) and bounds.allows_workspace(session.workspace or self._home)

    async def shows_records(self, key: Key, principal: str, id: str) -> bool:
        """Whether a key sees what happened in a session, which may be deleted; then its workspace is unknown."""
        if not key.bounds.allows_session(id):
            return False
        return not key.bounds.workspaces or await self.seen(key, id, principal) is not None

    def session_filter(self, key: Key) -> SessionFilter | None:
        """What narrows the lists this key sees; None when nothing does."""
        bounds = key.bounds
        if not bounds.sessions and not bounds.workspaces:
            return None
        sees_default_workspace = bounds.allows_workspace(self._home)
        return SessionFilter(
            sessions=bounds.sessions, workspaces=bounds.workspaces, sees_default_workspace=sees_default_workspace
        )

    async def live_filter(self, key: Key) -> SessionFilter | None:
        """The same for what comes as it happens, in sessions that are there and in those still to come."""
        session_filter = self.session_filter(key)
        if session_filter is None or not session_filter.workspaces:
            return session_filter
        live_filter = LiveSessionFilter(session_filter, lambda session: self.shows(key, session))
        self._live_filters.add(live_filter)
        live_filter.fill(await stored.visible_keys(self._engine, key.sees, session_filter))
        return replace(session_filter, is_in_workspaces=live_filter)

    async def create(self, session: Session) -> bool:
        """Keep a new session; False when there is one of this id."""
        name = _name_of(session)
        if await self.find(*name) is not None or name in self._making or name in self._closing:
            return False
        self._making.add(name)
        for live_filter in self._live_filters:
            live_filter.update(session)  # before its event is published, so that streams see it
        event = self._event(session, session.view())

        def add(batch: Batch) -> bool:
            if not stored.add(batch, session):
                return False
            batch.publish(event)
            return True

        change = self._writer.submit(add)
        change.add_done_callback(lambda done: self._made(done, session))
        # Shielded: a submitted change is committed even if the request has ended.
        return await asyncio.shield(change)

    async def change(self, session: Session, edit: Callable[[Session], Session]) -> Session | None:
        """Edit a session as it stands when the change is written; None when it is gone by then."""
        before: Session | None = session
        while before is not None:
            after = replace(edit(before), updated_at=max(self._clock.now(), before.updated_at + 1))
            if await self._replace(before, after):
                return after
            before = await self._load(_name_of(session))  # another change was committed first
        return None

    async def delete(self, session: Session) -> bool:
        """Stop what runs in a session, then delete it; False when it is deleted already, or being deleted."""
        if session.is_default:
            raise InvalidSession("The default session is always there; it can be changed, not deleted.")
        name = _name_of(session)
        if name in self._closing:
            return False
        self._closing.add(name)
        self.departures += 1
        try:
            for end in self.on_delete:
                await end(*name)
        except BaseException:
            self._closing.discard(name)
            raise
        event = self._event(session, {"deleted": True})

        def remove(batch: Batch) -> bool:
            if not stored.remove(batch, session):
                return False
            stored_rules.remove_of_session(batch, *name)
            batch.publish(event)
            return True

        change = self._writer.submit(remove)
        change.add_done_callback(lambda done: self._removed(done, name))
        return await asyncio.shield(change)

    async def _replace(self, before: Session, after: Session) -> bool:
        event = self._event(after, after.view())

        def write(batch: Batch) -> bool:
            if before.is_default:
                stored.add(batch, before)  # the default session may have no row yet
            if not stored.replace(batch, after, before.updated_at):
                return False
            batch.publish(event)
            return True

        def apply(is_replaced: bool) -> None:
            if is_replaced:
                self._changed(after)
                self._rules.notify()

        return await self._writer.commit_and_apply(write, apply)

    async def _load(self, name: Name) -> Session | None:
        """From the store into memory, unless a change overtakes the reading: then it is read again."""
        while True:
            mark = self._loading.setdefault(name, object())
            try:
                found = await stored.get(self._engine, *name)
            except BaseException:
                self._loading.pop(name, None)
                raise
            if self._loading.get(name) is mark:
                del self._loading[name]
                if found is not None:
                    self._remember(found)
                return found
            if (known := self._known.get(name)) is not None:
                return known

    def _remember(self, session: Session) -> None:
        name = _name_of(session)
        self._known[name] = session
        self._known.move_to_end(name)
        if len(self._known) > MAX_CACHED:
            self._known.popitem(last=False)

    def _made(self, done: "asyncio.Future[bool]", session: Session) -> None:
        self._making.discard(_name_of(session))
        if _is_true(done):
            self._changed(session)
        else:
            self._leave(_name_of(session))

    def _changed(self, session: Session) -> None:
        """Futures are resolved in the order of their commits, so what is remembered changes in that order too."""
        self._loading.pop(_name_of(session), None)
        self._remember(session)

    def _removed(self, done: "asyncio.Future[bool]", name: Name) -> None:
        if _is_true(done):
            self._leave(name)
            self._rules.forget_session(*name)
        self._closing.discard(name)

    def _leave(self, name: Name) -> None:
        self._loading.pop(name, None)
        self._known.pop(name, None)
        for live_filter in self._live_filters:
            live_filter.forget(name)

    def _event(self, session: Session, data: dict[str, Any]) -> Event:
        text = dumps(data).decode()
        return Event(0, EventType.SESSION_CHANGED, None, session.principal, session.id, self._clock.now(), text)


def _name_of(session: Session) -> Name:
    return session.principal, session.id


def _is_true(done: "asyncio.Future[bool]") -> bool:
    return not done.cancelled() and done.exception() is None and done.result()
