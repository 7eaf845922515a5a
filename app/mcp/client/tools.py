"""Tools of MCP servers: a listed tool becomes a `Tool`, and a call of it a `tools/call` request."""

import asyncio
import logging
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from app.core.errors import CallError, McpDisconnected, McpFailed, TimedOut, ToolUnavailable
from app.core.mcp_servers import ServerState
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.sessions import Session
from app.core.tools import Alias, Context, Effect, Lane, Origin, Tool
from app.core.util.json_codec import Raw
from app.core.util.throttle import Throttle
from app.mcp.client import tasks
from app.mcp.client.input_required import send_with_elicitations
from app.mcp.client.interfaces import (
    Connection,
    ConnectionLost,
    JsonRpcError,
    RequestNotSent,
    RequestOptions,
    ServerInfo,
    Upstream,
)
from app.mcp.client.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND
from app.mcp.client.results import Check, error_details, excerpt, to_result
from app.mcp.client.server_requests import ServerRequests
from app.mcp.client.transports.header_params import header_params

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 10.0
"""How long a call that may be sent again waits for its server to be back."""
RECONNECT_POLL_SECONDS = 0.1
LARGE_RESULT = 256 * 1024
MAX_PROGRESS_MESSAGE = 500
NO_BACK_CHANNEL = "no back-channel"
"""What a server of the SDK answers when its tool sends a request as in 2025-11-25 over a 2026-07-28 connection."""
UNKNOWN_TOOL = re.compile(
    r"\b(unknown|no such|unsupported) tool\b|\btool\b.{0,200}\b(not found|unknown|does not exist)\b"
)

Parse = Callable[[Any], Any]
Parser = Callable[[str, Raw], Parse]
"""Makes the argument parser of a tool from its name and schema. Raises `ValueError` for an unusable schema."""
Checker = Callable[[Raw], Check]
"""Makes the check of a tool's structured content from its output schema."""
Progress = tuple[float, float | None, str | None]


def make(
    upstream: Upstream,
    raw: Raw,
    name: str,
    aliases: tuple[Alias, ...] = (),
    *,
    parser: Parser,
    checker: Checker,
    server_requests: ServerRequests,
) -> Tool:
    """The tool. Raises `ValueError` with a sentence when it is unusable."""
    server = upstream.definition
    if server.kind == "http" and upstream.server_info is not None and upstream.server_info.is_modern:
        header_params(raw["inputSchema"])  # a client must not call a tool whose header parameters are invalid
    annotations = _dict(raw.get("annotations"))
    remote = RemoteTool(upstream, raw, server_requests, _output_check(raw, checker))
    need = Need("mcp", f"{server.name}/{raw['name']}")

    def needs(args: Any, scope: PathScope) -> list[Need]:
        return [need]

    return Tool(
        name=name,
        title=remote.title,
        description=_text(raw, "description") or f"The tool {raw['name']} of the MCP server {server.name}.",
        schema=raw["inputSchema"],
        parse=_argument_parser(name, raw["inputSchema"], parser),
        needs=needs,
        run=remote.run,
        effect=Effect.READ if annotations.get("readOnlyHint") is True else Effect.WRITE,
        lane=lane_of(upstream),
        timeout=server.call_timeout,
        source="mcp",
        permission="mcp",
        aliases=aliases,
        annotations=annotations,
        owner=upstream.owner,
        output_schema=schema if isinstance(schema := raw.get("outputSchema"), dict) else None,
        origin=Origin(server.name, raw),
    )


def lane_of(upstream: Upstream) -> str:
    """Calls of per-session servers only exclude those of the same session."""
    server = upstream.definition
    if server.parallel:
        return Lane.NONE
    if server.per_session:
        return Lane.SESSION
    return f"server:{upstream.owner}/{server.name}" if upstream.owner else f"server:{server.name}"


