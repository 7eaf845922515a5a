"""The MCP methods that clients may call, and their handlers."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import CallRequest
from app.core.errors import CallError
from app.core.tools import McpResources
from app.core.util.json_codec import Raw
from app.dispatch.tools.listing import Listing
from app.mcp.client.resources import PROMPT
from app.mcp.server.list_changed import ChangeNotifier
from app.mcp.server.prompts import McpPrompts
from app.mcp.server.request_context import (
    INTERNAL_ERROR,
    Ctx,
    RequestContext,
    call_failure,
    caller_of,
    is_valid_result,
    protocol_error,
)
from app.mcp.server.resources import READ_TOOL, ListCache, McpServerResources, Subscription
from app.mcp.server.results import error_result, prompt_result, resource_result, tool_result
from app.mcp.server.sessions import ClientSession
from app.mcp.server.tool_calls import McpToolCalls, NoCall, to_request
from app.mcp.server.tools import SERVER_META, McpTools

if TYPE_CHECKING:
    import mcp_types as types

Handler = Callable[..., Any]
METHOD_NOT_FOUND = -32601


class McpHandlers:
    def __init__(
        self,
        *,
        tools: McpTools,
        calls: McpToolCalls,
        upstream: McpResources,
        changes: ChangeNotifier,
        listing: Listing,
        lists: ListCache,
        engine: AsyncEngine,
    ) -> None:
        self._tools = tools
        self._calls = calls
        self._upstream = upstream
        self._listing = listing
        self._resources = McpServerResources(upstream, listing, lists)
        self._prompts = McpPrompts(listing, lists)
        self._changes = changes
        self._engine = engine

    def table(self) -> list[tuple[str, Any, Handler]]:
        """Each method with the model of its parameters and its handler."""
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
        return [(method, params, partial(_with_result_type, handler)) for method, params, handler in methods]

    async def list_tools(self, ctx: Ctx, params: "types.PaginatedRequestParams") -> Raw:
        return await self._tools.page(ctx, caller_of(ctx), params.cursor)

    async def call_tool(self, ctx: Ctx, params: "types.CallToolRequestParams") -> Raw:
        caller = caller_of(ctx)
        if caller.session is None:
            return error_result(caller.no_session)
        tool = self._tools.find(params.name, caller)
        request = to_request(ctx, tool.name, params.arguments or {})
        try:
            return await self._calls.run(ctx, request, partial(tool_result, self._engine, ctx), self._log_level(ctx))
        except NoCall as reason:
            return error_result(str(reason))

    async def list_resources(self, ctx: Ctx, params: "types.PaginatedRequestParams") -> Raw:
        items = await self._resources.all(caller_of(ctx))
        return self._list_result(ctx, "resources/list", "resources", items)

    async def list_templates(self, ctx: Ctx, params: "types.PaginatedRequestParams") -> Raw:
        items = await self._resources.templates(caller_of(ctx))
        return self._list_result(ctx, "resources/templates/list", "resourceTemplates", items)

    async def read_resource(self, ctx: Ctx, params: "types.ReadResourceRequestParams") -> Raw:
        """A call of the tool that reads resources, so that rules apply and it is recorded."""
        caller = caller_of(ctx)
        address = await self._resources.find(ctx, caller, params.uri)
        request = to_request(ctx, READ_TOOL, {"server": address.server, "uri": address.uri})
        return await self._run_call(ctx, request, resource_result)

    async def subscribe(self, ctx: Ctx, params: "types.SubscribeRequestParams") -> Raw:
        subscriptions = self._require_session(ctx).subscriptions
        if params.uri not in subscriptions:
            subscriptions[params.uri] = await self._resources.subscribe(ctx, caller_of(ctx), params.uri)
        return {}

    async def unsubscribe(self, ctx: Ctx, params: "types.UnsubscribeRequestParams") -> Raw:
        subscription = self._require_session(ctx).subscriptions.pop(params.uri, None)
        if subscription is not None:
            await self._unsubscribe(subscription)
        return {}

    async def list_prompts(self, ctx: Ctx, params: "types.PaginatedRequestParams") -> Raw:
        return self._list_result(ctx, "prompts/list", "prompts", await self._prompts.all(caller_of(ctx)))

    async def get_prompt(self, ctx: Ctx, params: "types.GetPromptRequestParams") -> Raw:
        """A call too, of a tool that exists only for this."""
        item = await self._prompts.find(caller_of(ctx), params.name)
        arguments = {"server": item["server"], "name": item["name"], "arguments": params.arguments or {}}
        return await self._run_call(ctx, to_request(ctx, PROMPT, arguments), prompt_result)

    async def complete(self, ctx: Ctx, params: "types.CompleteRequestParams") -> Raw:
        caller = caller_of(ctx)
        fields: Raw = {name: value for name, value in (ctx.params or {}).items() if name != "_meta"}
        server, ref = await self._resolve_ref(caller, fields["ref"])
        try:
            answer = await self._upstream.complete(caller.require_session(), server, fields | {"ref": ref})
        except CallError as error:
            raise call_failure(error, ctx) from None
        return self._listing.redacted(answer)

    async def _resolve_ref(self, caller: RequestContext, ref: Raw) -> tuple[str, Raw]:
        """The server of a prompt or template, and the reference as that server knows it."""
        match ref:
            case {"type": "ref/prompt", "name": str(name)}:
                prompt = await self._prompts.find(caller, name)
                return prompt["server"], ref | {"name": prompt["name"]}
            case {"type": "ref/resource", "uri": str(uri)}:
                address = await self._resources.find_template(caller, uri)
                return address.server, ref | {"uri": address.uri}
        raise protocol_error("A completion needs a ref/prompt or a ref/resource.")

    async def set_level(self, ctx: Ctx, params: "types.SetLevelRequestParams") -> Raw:
        self._require_session(ctx).log_level = params.level
        return {}

    async def listen(self, ctx: Ctx, params: "types.SubscriptionsListenRequestParams") -> Any:
        """Serve a stream of changes, subscribed to the resources it names for as long as it lasts."""
        from mcp import MCPError

        caller, subscriptions = caller_of(ctx), list[Subscription]()
        try:
            for uri in params.notifications.resource_subscriptions or []:
                with suppress(MCPError):  # a resource without subscriptions does not prevent the others
                    subscriptions.append(await self._resources.subscribe(ctx, caller, uri))
            return await self._changes.listen(ctx, params)
        finally:
            for subscription in subscriptions:
                await self._unsubscribe(subscription)

    async def unsubscribe_all(self, session: ClientSession) -> None:
        """End the subscriptions of a session that is closed."""
        for subscription in session.subscriptions.values():
            await self._unsubscribe(subscription)

    async def _unsubscribe(self, subscription: Subscription) -> None:
        with suppress(CallError):  # the server is gone, and with it the subscription
            await self._resources.unsubscribe(subscription)

    async def _run_call(self, ctx: Ctx, request: CallRequest, render: Handler) -> Raw:
        """Run a call for a method other than `tools/call`: its failure is an error of the protocol."""
        try:
            return await self._calls.run(ctx, request, partial(render, self._engine, ctx), self._log_level(ctx))
        except NoCall as reason:
            raise protocol_error(str(reason), INTERNAL_ERROR) from None

    def _list_result(self, ctx: Ctx, method: str, field: str, items: list[Raw]) -> Raw:
        """Items with their server in `_meta`, without those that this version of the protocol does not allow."""
        valid = []
        for item in items:
            meta: Raw = item["_meta"] if isinstance(item.get("_meta"), dict) else {}
            public = {name: value for name, value in item.items() if name != "server"}
            public["_meta"] = meta | {SERVER_META: item["server"]}
            if is_valid_result(method, ctx.protocol_version, {field: [public]}):
                valid.append(public)
        return self._listing.redacted({field: valid})

    def _log_level(self, ctx: Ctx) -> str | None:
        session = self._changes.sessions.get_or_add(ctx)
        return session.log_level if session is not None else None

    def _require_session(self, ctx: Ctx) -> ClientSession:
        session = self._changes.sessions.get_or_add(ctx)
        if session is None:
            raise protocol_error("Method not found", METHOD_NOT_FOUND)
        return session


async def _with_result_type(handler: Handler, ctx: Ctx, params: Any) -> Any:
    """A result without a `resultType` is complete."""
    result = await handler(ctx, params)
    return {"resultType": "complete"} | result if isinstance(result, dict) and result else result
