"""Server requests that belong to no call in progress: each becomes a call of a hidden tool."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from app.core.errors import ToolUnavailable

MOST = 64
"""Visits at a time. A person who has so many questions open answers none."""


class TooManyDetachedRequests(Exception):
    """There is no room for one more."""


class DetachedRequest(BaseModel, extra="forbid"):
    """What such a tool takes. `visit` is known to the service alone."""

    visit: str
    server: str
    params: dict[str, Any]


class DetachedRequests:
    """Those that are announced and have not come yet."""

    def __init__(self) -> None:
        self._announced: set[str] = set()
        self._open = 0

    @contextmanager
    def announced(self, server: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The arguments of the one call that may use the tool now. Raises `TooManyDetachedRequests`."""
        if self._open >= MOST:
            raise TooManyDetachedRequests
        id = secrets.token_urlsafe(24)
        self._announced.add(id)
        self._open += 1
        try:
            yield {"visit": id, "server": server, "params": params}
        finally:
            self._open -= 1
            self._announced.discard(id)

    def admit(self, visit: DetachedRequest) -> None:
        """Whoever was announced comes once. After a restart nobody is."""
        if visit.visit not in self._announced:
            raise ToolUnavailable("This is for what MCP servers ask by themselves; no server waits for it.")
        self._announced.discard(visit.visit)
