"""Changes: what clients of the door hear of when lists or resources are not what they were, in both eras.

Tools change for a principal when the log says so; resources and prompts when their server says so. Only clients of
principals who see the change hear of it.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from app.core.events import EventType
from app.core.util.json_codec import Raw
from app.dispatch.events.hub import EventHub
from app.mcp.client.interfaces import Change, ChangeFeed
from app.mcp.server.request_context import caller_of
from app.mcp.server.resources import prefixed
from app.mcp.server.sessions import UPDATED, ClientSession, ClientSessions, Leave
from app.store.events import EventFilter

if TYPE_CHECKING:
    from mcp.server.subscriptions import ListenHandler
    from mcp_types import SubscriptionsListenRequestParams

    from app.mcp.server.request_context import Ctx

LIST_CHANGED = "notifications/{kind}/list_changed"
A_WHILE = 3600.0
MOST_LISTENING = 1024
"""Streams of one principal; how many a key may have is another matter."""


class Listeners:
    """Those of one principal that listen in the way of 2026, as the SDK fans events out to them."""

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
            self._handler = ListenHandler(self, max_subscriptions=MOST_LISTENING)
        return self._handler

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        token = object()
        self._listeners[token] = listener
        return lambda: self._listeners.pop(token, None) and None

    async def publish(self, event: Any) -> None:
        self.tell(event)

    def tell(self, event: Any) -> None:
        for listener in list(self._listeners.values()):
            listener(event)

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()


class ChangeNotifier:
    """`at_end` is called when the log is closed: from then on nobody has anything to tell."""

    def __init__(self, hub: EventHub, bulletin: ChangeFeed, *, on_leave: Leave, at_end: Callable[[], None]) -> None:
        self.seats = ClientSessions(self._left)
        self._on_leave = on_leave
        self._hub = hub
        self._at_end = at_end
        self._crowds: dict[str, Listeners] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._unwatch = bulletin.watch(self._posted)

    def follow(self, principal: str) -> None:
        """Somebody of this principal is here."""
        if principal not in self._following:
            task = self._following[principal] = asyncio.create_task(self._follow(principal))
            task.add_done_callback(lambda done: self._followed(principal, done))

    def _followed(self, principal: str, done: "asyncio.Task[None]") -> None:
        if self._following.get(principal) is done:
            del self._following[principal]

    async def listen(self, ctx: "Ctx", params: "SubscriptionsListenRequestParams") -> Any:
        """One stream of 2026, for as long as its client listens."""
        principal = caller_of(ctx).key.principal
        crowd = self._crowds.setdefault(principal, Listeners())
        self.follow(principal)
        try:
            return await crowd.handler(ctx, params)
        finally:
            if crowd.is_empty and self._crowds.get(principal) is crowd:
                del self._crowds[principal]
            self._unfollow(principal)

    async def close(self) -> None:
        """End the streams; those that only wait for news end by themselves."""
        self._unwatch()
        for crowd in list(self._crowds.values()):
            crowd.close()
        tasks = list(self._following.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _left(self, seat: ClientSession) -> None:
        self._unfollow(seat.key.principal)
        await self._on_leave(seat)

    def _unfollow(self, principal: str) -> None:
        """Where nobody is here any more, nobody has to follow the log for them."""
        task = self._following.get(principal)
        if task is not None and principal not in self._crowds and not self.seats.of(principal):
            del self._following[principal]
            task.cancel()

    async def _follow(self, principal: str) -> None:
        """Tell of tools as the log does."""
        wanted = EventFilter(principal=principal, types=frozenset({EventType.TOOLS_CHANGED}))
        while True:
            listening = self._hub.subscribe(wanted, False)
            try:
                while frames := await listening.take(A_WHILE):
                    del frames
                    self._tell("tools", [principal])
            finally:
                self._hub.unsubscribe(listening)
            if listening.is_closed:
                self._at_end()
                return

    def _posted(self, change: Change) -> None:
        if change.kind == "tools":
            return  # the log tells of them when they can be called
        here = {*self._crowds, *self.seats.principals}
        told = [principal for principal in here if change.owner in (None, principal)]
        if change.uri is None:
            self._tell(change.kind, told)
        else:
            self._tell_updated(change.server, change.uri, told)

    def _tell(self, kind: str, principals: Iterable[str]) -> None:
        for principal in principals:
            for seat in self.seats.of(principal):
                seat.tell(LIST_CHANGED.format(kind=kind))
            if crowd := self._crowds.get(principal):
                crowd.tell(_event(kind))

    def _tell_updated(self, server: str, uri: str, principals: Iterable[str]) -> None:
        from mcp.server.subscriptions import ResourceUpdated

        for principal in principals:
            for seat in self.seats.of(principal):
                for shown, watched in seat.watched.items():
                    if watched.address == (server, uri):
                        seat.tell(UPDATED, shown)
            if crowd := self._crowds.get(principal):
                crowd.tell(ResourceUpdated(uri))
                crowd.tell(ResourceUpdated(prefixed(server, uri)))


def _event(kind: str) -> Any:
    from mcp.server import subscriptions

    events: Raw = {
        "tools": subscriptions.ToolsListChanged,
        "prompts": subscriptions.PromptsListChanged,
        "resources": subscriptions.ResourcesListChanged,
    }
    return events[kind]()
