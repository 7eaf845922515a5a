"""The registry as `tools/list`, and the tool that a client's name refers to."""

import logging
import re
from collections import Counter
from typing import Any

from app.core.tools import Effect, Tool
from app.core.util.json_codec import Raw
from app.dispatch.tools.listing import Listing, ToolFilter, View
from app.dispatch.tools.registry import Registry
from app.mcp.server.request_context import Ctx, RequestContext, current_caller, is_valid_result, protocol_error

log = logging.getLogger(__name__)

FREE_FORM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
VALID_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
PAGE_SIZE = 1000
FORWARDED = ("icons", "execution")
HINTS = ("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
NAME_META = "io.toolcrib/name"
SERVER_META = "io.toolcrib/server"


class McpTools:
    def __init__(self, registry: Registry, listing: Listing) -> None:
        self._registry = registry
        self._listing = listing

    async def page(self, ctx: Ctx, caller: RequestContext, cursor: str | None) -> Raw:
        """The available tools that this key sees in the session, by name."""
        if caller.session is None:
            return {"tools": []}
        views = await self._listing.tools(caller.session, caller.key, ToolFilter())
        rest = [view for view in views if view["available"] and view["name"] > (cursor or "")]
        names = self._plain_names(caller, views) if caller.is_plain else {}
        tools = [self._to_version(view, names, caller, ctx.protocol_version) for view in rest[:PAGE_SIZE]]
        answer: Raw = {"tools": [tool for tool in tools if tool is not None]}
        return answer | {"nextCursor": rest[PAGE_SIZE - 1]["name"]} if len(rest) > PAGE_SIZE else answer

    def find(self, name: str, caller: RequestContext) -> Tool:
        """The tool of this name, else the one whose server calls it so; raises an error of the protocol when this key
        sees none."""
        session = caller.require_session()
        tool = self._listing.get(name, session, caller.key)
        if tool is not None and not tool.is_listed:
            tool = None  # not for models
        if tool is not None and tool.name == name:
            return tool
        everything = self._registry.all(caller.key.principal)
        named = [other for other in everything if other.origin and other.origin.name == name]
        visible = [other for other in named if self._listing.get(other.name, session, caller.key) is other]
        if len(visible) == 1 and (caller.is_plain or tool is None):
            return visible[0]
        if tool is None:
            raise protocol_error(f"Unknown tool: {self._listing.quoted(name)}")
        return tool

    def schema(self, name: str) -> dict[str, Any] | None:
        """The input schema of a tool, for the SDK's checks of a request."""
        caller = current_caller.get()
        if caller is None or caller.session is None:
            return None
        try:
            return input_schema(self.find(name, caller).view())
        except Exception:  # noqa: BLE001 - the call itself reports what is wrong with the name
            return None

    def _plain_names(self, caller: RequestContext, views: list[View]) -> dict[str, str]:
        """By their registered names, the servers' own names of tools where these are unique."""
        raw: dict[str, str] = {}
        for view in views:
            tool = self._registry.get(view["name"], caller.key.principal)
            if tool is not None and tool.origin is not None and VALID_NAME.fullmatch(tool.origin.name):
                raw[tool.name] = tool.origin.name
        counts = Counter([*raw.values(), *(view["name"] for view in views)])
        return {name: plain for name, plain in raw.items() if counts[plain] == (2 if plain == name else 1)}

    def _to_version(self, view: View, names: dict[str, str], caller: RequestContext, version: str) -> Raw | None:
        """One tool as this version of the protocol allows it, if need be without its optional fields."""
        tool = self._registry.get(view["name"], caller.key.principal)
        if tool is None:
            return None  # removed while the list was built
        full = to_mcp(view, tool, names.get(tool.name, tool.name))
        without_output = {name: value for name, value in full.items() if name != "outputSchema"}
        minimal = {name: full[name] for name in ("name", "description", "inputSchema")}
        for candidate in (full, without_output, minimal):
            if is_valid_result("tools/list", version, {"tools": [candidate]}):
                return candidate
        log.warning("the tool %s cannot be listed for MCP clients of version %s", tool.name, version)
        return None


def to_mcp(view: View, tool: Tool, name: str) -> Raw:
    """A tool in MCP's format. A tool of an upstream server keeps the server's fields."""
    raw: Raw = tool.origin.raw if tool.origin is not None else {}
    # The server's hints for its tools; for our own, `readOnlyHint` from the declared effect.
    annotations = raw["annotations"] if isinstance(raw.get("annotations"), dict) else view["annotations"]
    hints: Raw = {hint: annotations[hint] for hint in HINTS if annotations.get(hint) is not None}
    mcp_tool: Raw = {
        "name": name,
        "title": view["title"],
        "description": view["description"],
        "inputSchema": input_schema(view),
        "annotations": hints if raw else {"readOnlyHint": view["effect"] == Effect.READ} | hints,
    }
    if view["output_schema"] is not None:
        mcp_tool["outputSchema"] = view["output_schema"]
    mcp_tool |= {field: raw[field] for field in FORWARDED if raw.get(field) is not None}
    meta = dict(raw["_meta"]) if isinstance(raw.get("_meta"), dict) else {}
    if tool.origin is not None:
        meta |= {NAME_META: tool.name, SERVER_META: tool.origin.server}
    return mcp_tool | {"_meta": meta} if meta else mcp_tool


def input_schema(view: View) -> dict[str, Any]:
    """MCP has no free-form tools: one that does not describe its argument `input` itself gets a string."""
    schema: dict[str, Any] = view["parameters"]
    is_described = view["takes"] == "arguments" or "input" in schema.get("properties", {})
    return schema if is_described else FREE_FORM
