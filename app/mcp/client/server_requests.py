"""Handles what MCP servers send by themselves: elicitation/create, sampling/createMessage, roots/list, notifications.

A request belongs to the call that the server names, else to the only call in progress at the server. A request that
belongs to no call becomes a call of the admin (see `detached_requests`), so that it is asked and recorded, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple
from urllib.parse import quote

from app.core.errors import AskExpired, CallError, Declined, PermissionDenied
from app.core.results import Result
from app.core.sessions import Session
from app.core.tools import Context, Tool
from app.core.util.json_codec import Raw
from app.core.util.throttle import Throttle
from app.mcp.client.detached_requests import (
    ELICITATION,
    SAMPLING,
    DetachedRequests,
    TooManyDetachedRequests,
    elicitation_result,
    elicitation_tool,
    sampling_tool,
    shown_elicitation,
)
from app.mcp.client.handshake import CAPABILITIES, CLIENT_CAPABILITIES
from app.mcp.client.input_required import UrlElicitations
from app.mcp.client.interfaces import Change, ChangeFeed, JsonRpcError, Upstream
from app.mcp.client.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND
from app.mcp.client.results import excerpt
from app.mcp.client.sampling import Gateway, to_chat

Submit = Callable[[str, Raw], Awaitable[Result]]
"""Runs a tool with these arguments as a call of the admin; raises its `CallError`."""

SAMPLING_REJECTED = -1
"""The protocol's code for a sampling request that a person rejected."""
MAX_REQUESTS_PER_CALL = 16
MAX_LOG_TEXT = 2000
NO_GATEWAY = "sampling is not supported: no LLM gateway is configured"


class CallSite(NamedTuple):
    """The connection that a call uses: the server's, or its session's own one."""

    owner: str | None
    server: str
    session: tuple[str, str] | None


class ActiveCall:
    """A call in progress at a server, and the server's requests that belong to it."""

    __slots__ = ("_calls", "_site", "ctx", "log", "requests")

    def __init__(self, calls: "dict[CallSite, dict[str, ActiveCall]]", site: CallSite, ctx: Context) -> None:
        self._calls = calls
        self._site = site
        self.ctx = ctx
        self.requests: set[asyncio.Task[Raw]] = set()
        self.log: Throttle[Raw] = Throttle(self._publish_log)

    async def __aenter__(self) -> None:
        self._calls.setdefault(self._site, {})[self.ctx.id] = self

    async def __aexit__(self, *_: object) -> None:
        """The call has ended, and with it the requests that belong to it."""
        calls = self._calls[self._site]
        del calls[self.ctx.id]
        if not calls:
            del self._calls[self._site]
        self.log.flush()
        for task in self.requests:
            task.cancel()
        if self.requests:
            await asyncio.wait(self.requests)

    def _publish_log(self, entry: Raw) -> None:
        self.ctx.metadata(metadata={"log": entry})


class ServerRequests:
    """Knows the calls in progress at each server. There is one instance for all servers.

    `root_of` is the workspace of a session, `roots` are the folders of servers that configure none.
    """

    def __init__(
        self,
        *,
        submit: Submit,
        changes: ChangeFeed,
        root_of: Callable[[Session], str],
        roots: Sequence[str] = (),
        gateway: Gateway | None = None,
    ) -> None:
        self.submit = submit
        self.changes = changes
        self.root_of = root_of
        self.roots = tuple(roots)
        self.gateway = gateway
        self.detached = DetachedRequests()
        self.url_elicitations = UrlElicitations()
        self._calls: dict[CallSite, dict[str, ActiveCall]] = {}

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The hidden tools for detached requests."""
        sampling = [sampling_tool(self.gateway, self.detached)] if self.gateway else []
        return (elicitation_tool(self.detached), *sampling)

    def capabilities(self, ctx: Context | None) -> Raw:
        """The client capabilities during this call, for the `_meta` of a 2026-07-28 request."""
        can = {name: value for name, value in CAPABILITIES.items() if name != "sampling"}
        client = ctx.back_channel if ctx is not None else None
        if client is not None and client.offers("sampling/createMessage", {"tools": []}):
            can["sampling"] = {"tools": {}}
        elif self.gateway is not None or (client is not None and client.offers("sampling/createMessage", {})):
            can["sampling"] = CAPABILITIES["sampling"]
        return {CLIENT_CAPABILITIES: can}

    def handler_for(self, upstream: Upstream, session: Session | None = None) -> "ConnectionHandler":
        """The handler of one connection; with a session, of that session's own connection."""
        return ConnectionHandler(self, upstream, session)

    def track(self, upstream: Upstream, ctx: Context) -> AbstractAsyncContextManager[None]:
        """The call is in progress at the server while this context lasts."""
        return ActiveCall(self._calls, call_site(upstream, ctx.session), ctx)

    def only_call(self, site: CallSite) -> Context | None:
        """The call in progress, if there is exactly one."""
        calls = list(self._calls.get(site, {}).values())
        return calls[0].ctx if len(calls) == 1 else None

    def active_call(self, site: CallSite, ctx: Context | None) -> ActiveCall | None:
        return self._calls.get(site, {}).get(ctx.id) if ctx else None


def call_site(upstream: Upstream, session: Session | None) -> CallSite:
    definition = upstream.definition
    own = (session.principal, session.id) if session is not None and definition.per_session else None
    return CallSite(upstream.owner, definition.name, own)


