"""Tasks: a tool that takes so long that its server gives out a number, and is asked now and then how far it is.

This is the experimental part of the protocol's version 2025-11-25.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from app.core.errors import CallError, McpFailed
from app.core.tools import Context
from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import Connection, ConnectionLost, JsonRpcError, ServerInfo
from app.mcp.client.results import details, sentence

KEPT_MS = 3_600_000
"""How long the server is asked to keep what it has; it may keep it longer, or not at all."""
POLL, SOONEST, LATEST = 1.0, 0.05, 30.0
PATIENCE = 5.0
"""Seconds a server has to hear that nobody wants it any more."""

Again = Callable[[ConnectionLost], Awaitable[Connection]]
"""The next link, once one is lost. Raises the call's end when there is none."""


class Request(Protocol):
    """A request on behalf of the call, with all that goes along with it."""

    async def __call__(self, link: Connection, method: str, params: Raw) -> Raw: ...


def is_wanted(raw: Raw, hello: ServerInfo) -> bool:
    """Whether the tool can be had no other way."""
    execution = raw.get("execution")
    is_required = isinstance(execution, dict) and execution.get("taskSupport") == "required"
    return is_required and not hello.is_modern and hello.has("tasks", "requests", "tools", "call")


async def drive(request: Request, link: Connection, params: Raw, ctx: Context, again: Again) -> Raw:
    """A tool's result, however long it takes. Who gives up gives up the task."""
    made = await request(link, "tools/call", params | {"task": {"ttl": KEPT_MS}})
    match made:
        case {"task": {"taskId": str(id)} as task}:
            return await _Task(request, link, id, ctx, again).finish(task)
    if "content" in made:
        return made  # it was quicker than that
    raise McpFailed("The server was to run this as a task, and did not say which.")


class _Task:
    def __init__(self, request: Request, link: Connection, id: str, ctx: Context, again: Again) -> None:
        self._request = request
        self._link = link
        self._id = id
        self._ctx = ctx
        self._again = again
        self._seen: tuple[Any, ...] = ()

    async def finish(self, task: Raw) -> Raw:
        try:
            while task.get("status") == "working":
                self._tell(task)
                await asyncio.sleep(_pause(task))
                task = await self._ask("tasks/get")
            self._tell(task)
            # Where input is required, waiting for the result is how the server gets to ask for it.
            return await self._result(task)
        except asyncio.CancelledError:
            await self._give_up()
            raise

    async def _result(self, task: Raw) -> Raw:
        try:
            return await self._ask("tasks/result")
        except JsonRpcError as said:
            raise _unfinished(task, said) from None

    async def _ask(self, method: str) -> Raw:
        """To look again does no harm: a task outlives the link it was made on, if its server does."""
        try:
            return await self._request(self._link, method, {"taskId": self._id})
        except ConnectionLost as lost:
            self._link = await self._again(lost)
            return await self._request(self._link, method, {"taskId": self._id})

    def _tell(self, task: Raw) -> None:
        seen = (task.get("status"), task.get("statusMessage"), task.get("lastUpdatedAt"))
        if seen == self._seen:
            return
        self._seen = seen
        message = task.get("statusMessage")
        title = message[:500] if isinstance(message, str) else None
        self._ctx.metadata(title, {"task": self._id, "task_status": str(task.get("status"))})
        self._ctx.reset_timeout()

    async def _give_up(self) -> None:
        with suppress(JsonRpcError, ConnectionLost, TimeoutError, CallError):
            await self._link.request("tasks/cancel", {"taskId": self._id}, seconds=PATIENCE)


def _pause(task: Raw) -> float:
    wish = task.get("pollInterval")
    seconds = wish / 1000 if isinstance(wish, int | float) and not isinstance(wish, bool) else POLL
    return min(max(seconds, SOONEST), LATEST)


def _unfinished(task: Raw, said: JsonRpcError) -> CallError:
    """A task that failed or was canceled at the server may have no result; then its status is all there is."""
    kept = details(said.code, said.message, said.data)
    if task.get("status") not in ("failed", "cancelled"):
        return McpFailed(f"The server ran it, and does not give its result: {sentence(said.message)}", details=kept)
    why = task.get("statusMessage") or said.message
    return McpFailed(f"The task {task['status']} at the server: {sentence(str(why))}", details=kept)
