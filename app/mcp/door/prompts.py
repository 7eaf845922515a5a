"""Prompts of the servers, named as tools are: `mcp__server__prompt`, or as their server does where that is enough."""

from collections import Counter

from app.core.jsons import Raw
from app.dispatch.listings import Listing
from app.mcp import names
from app.mcp.door.callers import Caller, refusal
from app.mcp.door.shelves import Shelves, reached_by
from app.mcp.names import Identity
from app.mcp.prompts import PROMPT


class DoorPrompts:
    """A key that may not use the tool that fills them in does not see them either."""

    def __init__(self, listing: Listing, shelves: Shelves) -> None:
        self._listing = listing
        self._shelves = shelves

    async def all(self, caller: Caller) -> list[Raw]:
        if caller.session is None:
            return []
        items = self._seen(await self._shelves.look("prompts", caller.session), caller)
        full, plain = _full(items), _plain(items) if caller.is_plain else {}
        named = [item | {"name": plain.get(one) or full[one]} for one, item in items.items()]
        return sorted(named, key=lambda item: str(item["name"]))

    async def find(self, caller: Caller, name: str) -> Raw:
        """The prompt a client means, by either of its names, as its server lists it."""
        items = self._seen(await self._shelves.recall("prompts", caller.whole_session), caller)
        for known in (_full(items), _plain(items)):
            for one, its in known.items():
                if its == name:
                    return items[one]
        raise refusal(f"Unknown prompt: {self._listing.quoted(name)}")

    def _seen(self, items: list[Raw], caller: Caller) -> dict[Identity, Raw]:
        if not caller.key.bounds.allows_tool(PROMPT):
            return {}
        reached = reached_by(self._listing, caller, "prompts", items)
        named = (item for item in items if item["server"] in reached and isinstance(item.get("name"), str))
        return {Identity(item["server"], item["name"]): item for item in named}


def _full(items: dict[Identity, Raw]) -> dict[Identity, str]:
    return names.assign(items)


def _plain(items: dict[Identity, Raw]) -> dict[Identity, str]:
    """What the servers call them, where that says which one is meant."""
    counts = Counter(one.tool for one in items)
    return {one: one.tool for one in items if counts[one.tool] == 1}
