"""Task-augmented tool calls (experimental in 2025-11-25): the server returns a task, which is polled until it ends."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from app.core.errors import CallError, McpFailed
from app.core.tools import Context
from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import Connection, ConnectionLost, JsonRpcError, RequestOptions
from app.mcp.client.results import error_details, excerpt

TTL_MS = 3_600_000
"""How long the server is asked to store the result."""
POLL_SECONDS, MIN_POLL_SECONDS, MAX_POLL_SECONDS = 1.0, 0.05, 30.0
CANCEL_SECONDS = 5.0
MAX_STATUS_MESSAGE = 500

Reconnect = Callable[[ConnectionLost], Awaitable[Connection]]
"""The next connection after a lost one. Raises the call's error when there is none."""


async def run_task(
    connection: Connection, params: Raw, options: RequestOptions, ctx: Context, reconnect: Reconnect
) -> Raw:
    """Call a tool as a task and return its result. Canceling it cancels the task at the server."""
    created = await connection.request("tools/call", params | {"task": {"ttl": TTL_MS}}, **options)
    match created:
        case {"task": {"taskId": str(id)} as task}:
            return await _Task(connection, id, options, ctx, reconnect).finish(task)
    if "content" in created:
        return created  # the server answered at once
    raise McpFailed("The server did not return the task of this call.")


class _Task:
    def __init__(
        self, connection: Connection, id: str, options: RequestOptions, ctx: Context, reconnect: Reconnect
    ) -> None:
        self._connection = connection
        self._id = id
        self._options = options
        self._ctx = ctx
        self._reconnect = reconnect
        self._reported: tuple[Any, ...] = ()

    async def finish(self, task: Raw) -> Raw:
        try:
            while task.get("status") == "working":
                self._report_status(task)
                await asyncio.sleep(_poll_interval(task))
                task = await self._request("tasks/get")
            self._report_status(task)
            # With the status input_required the server sends its requests while tasks/result is open.
            try:
                return await self._request("tasks/result")
            except JsonRpcError as error:
                raise _task_failure(task, error) from None
        except asyncio.CancelledError:
            with suppress(JsonRpcError, ConnectionLost, TimeoutError, CallError):
                await self._connection.request("tasks/cancel", {"taskId": self._id}, timeout=CANCEL_SECONDS)
            raise

    async def _request(self, method: str) -> Raw:
        """Reading is safe to repeat: a task outlives the connection it was created on."""
        params = {"taskId": self._id}
        try:
            return await self._connection.request(method, params, **self._options)
        except ConnectionLost as lost:
            self._connection = await self._reconnect(lost)
            return await self._connection.request(method, params, **self._options)

    def _report_status(self, task: Raw) -> None:
        status = (task.get("status"), task.get("statusMessage"), task.get("lastUpdatedAt"))
        if status == self._reported:
            return
        self._reported = status
        message = task.get("statusMessage")
        title = message[:MAX_STATUS_MESSAGE] if isinstance(message, str) else None
        self._ctx.metadata(title, {"task": self._id, "task_status": str(task.get("status"))})
        self._ctx.reset_timeout()


def _poll_interval(task: Raw) -> float:
    wish = task.get("pollInterval")
    seconds = wish / 1000 if isinstance(wish, int | float) and not isinstance(wish, bool) else POLL_SECONDS
    return min(max(seconds, MIN_POLL_SECONDS), MAX_POLL_SECONDS)


def _task_failure(task: Raw, error: JsonRpcError) -> CallError:
    """A failed or canceled task may have no result; then its status says what happened."""
    details = error_details(error)
    if task.get("status") not in ("failed", "cancelled"):
        return McpFailed(f"The task has no result: {excerpt(error.message)}", details=details)
    reason = task.get("statusMessage") or error.message
    return McpFailed(f"The task {task['status']} at the server: {excerpt(str(reason))}", details=details)
