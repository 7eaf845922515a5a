"""Statuses: how a connection to a server is, when it is tried again, and what a call is told that finds none."""

import random
from dataclasses import dataclass

from app.core.errors import ToolUnavailable
from app.core.mcp_servers import ServerState
from app.core.ports import Clock
from app.core.util.clocks import rfc3339


class Backoff:
    """Delays that double, each with some chance in it, so that not all servers come back in one moment."""

    def __init__(self, first: float = 0.2, most: float = 30.0) -> None:
        self.most = most
        self._first = first
        self._times = 0

    def next(self) -> float:
        delay = min(self._first * 2.0 ** min(self._times, 32), self.most)
        self._times += 1
        return delay * random.uniform(0.8, 1.2)

    def reset(self) -> None:
        self._times = 0

    @property
    def is_fresh(self) -> bool:
        """Whether the next delay is the first one."""
        return self._times == 0


@dataclass(frozen=True, slots=True)
class Status:
    """How a connection is, and since when. `next_retry_at` is set while the next try is waited for."""

    state: ServerState
    since: int
    error: str | None = None
    next_retry_at: int | None = None


def unavailable(name: str, status: Status, clock: Clock) -> ToolUnavailable:
    """What a call is told that cannot reach its server: why, and when the next try is."""
    why = f": {status.error.rstrip('.')}" if status.error else ""
    details = {"server": name, "state": status.state.value}
    if status.next_retry_at is not None:
        seconds = max(0.0, (status.next_retry_at - clock.now()) / 1_000_000)
        details["next_retry_at"] = rfc3339(status.next_retry_at)
        return ToolUnavailable(
            f"The MCP server {name} is not there{why}. The next try to reach it is in {seconds:.1f} s.", details=details
        )
    match status.state:
        case ServerState.NEEDS_AUTH:
            said = f"The MCP server {name} lets nobody in yet{why}. Somebody has to sign in there first."
        case ServerState.STARTING:
            said = f"The MCP server {name} is still starting{why}. Try again later."
        case _:
            said = f"The MCP server {name} is {status.state.value}{why}."
    return ToolUnavailable(said, details=details)