class ConnectionHandler:
    """The `ServerRequestHandler` of one connection."""

    def __init__(self, requests: ServerRequests, upstream: Upstream, session: Session | None) -> None:
        self._requests = requests
        self._upstream = upstream
        self._session = session

    async def on_request(self, method: str, params: Raw, ctx: Context | None) -> Raw:
        site = call_site(self._upstream, self._session)
        ctx = ctx or self._requests.only_call(site)
        answer = self._answer(method, params, ctx)
        call = self._requests.active_call(site, ctx)
        if call is None:
            return await answer
        call.ctx.reset_timeout()
        return await self._answer_during(call, answer)

    def on_notification(self, method: str, params: Raw, ctx: Context | None) -> None:
        match method, params:
            case "notifications/resources/updated", {"uri": str(uri)}:
                change = Change("resources", self._upstream.definition.name, self._upstream.owner, uri)
                self._requests.changes.publish(change)
            case "notifications/elicitation/complete", {"elicitationId": str(id)}:
                self._requests.url_elicitations.complete(id)
            case "notifications/message", _:
                self._publish_log(params, ctx)

    def _publish_log(self, params: Raw, ctx: Context | None) -> None:
        """A log message goes to the MCP client that made the call, and into the call's events."""
        site = call_site(self._upstream, self._session)
        call = self._requests.active_call(site, ctx or self._requests.only_call(site))
        if call is None:
            return
        if call.ctx.back_channel is not None:
            call.ctx.back_channel.notify("notifications/message", params)
        data = params.get("data")
        text = data if isinstance(data, str) else str(data)
        entry = {"level": str(params.get("level", "info"))[:16], "data": text[:MAX_LOG_TEXT]}
        if isinstance(logger := params.get("logger"), str):
            entry["logger"] = logger[:64]
        call.log.offer(entry)

    async def _answer_during(self, call: ActiveCall, answer: Coroutine[Any, Any, Raw]) -> Raw:
        """A request that belongs to a call ends with it, even if the server does not cancel it."""
        if len(call.requests) >= MAX_REQUESTS_PER_CALL:
            answer.close()
            raise JsonRpcError(INTERNAL_ERROR, f"{MAX_REQUESTS_PER_CALL} requests of this call are open already")
        task = asyncio.create_task(answer)
        call.requests.add(task)
        try:
            await asyncio.wait([task])
        finally:
            call.requests.discard(task)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise JsonRpcError(INTERNAL_ERROR, "the call that this request belongs to has ended")
        return task.result()

    async def _answer(self, method: str, params: Raw, ctx: Context | None) -> Raw:
        try:
            match method:
                case "elicitation/create":
                    return await self._elicit(params, ctx)
                case "sampling/createMessage":
                    return await self._sample(params, ctx)
                case "roots/list":
                    return {"roots": await self._list_roots(ctx)}
        except TooManyDetachedRequests:
            raise JsonRpcError(INTERNAL_ERROR, "too many requests are open already") from None
        raise JsonRpcError(METHOD_NOT_FOUND, f"{method} is not supported")

    async def _elicit(self, params: Raw, ctx: Context | None) -> Raw:
        server = self._upstream.definition.name
        shown = shown_elicitation(server, params)
        try:
            if ctx is not None:
                return elicitation_result(await ctx.elicit(shown), shown)
            with self._requests.detached.open(server, shown) as arguments:
                answer: Raw = (await self._requests.submit(ELICITATION, arguments)).structured
                return answer
        except CallError as error:
            return {"action": "decline" if error.code == Declined.code else "cancel"}

    async def _sample(self, params: Raw, ctx: Context | None) -> Raw:
        client = ctx.back_channel if ctx else None
        try:
            if client is not None and client.offers("sampling/createMessage", params):
                return await client.request("sampling/createMessage", params)
            if self._requests.gateway is None:
                raise JsonRpcError(METHOD_NOT_FOUND, NO_GATEWAY)
            to_chat(params, "")  # an invalid request is not shown to a person
            with self._requests.detached.open(self._upstream.definition.name, params) as arguments:
                call = ctx.call if ctx else self._requests.submit
                answer: Raw = (await call(SAMPLING, arguments)).structured
                return answer
        except CallError as error:
            is_rejected = error.code in (Declined.code, PermissionDenied.code, AskExpired.code)
            code = SAMPLING_REJECTED if is_rejected else INTERNAL_ERROR
            raise JsonRpcError(code, excerpt(error.message)) from None

    async def _list_roots(self, ctx: Context | None) -> list[Raw]:
        definition = self._upstream.definition
        if definition.roots == "caller":
            return await _client_roots(ctx)
        if definition.roots:
            return to_roots(definition.roots)
        session = self._session or (ctx.session if ctx else None)
        if definition.per_session and session is not None:
            return to_roots([self._requests.root_of(session)])
        return to_roots(self._requests.roots)


async def _client_roots(ctx: Context | None) -> list[Raw]:
    """The roots of the MCP client that makes the call."""
    client = ctx.back_channel if ctx else None
    if client is None or not client.offers("roots/list", {}):
        return []
    try:
        answer = await client.request("roots/list", {})
    except CallError:
        return []
    roots: Any = answer.get("roots")
    return roots if isinstance(roots, list) else []


def to_roots(folders: Iterable[str]) -> list[Raw]:
    """Folders as MCP roots; a URI stays as it is."""
    return [
        {
            "uri": folder if "://" in folder else f"file://{quote(folder)}",
            "name": folder.rstrip("/").rpartition("/")[2] or folder,
        }
        for folder in map(str, folders)
    ]
