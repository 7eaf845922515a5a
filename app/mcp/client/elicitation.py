"""Elicitations: a server wants to know something of a person, by a form or on a page of its own.

Pages: what a person has to do elsewhere before a server goes on with a call (2025-11-25, error -32042).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from app.core.asks import Answer
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool, typed
from app.core.util.json_codec import Raw, dumps
from app.mcp.client.detached_requests import DetachedRequest, DetachedRequests
from app.mcp.client.interfaces import JsonRpcError, ServerRequestHandler

REQUIRED = -32042
PATIENCE = 10.0
"""Seconds that a server has to say that the person is through. Not every server says so: then it is asked again."""
TRIES = 12
MOST = 8

Send = Callable[[], Awaitable[Raw]]


class UrlElicitations:
    """Those that people are at, by the ids servers gave them. A server that says so ends the waiting."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Event] = {}

    def complete(self, id: str) -> None:
        if (page := self._open.get(id)) is not None:
            page.set()

    async def settle(self, send: Send, guest: ServerRequestHandler, ctx: Context) -> Raw:
        """The request's result, if need be after a person was elsewhere. The server has done nothing until then."""
        try:
            return await send()
        except JsonRpcError as said:
            if said.code != REQUIRED or not (pages := _named(said.data)):
                raise
            refusal = said
        with self._waiting(pages) as events:
            if not await _agreed(pages, guest, ctx):
                raise refusal
            for _ in range(TRIES):
                ctx.reset_timeout()
                await _all(events)
                try:
                    return await send()
                except JsonRpcError as said:
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


async def _agreed(pages: list[Raw], guest: ServerRequestHandler, ctx: Context) -> bool:
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


ELICITATION = "mcp_elicitation"
INVALID_PARAMS = -32602
MOST_BYTES = 64 * 1024
LONGEST_WAIT = 604_800.0


def make(visits: DetachedRequests) -> Tool:
    """The hidden tool for questions that belong to no call: one that does nothing but ask them."""

    def needs(args: DetachedRequest, scope: PathScope) -> list[Need]:
        return [Need("mcp", f"{args.server}/elicitation:{args.params['mode']}")]

    async def run(args: DetachedRequest, ctx: Context) -> Result:
        visits.admit(args)
        said = to_result(await ctx.elicit(args.params), args.params)
        return Result(said["action"], f"{args.server} asks", structured=said)

    return typed(
        DetachedRequest,
        name=ELICITATION,
        description="Puts a question of an MCP server to a person.",
        effect=Effect.READ,
        needs=needs,
        run=run,
        lane=Lane.NONE,
        timeout=LONGEST_WAIT,
        permission="mcp",
        is_listed=False,
    )


def shown(server: str, params: Raw) -> Raw:
    """What a person gets to see. Raises `JsonRpcError` for what cannot be asked."""
    shows = {"server": server, "mode": params.get("mode", "form"), "message": str(params.get("message", ""))}
    match params:
        case {"mode": "url", "url": str(url)}:
            shows |= {"url": _checked(url), "elicitation_id": params.get("elicitationId")}
        case {"requestedSchema": dict(schema)} if shows["mode"] == "form":
            shows["requested_schema"] = schema
        case _:
            raise JsonRpcError(INVALID_PARAMS, "an elicitation has a requestedSchema, or the mode url and a url")
    if len(dumps(shows)) > MOST_BYTES:
        raise JsonRpcError(INVALID_PARAMS, f"an elicitation takes at most {MOST_BYTES // 1024} KiB")
    return shows


def to_result(answer: Answer, shows: Raw) -> Raw:
    """What the person said, as the server takes it."""
    if answer.action is not None or answer.content is None:
        return {"action": answer.action or "cancel"}
    return {"action": "accept"} if shows["mode"] == "url" else {"action": "accept", "content": answer.content}


def _checked(url: str) -> str:
    """Nobody opens it for the person; it has to be one that a browser opens as a page."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable():
        raise JsonRpcError(INVALID_PARAMS, "the url of an elicitation has to be an http or https one")
    return url
