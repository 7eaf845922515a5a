"""Notifications that lists or resources changed, for clients of both protocol generations.

Changes of tools come from the event log, changes of resources and prompts from their MCP server. Only clients of
principals who see the change are notified.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from app.core.events import EventType
from app.core.util.json_codec import Raw
from app.dispatch.events.hub import EventHub
from app.mcp.client.interfaces import Change, ChangeFeed
from app.mcp.server.request_context import Ctx, caller_of
from app.mcp.server.resources import prefix_uri
from app.mcp.server.sessions import UPDATED, ClientSession, ClientSessions, OnSessionClosed
from app.store.events import EventFilter

if TYPE_CHECKING:
    from mcp.server.subscriptions import ListenHandler
    from mcp_types import SubscriptionsListenRequestParams

TAKE_SECONDS = 3600.0
MAX_LISTENERS = 1024
"""Streams of one principal. The limit per key is checked at the HTTP endpoint."""


class Listeners:
    """`subscriptions/listen` streams (2026-07-28) of one principal: the bus from which the SDK's handler fans out."""

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[[Any], None]] = {}
        self._handler: ListenHandler | None = None

    @property
    def is_empty(self) -> bool:
        return not self._listeners

    @property
    def handler(self) -> "ListenHandler":
        from mcp.server.subscriptions import ListenHandler

        if self._handler is None:
            self._handler = ListenHandler(self, max_subscriptions=MAX_LISTENERS)
        return self._handler

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        token = object()
        self._listeners[token] = listener
        return lambda: self._listeners.pop(token, None) and None

    async def publish(self, event: Any) -> None:
        self.send(event)

    def send(self, event: Any) -> None:
        for listener in list(self._listeners.values()):
            listener(event)

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()


class ChangeNotifier:
    """`on_log_closed` is called when the event log closes: no notification follows."""

    def __init__(
        self,
        hub: EventHub,
        change_feed: ChangeFeed,
        *,
        on_session_closed: OnSessionClosed,
        on_log_closed: Callable[[], None],
    ) -> None:
        self.sessions = ClientSessions(self._session_closed)
        self._on_session_closed = on_session_closed
        self._hub = hub
        self._on_log_closed = on_log_closed
        self._listeners: dict[str, Listeners] = {}
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._unwatch = change_feed.subscribe(self._on_change)

    def follow(self, principal: str) -> None:
        """Follow the event log for a principal with at least one client, if no task does yet."""
        if principal not in self._followers:
            task = self._followers[principal] = asyncio.create_task(self._follow(principal))
            task.add_done_callback(lambda done: self._follower_done(principal, done))

    def _follower_done(self, principal: str, done: "asyncio.Task[None]") -> None:
        if self._followers.get(principal) is done:
            del self._followers[principal]

    async def listen(self, ctx: Ctx, params: "SubscriptionsListenRequestParams") -> Any:
        """Serve one `subscriptions/listen` stream until its client closes it."""
        principal = caller_of(ctx).key.principal
        listeners = self._listeners.setdefault(principal, Listeners())
        self.follow(principal)
        try:
            return await listeners.handler(ctx, params)
        finally:
            if listeners.is_empty and self._listeners.get(principal) is listeners:
                del self._listeners[principal]
            self._unfollow(principal)

    async def close(self) -> None:
        """End the `subscriptions/listen` streams; those of sessions end with the SDK's manager."""
        self._unwatch()
        for listeners in list(self._listeners.values()):
            listeners.close()
        tasks = list(self._followers.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _session_closed(self, session: ClientSession) -> None:
        self._unfollow(session.key.principal)
        await self._on_session_closed(session)

    def _unfollow(self, principal: str) -> None:
        """Stop following the log for a principal whose last client is gone."""
        task = self._followers.get(principal)
        if task is not None and principal not in self._listeners and not self.sessions.of(principal):
            del self._followers[principal]
            task.cancel()

    async def _follow(self, principal: str) -> None:
        """Send `tools/list_changed` whenever the event log has such an event for the principal."""
        filter = EventFilter(principal=principal, types=frozenset({EventType.TOOLS_CHANGED}))
        while True:
            subscription = self._hub.subscribe(filter, False)
            try:
                while await subscription.take(TAKE_SECONDS):
                    self._notify_list_changed("tools", [principal])
            finally:
                self._hub.unsubscribe(subscription)
            if subscription.is_closed:
                self._on_log_closed()
                return

    def _on_change(self, change: Change) -> None:
        if change.kind == "tools":
            return  # the event log reports them once they can be called
        connected = {*self._listeners, *self.sessions.principals}
        principals = [principal for principal in connected if change.owner in (None, principal)]
        if change.uri is None:
            self._notify_list_changed(change.kind, principals)
        else:
            self._notify_updated(change.server, change.uri, principals)

    def _notify_list_changed(self, kind: str, principals: Iterable[str]) -> None:
        from mcp.server import subscriptions

        events: Raw = {
            "tools": subscriptions.ToolsListChanged,
            "prompts": subscriptions.PromptsListChanged,
            "resources": subscriptions.ResourcesListChanged,
        }
        for principal in principals:
            for session in self.sessions.of(principal):
                session.notify(f"notifications/{kind}/list_changed")
            if listeners := self._listeners.get(principal):
                listeners.send(events[kind]())

    def _notify_updated(self, server: str, uri: str, principals: Iterable[str]) -> None:
        from mcp.server.subscriptions import ResourceUpdated

        for principal in principals:
            for session in self.sessions.of(principal):
                for client_uri, subscription in session.subscriptions.items():
                    if subscription.address == (server, uri):
                        session.notify(UPDATED, client_uri)
            if listeners := self._listeners.get(principal):
                listeners.send(ResourceUpdated(uri))
                listeners.send(ResourceUpdated(prefix_uri(server, uri)))
