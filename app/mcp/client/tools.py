"""A tool as its server lists it becomes a `Tool`, and a call of it a request.

Once more: what may be sent again waits for its server to be back, for a while.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
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
from app.mcp.client import input_required, results, tasks
from app.mcp.client.interfaces import Connection, ConnectionLost, JsonRpcError, RequestNotSent, Upstream
from app.mcp.client.results import Check, sentence
from app.mcp.client.server_requests import ServerRequests
from app.mcp.client.transports.header_params import repeated

BACK_AGAIN = 10.0
"""Seconds that a server has to be back."""
LOOK_AGAIN = 0.1


async def next_link(upstream: Upstream, session: Session) -> Connection | None:
    """A link that is not lost; None when there is none in time. Raises `ToolUnavailable` where no waiting helps."""
    loop = asyncio.get_running_loop()
    until = loop.time() + BACK_AGAIN
    while True:
        link = await _link(upstream, session)
        if link is not None and not link.lost.done():
            return link
        if loop.time() >= until:
            return None
        await asyncio.sleep(LOOK_AGAIN)


async def _link(upstream: Upstream, session: Session) -> Connection | None:
    try:
        return await upstream.link(session)
    except ToolUnavailable as error:
        if (error.details or {}).get("state") == ServerState.NEEDS_AUTH:
            raise
        return None


log = logging.getLogger(__name__)

Parse = Callable[[Any], Any]
Parser = Callable[[str, Raw], Parse]
"""What turns arguments into checked ones, by a tool's name and schema. Raises `ValueError` for an unusable schema."""
Checker = Callable[[Raw], Check]
"""The same for what comes back."""

INVALID_PARAMS = -32602
METHOD_NOT_FOUND = -32601
LARGE = 256 * 1024
MOST_TOLD = 500
NO_WAY_BACK = "no back-channel"
"""What a server of the SDK says when a tool asks as one asks in the older era, and is spoken to in the newer."""
UNKNOWN_TOOL = re.compile(
    r"\b(unknown|no such|unsupported) tool\b|\btool\b.{0,200}\b(not found|unknown|does not exist)\b"
)


