"""Prompts of the upstream servers, named like tools: `mcp__server__prompt`, or by their own name where it is unique."""

from collections import Counter

from app.core.util.json_codec import Raw
from app.dispatch.tools.listing import Listing
from app.mcp.client import tool_names
from app.mcp.client.resources import PROMPT
from app.mcp.client.tool_names import Identity
from app.mcp.server.request_context import RequestContext, protocol_error
from app.mcp.server.resources import ListCache, reachable_servers


class McpPrompts:
    """A key that may not use the tool that renders prompts does not see them."""

    def __init__(self, listing: Listing, lists: ListCache) -> None:
        self._listing = listing
        self._lists = lists

    async def all(self, caller: RequestContext) -> list[Raw]:
        if caller.session is None:
            return []
        items = self._visible(await self._lists.fetch("prompts", caller.session), caller)
        full, plain = tool_names.assign(items), _plain_names(items) if caller.is_plain else {}
        renamed = [item | {"name": plain.get(identity) or full[identity]} for identity, item in items.items()]
        return sorted(renamed, key=lambda item: str(item["name"]))

    async def find(self, caller: RequestContext, name: str) -> Raw:
        """The prompt with this name, full or plain, as its server lists it."""
        items = self._visible(await self._lists.cached("prompts", caller.require_session()), caller)
        for names in (tool_names.assign(items), _plain_names(items)):
            for identity, known in names.items():
                if known == name:
                    return items[identity]
        raise protocol_error(f"Unknown prompt: {self._listing.quoted(name)}")

    def _visible(self, items: list[Raw], caller: RequestContext) -> dict[Identity, Raw]:
        if not caller.key.bounds.allows_tool(PROMPT):
            return {}
        servers = reachable_servers(self._listing, caller, "prompts", items)
        named = (item for item in items if item["server"] in servers and isinstance(item.get("name"), str))
        return {Identity(item["server"], item["name"]): item for item in named}


def _plain_names(items: dict[Identity, Raw]) -> dict[Identity, str]:
    """The names without a prefix that only one server uses."""
    counts = Counter(identity.tool for identity in items)
    return {identity: identity.tool for identity in items if counts[identity.tool] == 1}