def _argument_parser(name: str, schema: Any, parser: Parser) -> Parse:
    """Arguments whose schema cannot be used are checked by the server alone."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ValueError("Its inputSchema does not describe an object.")

    @cache
    def compiled() -> Parse:
        """At the first call: it takes milliseconds, and most tools are never called."""
        try:
            return parser(name, schema)
        except ValueError as error:
            log.info("the arguments of %s are not validated: %s", name, error)
            return lambda args: args

    return lambda args: compiled()(args)


def _output_check(raw: Raw, checker: Checker) -> Check | None:
    schema = raw.get("outputSchema")
    if not isinstance(schema, dict):
        return None

    @cache
    def compiled() -> Check:
        try:
            return checker(schema)
        except ValueError as error:
            reason = f"its output schema cannot be used ({error})"
            return lambda value: reason

    return lambda value: compiled()(value)


class RemoteTool:
    """One tool of one server."""

    def __init__(self, upstream: Upstream, raw: Raw, server_requests: ServerRequests, check: Check | None) -> None:
        annotations = _dict(raw.get("annotations"))
        self.title = _text(raw, "title") or _text(annotations, "title") or str(raw["name"])
        self._upstream = upstream
        self._raw = raw
        self._server_requests = server_requests
        self._check = check
        self._may_repeat = annotations.get("readOnlyHint") is True or annotations.get("idempotentHint") is True
        self._server = f"The MCP server {upstream.definition.name}"

    async def run(self, args: Any, ctx: Context) -> Result:
        async with self._upstream.call_slot(), self._server_requests.track(self._upstream, ctx):
            raw = await self._call(args, ctx)
        if _approximate_size(raw) > LARGE_RESULT:
            result = await asyncio.to_thread(to_result, raw, self.title, self._check)
        else:
            result = to_result(raw, self.title, self._check)
        if raw.get("isError"):
            raise McpFailed(excerpt(result.output), result=result)
        return result

    async def _call(self, args: Raw, ctx: Context) -> Raw:
        """Send the call; once more after a lost connection where it cannot have an effect twice."""
        connection = await self._upstream.get_connection(ctx.session)
        try:
            return await self._send_call(connection, args, ctx)
        except ConnectionLost as lost:
            if not (self._may_repeat or isinstance(lost, RequestNotSent)):
                raise self._disconnected(lost) from None
            connection = await self._reconnect(ctx, lost)
        try:
            return await self._send_call(connection, args, ctx)
        except ConnectionLost as lost:
            raise self._disconnected(lost) from None

    async def _send_call(self, connection: Connection, args: Raw, ctx: Context) -> Raw:
        params: Raw = {"name": self._raw["name"], "arguments": args}
        meta = self._server_requests.capabilities(ctx) if connection.server_info.is_modern else {}
        if ctx.trace:
            meta["traceparent"] = ctx.trace
        if meta:
            params["_meta"] = meta
        throttle: Throttle[Progress] = Throttle(partial(_report_progress, ctx))
        options: RequestOptions = {"on_progress": lambda *progress: throttle.offer(progress), "ctx": ctx}

        async def send(extra: Raw) -> Raw:
            return await connection.request("tools/call", params | extra, **options)

        try:
            if requires_task(self._raw, connection.server_info):
                return await tasks.run_task(connection, params, options, ctx, partial(self._reconnect, ctx))
            handler = self._server_requests.handler_for(self._upstream, ctx.session)
            return await send_with_elicitations(send, handler, ctx, self._server_requests.url_elicitations)
        except JsonRpcError as error:
            raise self._server_error(error) from None
        except TimeoutError:
            raise TimedOut(f"{self._server} did not answer in time.") from None
        finally:
            throttle.flush()

    async def _reconnect(self, ctx: Context, lost: ConnectionLost) -> Connection:
        connection = await next_connection(self._upstream, ctx.session)
        if connection is None:
            raise self._disconnected(lost)
        return connection

    def _disconnected(self, lost: ConnectionLost) -> CallError:
        reason = excerpt(str(lost)) or "no reason was given"
        reason = reason if reason.endswith((".", "!", "?", "…")) else f"{reason}."
        if isinstance(lost, RequestNotSent):
            return McpDisconnected(f"{self._server} did not receive the call: {reason} Nothing was done.")
        return McpDisconnected(
            f"{self._server} disconnected during the call: {reason} It is unknown whether the call took effect, so it "
            "is not sent again."
        )

    def _server_error(self, error: JsonRpcError) -> CallError:
        details = error_details(error)
        message = excerpt(error.message) or "no message"
        if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND) and UNKNOWN_TOOL.search(error.message.lower()):
            return ToolUnavailable(f"{self._server} does not have this tool any more: {message}", details=details)
        if NO_BACK_CHANNEL in error.message:
            remedy = 'it sends requests as in 2025-11-25; its operator has to set its `era` to "older"'
            return McpFailed(f"{self._server} could not send a request to its client: {remedy}.", details=details)
        if error.code == INVALID_PARAMS:
            return McpFailed(f"{self._server} refused the arguments: {message}", details=details)
        return McpFailed(f"{self._server} answered with the error {error.code}: {message}", details=details)


async def next_connection(upstream: Upstream, session: Session) -> Connection | None:
    """A new connection after one was lost; None when there is none in time. Raises `ToolUnavailable` where a person
    has to sign in first."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RECONNECT_SECONDS
    while True:
        try:
            connection = await upstream.get_connection(session)
            if not connection.lost.done():
                return connection
        except ToolUnavailable as error:
            if (error.details or {}).get("state") == ServerState.NEEDS_AUTH:
                raise
        if loop.time() >= deadline:
            return None
        await asyncio.sleep(RECONNECT_POLL_SECONDS)


def requires_task(raw: Raw, server_info: ServerInfo) -> bool:
    """Whether the tool can only be called as a task, and the server supports that."""
    is_required = _dict(raw.get("execution")).get("taskSupport") == "required"
    return is_required and not server_info.is_modern and server_info.has("tasks", "requests", "tools", "call")


def _report_progress(ctx: Context, state: Progress) -> None:
    """Publish the progress, which also restarts the call's timeout."""
    progress, total, message = state
    values = {"progress": progress} if total is None else {"progress": progress, "total": total}
    ctx.metadata(message[:MAX_PROGRESS_MESSAGE] if message else None, values)
    ctx.reset_timeout()


def _dict(value: Any) -> Raw:
    return value if isinstance(value, dict) else {}


def _text(raw: Raw, name: str) -> str:
    value = raw.get(name)
    return value.strip() if isinstance(value, str) else ""


def _approximate_size(raw: Raw) -> int:
    """Roughly how many characters the content blocks have."""
    blocks = raw.get("content")
    size = 0
    for block in blocks if isinstance(blocks, list) else []:
        inner = block.get("resource", block) if isinstance(block, dict) else {}
        for name in ("text", "data", "blob"):
            value = inner.get(name) if isinstance(inner, dict) else None
            size += len(value) if isinstance(value, str) else 0
    return size
