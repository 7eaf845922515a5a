"""Watches: resources that somebody wants to hear of, as long as anybody does, whatever becomes of connections."""

import asyncio
import logging
from typing import NamedTuple
from weakref import WeakValueDictionary

from app.core.errors import CallError
from app.core.sessions import Session
from app.mcp.client.interfaces import Change, ChangeFeed, Connection, ConnectionLost, JsonRpcError, Upstream, Upstreams

log = logging.getLogger(__name__)

SOONEST, LATEST = 0.5, 30.0
SECONDS = 60.0
"""What a server has to say that it heard."""


class ResourceSubscription(NamedTuple):
    """Which resource, at whose server; with a session, at the one that is started for it."""

    owner: str | None
    server: str
    uri: str
    session: tuple[str, str] | None


class ResourceSubscriptions:
    """Counts who watches, and tells the server of the first and the last. A new link is told anew."""

    def __init__(self, upstreams: Upstreams, bulletin: ChangeFeed | None) -> None:
        self._upstreams = upstreams
        self._bulletin = bulletin
        self._counts: dict[ResourceSubscription, int] = {}
        self._keepers: dict[ResourceSubscription, asyncio.Task[None]] = {}
        self._turns: WeakValueDictionary[ResourceSubscription, asyncio.Lock] = WeakValueDictionary()

    async def add(self, upstream: Upstream, session: Session, uri: str) -> None:
        """Raises what `Upstream.link` and `Link.request` raise."""
        watched = _watched(upstream, session, uri)
        self._counts[watched] = self._counts.get(watched, 0) + 1
        try:
            async with self._turn(watched):
                keeper = self._keepers.get(watched)
                if keeper is None or keeper.done():
                    link = await upstream.link(session)
                    await link.request("resources/subscribe", {"uri": uri}, seconds=SECONDS)
                    self._keepers[watched] = asyncio.create_task(self._keep(watched, session, link))
        except BaseException:
            self._leave(watched)
            raise

    async def remove(self, upstream: Upstream, session: Session, uri: str) -> None:
        watched = _watched(upstream, session, uri)
        if not self._leave(watched):
            return
        async with self._turn(watched):
            if watched in self._counts:
                return  # somebody else came meanwhile
            if (keeper := self._keepers.pop(watched, None)) is not None:
                keeper.cancel()
                await asyncio.wait([keeper])
                link = await upstream.link(session)
                await link.request("resources/unsubscribe", {"uri": uri}, seconds=SECONDS)

    async def close(self) -> None:
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        if keepers:
            await asyncio.wait(keepers)

    def _turn(self, watched: ResourceSubscription) -> asyncio.Lock:
        """One after the other says what is wanted of a resource, so that nobody relies on what did not come about."""
        turn = self._turns.get(watched)
        if turn is None:
            turn = self._turns[watched] = asyncio.Lock()
        return turn

    def _leave(self, watched: ResourceSubscription) -> bool:
        """Whether that was the last one."""
        left = self._counts.get(watched, 0) - 1
        if left > 0:
            self._counts[watched] = left
        return left <= 0 and self._counts.pop(watched, None) is not None

    async def _keep(self, watched: ResourceSubscription, session: Session, link: Connection) -> None:
        while True:
            await asyncio.wait([link.lost])
            found = await self._again(watched, session)
            if found is None:
                return
            link = found
            if self._bulletin is not None:  # what happened meanwhile nobody told
                self._bulletin.post(Change("resources", watched.server, watched.owner, watched.uri))

    async def _again(self, watched: ResourceSubscription, session: Session) -> Connection | None:
        """The next link, told what is watched; None when the server is not there any more."""
        pause = SOONEST
        while (upstream := self._upstreams.get(watched.server, session.principal)) is not None:
            try:
                link = await upstream.link(session)
                await link.request("resources/subscribe", {"uri": watched.uri}, seconds=SECONDS)
                return link
            except JsonRpcError as said:
                log.info("%s does not tell of %s any more: %s", watched.server, watched.uri, said)
                return None
            except (CallError, ConnectionLost, TimeoutError):
                await asyncio.sleep(pause)
                pause = min(pause * 2, LATEST)
        return None


def _watched(upstream: Upstream, session: Session, uri: str) -> ResourceSubscription:
    server = upstream.definition
    own = (session.principal, session.id) if server.per_session else None
    return ResourceSubscription(upstream.owner, server.name, uri, own)
