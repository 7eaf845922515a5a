"""Methods: what a client of the door can ask for, each with who answers it."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call, CallRequest
from app.core.errors import CallError
from app.core.mcp_resources import McpResources
from app.core.util.json_codec import Raw
from app.dispatch.tools.listing import Listing
from app.mcp.client.prompts import PROMPT
from app.mcp.server.list_cache import ListCache
from app.mcp.server.list_changed import ChangeNotifier
from app.mcp.server.prompts import McpPrompts
from app.mcp.server.request_context import INTERNAL_ERROR, RequestContext, caller_of, failure, is_sayable, refusal
from app.mcp.server.resources import READS, McpServerResources, Watched, contents_of, messages_of
from app.mcp.server.results import failed, result_of
from app.mcp.server.sessions import ClientSession
from app.mcp.server.tool_calls import McpToolCalls, NoCall, to_request
from app.mcp.server.tools import SERVER_META, McpTools

if TYPE_CHECKING:
    import mcp_types as types

    from app.mcp.server.request_context import Ctx

Handler = Callable[..., Any]
METHOD_NOT_FOUND = -32601


class McpHandlers:
    def __init__(
        self,
        tools: McpTools,
        calls: McpToolCalls,
        neighbours: McpResources,
        changes: ChangeNotifier,
        *,
        listing: Listing,
        shelves: ListCache,
        engine: AsyncEngine,
    ) -> None:
        self._tools = tools
        self._calls = calls
        self._neighbours = neighbours
        self._listing = listing
        self._resources = McpServerResources(neighbours, listing, shelves)
        self._prompts = McpPrompts(listing, shelves)
        self._changes = changes
        self._engine = engine

    def table(self) -> list[tuple[str, Any, Handler]]:
        """Each method with the form of its parameters and its handler."""
        import mcp_types as types

        page = types.PaginatedRequestParams
        methods: list[tuple[str, Any, Handler]] = [
            ("tools/list", page, self.list_tools),
            ("tools/call", types.CallToolRequestParams, self.call_tool),
            ("resources/list", page, self.list_resources),
            ("resources/templates/list", page, self.list_templates),
            ("resources/read", types.ReadResourceRequestParams, self.read_resource),
            ("resources/subscribe", types.SubscribeRequestParams, self.subscribe),
            ("resources/unsubscribe", types.UnsubscribeRequestParams, self.unsubscribe),
            ("prompts/list", page, self.list_prompts),
            ("prompts/get", types.GetPromptRequestParams, self.get_prompt),
            ("completion/complete", types.CompleteRequestParams, self.complete),
            ("logging/setLevel", types.SetLevelRequestParams, self.set_level),
            ("subscriptions/listen", types.SubscriptionsListenRequestParams, self.listen),
        ]
        return [(method, params, partial(_complete, handler)) for method, params, handler in methods]

    async def list_tools(self, ctx: "Ctx", params: "types.PaginatedRequestParams") -> Raw:
        return await self._tools.page(ctx, caller_of(ctx), params.cursor)

    async def call_tool(self, ctx: "Ctx", params: "types.CallToolRequestParams") -> Raw:
        """A call like any other."""
        caller = caller_of(ctx)
        if caller.session is None:
            return failed(caller.no_session)
        tool = self._tools.find(params.name, caller)
        asked = to_request(ctx, tool.name, params.arguments or {})
        try:
            return await self._calls.run(ctx, asked, partial(self._shown, ctx), self._level(ctx))
        except NoCall as why:
            return failed(str(why))

    async def list_resources(self, ctx: "Ctx", params: "types.PaginatedRequestParams") -> Raw:
        items = await self._resources.all(caller_of(ctx))
        return self._listed(ctx, "resources/list", "resources", items)

    async def list_templates(self, ctx: "Ctx", params: "types.PaginatedRequestParams") -> Raw:
        items = await self._resources.templates(caller_of(ctx))
        return self._listed(ctx, "resources/templates/list", "resourceTemplates", items)

    async def read_resource(self, ctx: "Ctx", params: "types.ReadResourceRequestParams") -> Raw:
        """A call of the tool that reads resources, so that rules count and there is a record of it."""
        caller = caller_of(ctx)
        address = await self._resources.find(ctx, caller, params.uri)
        asked = to_request(ctx, READS, {"server": address.server, "uri": address.uri})
        return await self._asked(ctx, asked, contents_of)

    async def subscribe(self, ctx: "Ctx", params: "types.SubscribeRequestParams") -> Raw:
        seat = self._seat(ctx)
        if params.uri not in seat.watched:
            seat.watched[params.uri] = await self._resources.watch(ctx, caller_of(ctx), params.uri)
        return {}

    async def unsubscribe(self, ctx: "Ctx", params: "types.UnsubscribeRequestParams") -> Raw:
        watched = self._seat(ctx).watched.pop(params.uri, None)
        if watched is not None:
            await self._unwatch(watched)
        return {}

    async def list_prompts(self, ctx: "Ctx", params: "types.PaginatedRequestParams") -> Raw:
        return self._listed(ctx, "prompts/list", "prompts", await self._prompts.all(caller_of(ctx)))

    async def get_prompt(self, ctx: "Ctx", params: "types.GetPromptRequestParams") -> Raw:
        """A call too, of a tool that is there for this alone."""
        item = await self._prompts.find(caller_of(ctx), params.name)
        given = {"server": item["server"], "name": item["name"], "arguments": params.arguments or {}}
        asked = to_request(ctx, PROMPT, given)
        return await self._asked(ctx, asked, messages_of)

    async def complete(self, ctx: "Ctx", params: "types.CompleteRequestParams") -> Raw:
        caller = caller_of(ctx)
        given: Raw = {name: value for name, value in (ctx.params or {}).items() if name != "_meta"}
        server, ref = await self._meant(caller, given["ref"])
        try:
            said = await self._neighbours.complete(caller.whole_session, server, given | {"ref": ref})
        except CallError as error:
            raise failure(error, ctx) from None
        return self._listing.redacted(said)

    async def _meant(self, caller: RequestContext, ref: Raw) -> tuple[str, Raw]:
        """The server that something belongs to, and what it is called there."""
        match ref:
            case {"type": "ref/prompt", "name": str(name)}:
                prompt = await self._prompts.find(caller, name)
                return prompt["server"], ref | {"name": prompt["name"]}
            case {"type": "ref/resource", "uri": str(uri)}:
                address = await self._resources.template(caller, uri)
                return address.server, ref | {"uri": address.uri}
        raise refusal("A completion is of a prompt or of a resource template.")

    async def set_level(self, ctx: "Ctx", params: "types.SetLevelRequestParams") -> Raw:
        self._seat(ctx).level = params.level
        return {}

    async def listen(self, ctx: "Ctx", params: "types.SubscriptionsListenRequestParams") -> Any:
        """A stream of what changes, with the resources it names watched for as long as it lasts."""
        caller, watched = caller_of(ctx), list[Watched]()
        try:
            for uri in params.notifications.resource_subscriptions or []:
                watched += await self._watched(ctx, caller, uri)
            return await self._changes.listen(ctx, params)
        finally:
            for one in watched:
                await self._unwatch(one)

    async def forget(self, seat: ClientSession) -> None:
        """A client has gone, and what it watched nobody need tell it any more."""
        for watched in seat.watched.values():
            await self._unwatch(watched)

    async def _watched(self, ctx: "Ctx", caller: RequestContext, uri: str) -> list[Watched]:
        """A resource that cannot be watched never changes; that is no reason not to listen to others."""
        from mcp import MCPError

        with suppress(MCPError):
            return [await self._resources.watch(ctx, caller, uri)]
        return []

    async def _unwatch(self, watched: Watched) -> None:
        with suppress(CallError):  # the server has gone, and with it the watching
            await self._resources.unwatch(watched)

    async def _asked(self, ctx: "Ctx", asked: CallRequest, render: Handler) -> Raw:
        """A call that is no tool's for whoever asked: what goes wrong with it is an error of the protocol."""
        try:
            return await self._calls.run(ctx, asked, partial(render, self._engine, ctx), self._level(ctx))
        except NoCall as why:
            raise refusal(str(why), INTERNAL_ERROR) from None

    async def _shown(self, ctx: "Ctx", call: Call) -> Raw:
        return await result_of(self._engine, call, ctx.protocol_version)

    def _listed(self, ctx: "Ctx", method: str, field: str, items: list[Raw]) -> Raw:
        said = (_fitted(ctx, method, field, item) for item in items)
        return self._listing.redacted({field: [item for item in said if item is not None]})

    def _level(self, ctx: "Ctx") -> str | None:
        seat = self._changes.seats.at(ctx)
        return seat.level if seat is not None else None

    def _seat(self, ctx: "Ctx") -> ClientSession:
        seat = self._changes.seats.at(ctx)
        if seat is None:
            raise refusal("Method not found", METHOD_NOT_FOUND)
        return seat


async def _complete(handler: Handler, ctx: "Ctx", params: Any) -> Any:
    """A result that does not say so is the whole one."""
    said = await handler(ctx, params)
    return {"resultType": "complete"} | said if isinstance(said, dict) and said else said


def _fitted(ctx: "Ctx", method: str, field: str, item: Raw) -> Raw | None:
    """An item with its server where everybody may put things; None for one that the protocol cannot say."""
    meta: Raw = item["_meta"] if isinstance(item.get("_meta"), dict) else {}
    said = {name: value for name, value in item.items() if name != "server"}
    said["_meta"] = meta | {SERVER_META: item["server"]}
    return said if is_sayable(method, ctx.protocol_version, {field: [said]}) else None