def make(
    upstream: Upstream,
    raw: Raw,
    name: str,
    aliases: tuple[Alias, ...] = (),
    *,
    parser: Parser,
    checker: Checker,
    reception: ServerRequests,
) -> Tool:
    """The tool. Raises `ValueError` with a sentence when it cannot be one."""
    server = upstream.definition
    if server.kind == "http" and upstream.hello is not None and upstream.hello.is_modern:
        repeated(raw["inputSchema"])  # who cannot repeat what a tool wants repeated must not call it
    given = raw.get("annotations")
    annotations = given if isinstance(given, dict) else {}
    remote = RemoteTool(upstream, raw, reception, _checker(raw, checker))
    need = Need("mcp", f"{server.name}/{raw['name']}")

    def needs(args: Any, scope: PathScope) -> list[Need]:
        return [need]

    return Tool(
        name=name,
        title=remote.title,
        description=_text(raw, "description") or f"The tool {raw['name']} of the MCP server {server.name}.",
        schema=raw["inputSchema"],
        parse=_parse(name, raw["inputSchema"], parser),
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
    """Servers that are started for each session do not meet the calls of others."""
    server = upstream.definition
    if server.parallel:
        return Lane.NONE
    if server.per_session:
        return Lane.SESSION
    return f"server:{upstream.owner}/{server.name}" if upstream.owner else f"server:{server.name}"


def _parse(name: str, schema: Any, parser: Parser) -> Parse:
    """What cannot be checked here is checked by the server alone: its tool can be used all the same."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ValueError("Its inputSchema does not describe an object.")

    @cache
    def compiled() -> Parse:
        """With the first call: it takes milliseconds, and of many tools most are never called."""
        try:
            return parser(name, schema)
        except ValueError as error:
            log.info("the arguments of %s are not checked here: %s", name, error)
            return lambda args: args

    return lambda args: compiled()(args)


def _checker(raw: Raw, checker: Checker) -> Check | None:
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


def _text(raw: Raw, name: str) -> str:
    value = raw.get(name)
    return value.strip() if isinstance(value, str) else ""


class RemoteTool:
    """One tool of one server, and what becomes of calls of it."""

    def __init__(self, upstream: Upstream, raw: Raw, reception: ServerRequests, check: Check | None) -> None:
        annotations = raw.get("annotations")
        self._hints = annotations if isinstance(annotations, dict) else {}
        self._upstream = upstream
        self._raw = raw
        self._reception = reception
        self._check = check
        self.title = _text(raw, "title") or _text(self._hints, "title") or str(raw["name"])

    async def run(self, args: Any, ctx: Context) -> Result:
        async with self._upstream.turn(), self._reception.having(self._upstream, ctx):
            raw = await self._call(args, ctx)
        result = await self._read(raw)
        if raw.get("isError"):
            raise McpFailed(sentence(result.output), result=result)
        return result

    async def _call(self, args: Raw, ctx: Context) -> Raw:
        """Once; and once more where that cannot do anything twice."""
        link = await self._upstream.link(ctx.session)
        try:
            return await self._ask(link, args, ctx)
        except ConnectionLost as lost:
            link = await self._once_more(ctx, lost)
        try:
            return await self._ask(link, args, ctx)
        except ConnectionLost as lost:
            raise self._disconnected(lost) from None

    async def _ask(self, link: Connection, args: Raw, ctx: Context) -> Raw:
        params: Raw = {"name": self._raw["name"], "arguments": args}
        meta = self._reception.capabilities(ctx) if link.hello.is_modern else {}
        if ctx.trace:
            meta["traceparent"] = ctx.trace
        if meta:
            params["_meta"] = meta
        pace = Throttle(partial(_tell, ctx))
        guest = self._reception.visitor(self._upstream, ctx.session)

        def request(link: Connection, method: str, params: Raw) -> Coroutine[Any, Any, Raw]:
            return link.request(method, params, on_progress=partial(_note, pace), about=ctx)

        try:
            if tasks.is_wanted(self._raw, link.hello):
                return await tasks.drive(request, link, params, ctx, partial(self._next_link, ctx))
            send = partial(input_required.settle, lambda more: request(link, "tools/call", params | more), guest, ctx)
            return await self._reception.pages.settle(send, guest, ctx)
        except JsonRpcError as said:
            raise self._refused(said) from None
        except TimeoutError:
            raise TimedOut(f"{self._where} did not answer in time.") from None
        finally:
            pace.flush()

    async def _once_more(self, ctx: Context, lost: ConnectionLost) -> Connection:
        """The next link, for a call that may be sent again; the end of any other."""
        may_repeat = self._hints.get("readOnlyHint") is True or self._hints.get("idempotentHint") is True
        if not (may_repeat or isinstance(lost, RequestNotSent)):
            raise self._disconnected(lost)
        return await self._next_link(ctx, lost)

    async def _next_link(self, ctx: Context, lost: ConnectionLost) -> Connection:
        link = await next_link(self._upstream, ctx.session)
        if link is None:
            raise self._disconnected(lost)
        return link

    async def _read(self, raw: Raw) -> Result:
        """What is large takes a while to be looked at, and others should not wait for it."""
        if _weight(raw) > LARGE:
            return await asyncio.to_thread(results.read, raw, self.title, self._check)
        return results.read(raw, self.title, self._check)

    @property
    def _where(self) -> str:
        return f"The MCP server {self._upstream.definition.name}"

    def _disconnected(self, lost: ConnectionLost) -> CallError:
        if isinstance(lost, RequestNotSent):
            return McpDisconnected(f"{self._where} could not be given the call: {_stop(lost)} Nothing was done.")
        return McpDisconnected(
            f"{self._where} ended while it had the call: {_stop(lost)} Whether it did it is not known, and it is not "
            "sent again."
        )

    def _refused(self, said: JsonRpcError) -> CallError:
        """The server's own no, as far as possible in its words."""
        details = results.details(said.code, said.message, said.data)
        words = sentence(said.message) or "it did not say why"
        if said.code in (INVALID_PARAMS, METHOD_NOT_FOUND) and UNKNOWN_TOOL.search(said.message.lower()):
            return ToolUnavailable(f"{self._where} does not know this tool any more: {words}", details=details)
        if NO_WAY_BACK in said.message:
            remedy = 'it asks as in the older era of the protocol; its operator has to set its `era` to "older"'
            return McpFailed(f"{self._where} could not ask what it needs to know: {remedy}.", details=details)
        if said.code == INVALID_PARAMS:
            return McpFailed(f"{self._where} refused the arguments: {words}", details=details)
        return McpFailed(f"{self._where} answered with the error {said.code}: {words}", details=details)


Progress = tuple[float, float | None, str | None]


def _note(pace: Throttle[Progress], progress: float, total: float | None, message: str | None) -> None:
    pace.offer((progress, total, message))


def _tell(ctx: Context, said: Progress) -> None:
    """How far it is, which is a sign of life, too."""
    progress, total, message = said
    about = {"progress": progress} if total is None else {"progress": progress, "total": total}
    ctx.metadata(message[:MOST_TOLD] if message else None, about)
    ctx.reset_timeout()


def _stop(lost: ConnectionLost) -> str:
    said = sentence(str(lost)) or "it did not say why"
    return said if said.endswith((".", "!", "?", "…")) else f"{said}."


def _weight(raw: Raw) -> int:
    """Roughly how many characters there are to look at."""
    blocks = raw.get("content")
    found = 0
    for block in blocks if isinstance(blocks, list) else []:
        inner = block.get("resource", block) if isinstance(block, dict) else {}
        for name in ("text", "data", "blob"):
            value = inner.get(name) if isinstance(inner, dict) else None
            found += len(value) if isinstance(value, str) else 0
    return found
