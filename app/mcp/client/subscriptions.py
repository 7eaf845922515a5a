"""Listening: in the newer era a server tells what changed only while it is asked to.

What is asked for is one request that stays open. It is made anew when it ends; what happened in between is not told
again, so that everything it was about is told as changed once.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import ConnectionLost, JsonRpcError, Log, ServerInfo, ServerRequestHandler
from app.mcp.client.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, JsonRpcPeer, OnTold

KINDS = ("tools", "resources", "prompts")
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
PAUSE, MOST_PAUSE = 0.5, 60.0
LASTS = 30.0
WATCH_SECONDS = 10.0

Ask = Callable[[Raw, OnTold], Coroutine[Any, Any, Raw]]


class Listening:
    """All that one link listens to: the lists that may change, and single resources."""

    def __init__(self, peer: JsonRpcPeer, ask: Ask, guest: ServerRequestHandler, journal: Log) -> None:
        self._peer = peer
        self._ask = ask
        self._guest = guest
        self._log = journal
        self._turn = asyncio.Lock()
        self._uris: frozenset[str] = frozenset()
        self._lists: _Subscription | None = None
        self._watched: _Subscription | None = None

    def begin(self, hello: ServerInfo) -> None:
        """Listen to the lists that the server says may change."""
        wanted = {f"{kind}ListChanged": True for kind in KINDS if hello.has(kind, "listChanged")}
        if wanted:
            told: list[tuple[str, Raw]] = [
                (f"notifications/{kind}/list_changed", {}) for kind in KINDS if f"{kind}ListChanged" in wanted
            ]
            self._lists = self._subscribe(wanted, told)

    async def watch(self, uri: str) -> None:
        """Listen to a resource, too. Raises `JsonRpcError`, `ConnectionLost`, `TimeoutError`."""
        async with self._turn:
            await self._change(self._uris | {uri})

    async def unwatch(self, uri: str) -> None:
        async with self._turn:
            await self._change(self._uris - {uri})

    async def close(self) -> None:
        for one in (self._lists, self._watched):
            if one is not None:
                await one.close()

    async def _change(self, uris: frozenset[str]) -> None:
        """The new subscription stands before the old one ends, so that nothing is missed."""
        if uris == self._uris:
            return
        before, after = self._watched, None
        if uris:
            named = sorted(uris)
            told: list[tuple[str, Raw]] = [("notifications/resources/updated", {"uri": uri}) for uri in named]
            after = self._subscribe({"resourceSubscriptions": named}, told)
            try:
                async with asyncio.timeout(WATCH_SECONDS):
                    await asyncio.shield(after.stands)
            except BaseException:
                await after.close()
                raise
        self._uris, self._watched = uris, after
        if before is not None:
            await before.close()

    def _subscribe(self, wanted: Raw, told: list[tuple[str, Raw]]) -> "_Subscription":
        return _Subscription(self._peer, lambda on_told: self._ask(wanted, on_told), told, (self._guest, self._log))


class _Subscription:
    """One request that stays open. `stands` is done when the server has taken it for the first time."""

    def __init__(
        self,
        peer: JsonRpcPeer,
        ask: Callable[[OnTold], Coroutine[Any, Any, Raw]],
        missed: list[tuple[str, Raw]],
        to: tuple[ServerRequestHandler, Log],
    ) -> None:
        self.stands: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._peer = peer
        self._ask = ask
        self._missed = missed
        self._guest, self._log = to
        self._is_again = False
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self.stands.cancel():
            self.stands.exception()

    async def _keep(self) -> None:
        pause, loop = PAUSE, asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._ask(self._told)
                self._fail(ConnectionLost("The server ended the subscription at once."))
            except JsonRpcError as no:
                self._fail(no)
                if no.code in (METHOD_NOT_FOUND, INVALID_REQUEST):
                    self._log.write(f"The server does not tell what changes: {no.message}\n")
                    return
            except ConnectionLost as error:
                self._fail(error)
            if self._peer.lost.done():
                return
            pause = PAUSE if loop.time() - began > LASTS else min(pause * 2, MOST_PAUSE)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            self._is_again = True

    def _told(self, method: str, params: Raw) -> None:
        if method != ACKNOWLEDGED:
            self._guest.told(method, params, None)
            return
        if not self.stands.done():
            self.stands.set_result(None)
        if self._is_again:
            self._is_again = False
            for missed, about in self._missed:
                self._guest.told(missed, dict(about), None)

    def _fail(self, error: Exception) -> None:
        if not self.stands.done():
            self.stands.set_exception(error)
            self.stands.exception()  # who waits for it gets it; nobody has to
