"""Pages: what a person has to do elsewhere before a server goes on with a call (2025-11-25, error -32042)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from app.core.jsons import Raw
from app.core.tools import Context
from app.mcp.ports import Guest, ServerSaid

REQUIRED = -32042
PATIENCE = 10.0
"""Seconds that a server has to say that the person is through. Not every server says so: then it is asked again."""
TRIES = 12
MOST = 8

Send = Callable[[], Awaitable[Raw]]


class Pages:
    """Those that people are at, by the ids servers gave them. A server that says so ends the waiting."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Event] = {}

    def complete(self, id: str) -> None:
        if (page := self._open.get(id)) is not None:
            page.set()

    async def settle(self, send: Send, guest: Guest, ctx: Context) -> Raw:
        """The request's result, if need be after a person was elsewhere. The server has done nothing until then."""
        try:
            return await send()
        except ServerSaid as said:
            if said.code != REQUIRED or not (pages := _named(said.data)):
                raise
            refusal = said
        with self._waiting(pages) as events:
            if not await _agreed(pages, guest, ctx):
                raise refusal
            for _ in range(TRIES):
                ctx.go_on()
                await _all(events)
                try:
                    return await send()
                except ServerSaid as said:
                    if said.code != REQUIRED or all(event.is_set() for event in events):
                        raise
                    refusal = said
        raise refusal

    @contextmanager
    def _waiting(self, pages: list[Raw]) -> Iterator[list[asyncio.Event]]:
        ids = [page["elicitationId"] for page in pages]
        events = [self._open.setdefault(id, asyncio.Event()) for id in ids]
        try:
            yield events
        finally:
            for id in ids:
                self._open.pop(id, None)


async def _agreed(pages: list[Raw], guest: Guest, ctx: Context) -> bool:
    for page in pages:
        answer = await guest.asked("elicitation/create", page | {"mode": "url"}, ctx)
        if answer.get("action") != "accept":
            return False
    return True


async def _all(events: list[asyncio.Event]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            for event in events:
                await event.wait()


def _named(data: Any) -> list[Raw]:
    listed = data.get("elicitations") if isinstance(data, dict) else None
    pages = listed if isinstance(listed, list) else []
    return [page for page in pages if isinstance(page, dict) and isinstance(page.get("elicitationId"), str)][:MOST]
