"""Prompts of the servers, named as tools are: `mcp__server__prompt`, or as their server does where that is enough."""

from collections import Counter

from app.core.util.json_codec import Raw
from app.dispatch.tools.listing import Listing
from app.mcp.client import tool_names
from app.mcp.client.prompts import PROMPT
from app.mcp.client.tool_names import Identity
from app.mcp.server.list_cache import ListCache, reached_by
from app.mcp.server.request_context import RequestContext, refusal


class McpPrompts:
    """A key that may not use the tool that fills them in does not see them either."""

    def __init__(self, listing: Listing, shelves: ListCache) -> None:
        self._listing = listing
        self._shelves = shelves

    async def all(self, caller: RequestContext) -> list[Raw]:
        if caller.session is None:
            return []
        items = self._seen(await self._shelves.look("prompts", caller.session), caller)
        full, plain = _full(items), _plain(items) if caller.is_plain else {}
        named = [item | {"name": plain.get(one) or full[one]} for one, item in items.items()]
        return sorted(named, key=lambda item: str(item["name"]))

    async def find(self, caller: RequestContext, name: str) -> Raw:
        """The prompt a client means, by either of its names, as its server lists it."""
        items = self._seen(await self._shelves.recall("prompts", caller.whole_session), caller)
        for known in (_full(items), _plain(items)):
            for one, its in known.items():
                if its == name:
                    return items[one]
        raise refusal(f"Unknown prompt: {self._listing.quoted(name)}")

    def _seen(self, items: list[Raw], caller: RequestContext) -> dict[Identity, Raw]:
        if not caller.key.bounds.allows_tool(PROMPT):
            return {}
        reached = reached_by(self._listing, caller, "prompts", items)
        named = (item for item in items if item["server"] in reached and isinstance(item.get("name"), str))
        return {Identity(item["server"], item["name"]): item for item in named}


def _full(items: dict[Identity, Raw]) -> dict[Identity, str]:
    return tool_names.assign(items)


def _plain(items: dict[Identity, Raw]) -> dict[Identity, str]:
    """What the servers call them, where that says which one is meant."""
    counts = Counter(one.tool for one in items)
    return {one: one.tool for one in items if counts[one.tool] == 1}
