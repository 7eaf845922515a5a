"""Visits: what a server asked that becomes a call of its own, by a hidden tool that nobody else can use."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from app.core.errors import ToolUnavailable

MOST = 64
"""Visits at a time. A person who has so many questions open answers none."""


class TooManyVisits(Exception):
    """There is no room for one more."""


class Visit(BaseModel, extra="forbid"):
    """What such a tool takes. `visit` is known to the service alone."""

    visit: str
    server: str
    params: dict[str, Any]


class Visits:
    """Those that are announced and have not come yet."""

    def __init__(self) -> None:
        self._announced: set[str] = set()
        self._open = 0

    @contextmanager
    def announced(self, server: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The arguments of the one call that may use the tool now. Raises `TooManyVisits`."""
        if self._open >= MOST:
            raise TooManyVisits
        id = secrets.token_urlsafe(24)
        self._announced.add(id)
        self._open += 1
        try:
            yield {"visit": id, "server": server, "params": params}
        finally:
            self._open -= 1
            self._announced.discard(id)

    def admit(self, visit: Visit) -> None:
        """Whoever was announced comes once. After a restart nobody is."""
        if visit.visit not in self._announced:
            raise ToolUnavailable("This is for what MCP servers ask by themselves; no server waits for it.")
        self._announced.discard(visit.visit)
