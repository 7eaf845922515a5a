"""Subscriptions to resources: kept while at least one client watches, and renewed on each new connection."""

import asyncio
import logging
from typing import NamedTuple
from weakref import WeakValueDictionary

from app.core.errors import CallError
from app.core.sessions import Session
from app.mcp.client.interfaces import Change, ChangeFeed, Connection, ConnectionLost, JsonRpcError, Upstream, Upstreams

log = logging.getLogger(__name__)

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
REQUEST_SECONDS = 60.0


class ResourceSubscription(NamedTuple):
    """A resource of a server; with a session, of that session's own connection."""

    owner: str | None
    server: str
    uri: str
    session: tuple[str, str] | None


class ResourceSubscriptions:
    """Counts the watchers; the first one subscribes at the server, the last one unsubscribes."""

    def __init__(self, upstreams: Upstreams, changes: ChangeFeed | None) -> None:
        self._upstreams = upstreams
        self._changes = changes
        self._counts: dict[ResourceSubscription, int] = {}
        self._renewals: dict[ResourceSubscription, asyncio.Task[None]] = {}
        self._locks: WeakValueDictionary[ResourceSubscription, asyncio.Lock] = WeakValueDictionary()

    async def add(self, upstream: Upstream, session: Session, uri: str) -> None:
        """Raises what `Upstream.get_connection` and `Connection.request` raise."""
        key = _key(upstream, session, uri)
        self._counts[key] = self._counts.get(key, 0) + 1
        try:
            async with self._lock(key):
                renewal = self._renewals.get(key)
                if renewal is None or renewal.done():
                    connection = await upstream.get_connection(session)
                    await connection.request("resources/subscribe", {"uri": uri}, timeout=REQUEST_SECONDS)
                    self._renewals[key] = asyncio.create_task(self._renew(key, session, connection))
        except BaseException:
            self._decrement(key)
            raise

    async def remove(self, upstream: Upstream, session: Session, uri: str) -> None:
        key = _key(upstream, session, uri)
        if not self._decrement(key):
            return
        async with self._lock(key):
            if key in self._counts:
                return  # another client watches it meanwhile
            if (renewal := self._renewals.pop(key, None)) is not None:
                renewal.cancel()
                await asyncio.wait([renewal])
                connection = await upstream.get_connection(session)
                await connection.request("resources/unsubscribe", {"uri": uri}, timeout=REQUEST_SECONDS)

    async def close(self) -> None:
        renewals = list(self._renewals.values())
        for renewal in renewals:
            renewal.cancel()
        if renewals:
            await asyncio.wait(renewals)

    def _lock(self, key: ResourceSubscription) -> asyncio.Lock:
        """Requests about one resource are sent one after the other."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    def _decrement(self, key: ResourceSubscription) -> bool:
        """Whether that was the last watcher."""
        count = self._counts.get(key, 0) - 1
        if count > 0:
            self._counts[key] = count
        return count <= 0 and self._counts.pop(key, None) is not None

    async def _renew(self, key: ResourceSubscription, session: Session, connection: Connection) -> None:
        while True:
            await asyncio.wait([connection.lost])
            renewed = await self._subscribe_again(key, session)
            if renewed is None:
                return
            connection = renewed
            if self._changes is not None:  # updates in between were missed
                self._changes.publish(Change("resources", key.server, key.owner, key.uri))

    async def _subscribe_again(self, key: ResourceSubscription, session: Session) -> Connection | None:
        """The next connection, with the subscription; None when the server was removed or refuses it."""
        pause = MIN_PAUSE_SECONDS
        while (upstream := self._upstreams.get(key.server, session.principal)) is not None:
            try:
                connection = await upstream.get_connection(session)
                await connection.request("resources/subscribe", {"uri": key.uri}, timeout=REQUEST_SECONDS)
                return connection
            except JsonRpcError as error:
                log.info("%s refuses to subscribe to %s again: %s", key.server, key.uri, error)
                return None
            except (CallError, ConnectionLost, TimeoutError):
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
        return None


def _key(upstream: Upstream, session: Session, uri: str) -> ResourceSubscription:
    server = upstream.definition
    own = (session.principal, session.id) if server.per_session else None
    return ResourceSubscription(upstream.owner, server.name, uri, own)
