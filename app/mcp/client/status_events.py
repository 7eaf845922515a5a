"""Tellings: events of how servers are, for everybody who sees them. What only repeats itself is not told again."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from app.core.errors import StoreError
from app.core.events import Event, EventType
from app.core.mcp_servers import ServerState
from app.core.ports import Clock
from app.core.sessions import DEFAULT_SESSION
from app.core.util.clocks import rfc3339
from app.core.util.json_codec import dumps
from app.mcp.client.upstream import UpstreamServer
from app.store.writer import Batch, Writer

AGAIN_SECONDS = 60.0
"""A server that fails and fails in the same way is told of once in this time."""

Told = tuple[ServerState, str | None, int]
"""A state, what is wrong, and how many tools there are."""


class StatusEvents:
    """Writes `mcp.status` events. `told` says who is to be told of a server of this owner."""

    def __init__(self, writer: Writer, clock: Clock, told: Callable[[str | None], Iterable[str]]) -> None:
        self._writer = writer
        self._clock = clock
        self._told = told
        self._last: WeakKeyDictionary[UpstreamServer, tuple[Told, float]] = WeakKeyDictionary()

    def tell(self, served: UpstreamServer) -> None:
        """Tell how it is now, unless that was told."""
        if not served.is_told:
            return
        status, now = served.status, self._clock.monotonic()
        new = (status.state, served.error, len(served.offered))
        last, at = self._last.get(served, (None, 0.0))
        if last is not None and _is_no_news(last, new, now - at):
            return
        self._last[served] = (new, now)
        self._write(served, self._clock.now())

    def _write(self, served: UpstreamServer, at: int) -> None:
        if self._writer.is_closed:
            return
        data, principals = dumps(_data(served)).decode(), sorted(self._told(served.owner))

        def write(batch: Batch) -> None:
            for principal in principals:
                batch.publish(Event(0, EventType.MCP_STATUS, None, principal, DEFAULT_SESSION, at, data))

        self._writer.submit(write).add_done_callback(_forget)


def _is_no_news(last: Told, new: Told, seconds: float) -> bool:
    """That it tries again is no news as long as nothing comes of it."""
    if last == new:
        return new[0] is not ServerState.FAILED or seconds < AGAIN_SECONDS
    return last[0] is ServerState.FAILED and new[0] is ServerState.STARTING


def _data(served: UpstreamServer) -> dict[str, Any]:
    status = served.status
    return {
        "server": served.definition.name,
        "owner": served.owner,
        "state": status.state.value,
        "error": served.error,
        "next_retry_at": None if status.next_retry_at is None else rfc3339(status.next_retry_at),
        "tools": len(served.offered),
    }


def _forget(done: "asyncio.Future[None]") -> None:
    """That the store takes nothing is known and told elsewhere."""
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, StoreError):
        raise error
