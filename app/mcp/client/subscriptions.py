"""`subscriptions/listen` of 2026-07-28: a server sends change notifications only while such a request is open.

The request is sent again when it ends. What changed in between is unknown, so everything it covers is then reported
as changed once.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import ConnectionLost, JsonRpcError, Log, ServerInfo, ServerRequestHandler
from app.mcp.client.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, JsonRpcPeer, OnNotification

KINDS = ("tools", "resources", "prompts")
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 60.0
STABLE_SECONDS = 30.0
SUBSCRIBE_SECONDS = 10.0

Listen = Callable[[Raw, OnNotification], Coroutine[Any, Any, Raw]]
Notification = tuple[str, Raw]


class Subscriptions:
    """What one connection listens to: the lists that may change, and single resources."""

    def __init__(self, peer: JsonRpcPeer, listen: Listen, handler: ServerRequestHandler, log: Log) -> None:
        self._peer = peer
        self._listen = listen
        self._handler = handler
        self._log = log
        self._lock = asyncio.Lock()
        self._uris: frozenset[str] = frozenset()
        self._lists: _Subscription | None = None
        self._resources: _Subscription | None = None

    def start(self, server_info: ServerInfo) -> None:
        """Listen to the lists that the server says may change."""
        if kinds := [kind for kind in KINDS if server_info.has(kind, "listChanged")]:
            self._lists = self._subscribe(
                {f"{kind}ListChanged": True for kind in kinds},
                [(f"notifications/{kind}/list_changed", {}) for kind in kinds],
            )

    async def watch(self, uri: str) -> None:
        """Listen to a resource, too. Raises `JsonRpcError`, `ConnectionLost`, `TimeoutError`."""
        async with self._lock:
            await self._set_uris(self._uris | {uri})

    async def unwatch(self, uri: str) -> None:
        async with self._lock:
            await self._set_uris(self._uris - {uri})

    async def close(self) -> None:
        for subscription in (self._lists, self._resources):
            if subscription is not None:
                await subscription.close()

    async def _set_uris(self, uris: frozenset[str]) -> None:
        """The new subscription is active before the old one ends, so that no update is missed."""
        if uris == self._uris:
            return
        old, new = self._resources, None
        if uris:
            updates: list[Notification] = [("notifications/resources/updated", {"uri": uri}) for uri in sorted(uris)]
            new = self._subscribe({"resourceSubscriptions": sorted(uris)}, updates)
            try:
                async with asyncio.timeout(SUBSCRIBE_SECONDS):
                    await asyncio.shield(new.active)
            except BaseException:
                await new.close()
                raise
        self._uris, self._resources = uris, new
        if old is not None:
            await old.close()

    def _subscribe(self, notifications: Raw, covered: list[Notification]) -> "_Subscription":
        listen = partial(self._listen, notifications)
        return _Subscription(self._peer, listen, covered, handler=self._handler, log=self._log)


class _Subscription:
    """One open request. `active` is done when the server has acknowledged it for the first time."""

    def __init__(
        self,
        peer: JsonRpcPeer,
        listen: Callable[[OnNotification], Coroutine[Any, Any, Raw]],
        covered: list[Notification],
        *,
        handler: ServerRequestHandler,
        log: Log,
    ) -> None:
        self.active: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._peer = peer
        self._listen = listen
        self._covered = covered
        self._handler = handler
        self._log = log
        self._is_repeated = False
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self.active.cancel():
            self.active.exception()

    async def _run(self) -> None:
        pause, loop = MIN_PAUSE_SECONDS, asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                await self._listen(self._on_notification)
                self._fail(ConnectionLost("The server ended the subscription at once."))
            except JsonRpcError as error:
                self._fail(error)
                if error.code in (METHOD_NOT_FOUND, INVALID_REQUEST):
                    self._log.write(f"The server does not support subscriptions/listen: {error.message}\n")
                    return
            except ConnectionLost as error:
                self._fail(error)
            if self._peer.lost.done():
                return
            pause = MIN_PAUSE_SECONDS if loop.time() - started > STABLE_SECONDS else min(pause * 2, MAX_PAUSE_SECONDS)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            self._is_repeated = True

    def _on_notification(self, method: str, params: Raw) -> None:
        if method != ACKNOWLEDGED:
            self._handler.on_notification(method, params, None)
            return
        if not self.active.done():
            self.active.set_result(None)
        if self._is_repeated:
            self._is_repeated = False
            for missed, missed_params in self._covered:
                self._handler.on_notification(missed, dict(missed_params), None)

    def _fail(self, error: Exception) -> None:
        if not self.active.done():
            self.active.set_exception(error)
            self.active.exception()  # marks it as retrieved; `watch` may not wait for it
