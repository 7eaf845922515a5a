"""Tools as the door shows them: the registry as `tools/list`, and the tool that a client's name means."""

import logging
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from app.core.tools import Effect, Tool
from app.core.util.json_codec import Raw
from app.dispatch.tools.listing import Listing, ToolFilter, View
from app.dispatch.tools.registry import Registry
from app.mcp.server.request_context import RequestContext, current_caller, is_sayable, refusal

if TYPE_CHECKING:
    from app.mcp.server.request_context import Ctx

log = logging.getLogger(__name__)

FREE_FORM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
LEGAL = re.compile(r"[A-Za-z0-9._-]{1,128}")
PAGE = 1000
PASSED_ON = ("icons", "execution")
HINTS = ("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
NAME_META = "io.toolcrib/name"
SERVER_META = "io.toolcrib/server"


class McpTools:
    """What `tools/list` says, and who is meant by a name."""

    def __init__(self, registry: Registry, listing: Listing) -> None:
        self._registry = registry
        self._listing = listing

    async def page(self, ctx: "Ctx", caller: RequestContext, cursor: str | None) -> Raw:
        """All that this key sees in the session and can be used, in the order of their names."""
        if caller.session is None:
            return {"tools": []}
        views = await self._listing.tools(caller.session, caller.key, ToolFilter())
        shown = [view for view in views if view["available"] and view["name"] > (cursor or "")]
        names = self._plain_names(caller, views) if caller.is_plain else {}
        page = [self._fitted(view, names, caller, ctx.protocol_version) for view in shown[:PAGE]]
        answer: Raw = {"tools": [tool for tool in page if tool is not None]}
        return answer | {"nextCursor": shown[PAGE - 1]["name"]} if len(shown) > PAGE else answer

    def find(self, name: str, caller: RequestContext) -> Tool:
        """The tool a client means. Its own name goes first, then what a server calls it; raises an error of the
        protocol when there is none that this key sees."""
        session = caller.whole_session
        found = self._listing.get(name, session, caller.key)
        if found is not None and not found.is_listed:
            found = None  # not there for models
        if found is not None and found.name == name:
            return found
        named = [tool for tool in self._registry.all(caller.key.principal) if tool.origin and tool.origin.name == name]
        seen = [tool for tool in named if self._listing.get(tool.name, session, caller.key) is tool]
        if len(seen) == 1 and (caller.is_plain or found is None):
            return seen[0]
        if found is None:
            raise refusal(f"Unknown tool: {self._listing.quoted(name)}")
        return found

    def schema(self, name: str) -> dict[str, Any] | None:
        """What the arguments of a tool look like, for the checks that come before a request is anybody's."""
        caller = current_caller.get()
        if caller is None or caller.session is None:
            return None
        try:
            return input_schema(self.find(name, caller).view())
        except Exception:  # noqa: BLE001 - whatever is wrong with the name, the call itself says it
            return None

    def _plain_names(self, caller: RequestContext, views: list[View]) -> dict[str, str]:
        """By their names here, what the tools of servers are called where that says which one is meant."""
        raw: dict[str, str] = {}
        for view in views:
            tool = self._registry.get(view["name"], caller.key.principal)
            if tool is not None and tool.origin is not None and LEGAL.fullmatch(tool.origin.name):
                raw[tool.name] = tool.origin.name
        wishes = Counter([*raw.values(), *(view["name"] for view in views)])
        return {name: wish for name, wish in raw.items() if wishes[wish] == (2 if wish == name else 1)}

    def _fitted(self, view: View, names: dict[str, str], caller: RequestContext, version: str) -> Raw | None:
        """One tool as this version of the protocol knows it. What cannot be said in it costs only itself."""
        tool = self._registry.get(view["name"], caller.key.principal)
        if tool is None:
            return None  # gone while the list was made
        whole = to_mcp(view, tool, names.get(tool.name, tool.name))
        bare = {name: whole[name] for name in ("name", "description", "inputSchema")}
        without = {name: value for name, value in whole.items() if name != "outputSchema"}
        for shown in (whole, without, bare):
            if is_sayable("tools/list", version, {"tools": [shown]}):
                return shown
        log.warning("the tool %s cannot be shown to MCP clients of version %s", tool.name, version)
        return None


def to_mcp(view: View, tool: Tool, name: str) -> Raw:
    """A tool in words of the protocol. One of a server keeps what that server said of it."""
    raw: Raw = tool.origin.raw if tool.origin is not None else {}
    shown: Raw = {
        "name": name,
        "title": view["title"],
        "description": view["description"],
        "inputSchema": input_schema(view),
        "annotations": _annotations(view, raw),
    }
    if view["output_schema"] is not None:
        shown["outputSchema"] = view["output_schema"]
    shown |= {part: raw[part] for part in PASSED_ON if raw.get(part) is not None}
    meta = dict(raw["_meta"]) if isinstance(raw.get("_meta"), dict) else {}
    if tool.origin is not None:
        meta |= {NAME_META: tool.name, SERVER_META: tool.origin.server}
    return shown | {"_meta": meta} if meta else shown


def input_schema(view: View) -> dict[str, Any]:
    """MCP knows no free text: a tool that takes it says itself what the one argument is, or gets a plain one."""
    schema: dict[str, Any] = view["parameters"]
    is_said = view["takes"] == "arguments" or "input" in schema.get("properties", {})
    return schema if is_said else FREE_FORM


def _annotations(view: View, raw: Raw) -> Raw:
    """Hints. Of a server's tool they are the server's; of others we know what they need."""
    said = raw["annotations"] if isinstance(raw.get("annotations"), dict) else view["annotations"]
    hints: Raw = {hint: said[hint] for hint in HINTS if said.get(hint) is not None}
    return hints if raw else {"readOnlyHint": view["effect"] == Effect.READ} | hints
