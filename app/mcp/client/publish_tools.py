"""Shelves: the tools of all servers, named together, made, and put into the registry."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from app.core.errors import CallError
from app.core.tools import Alias, Tool
from app.core.util.json_codec import Raw
from app.dispatch.tools.registry import Registry
from app.dispatch.tools.runtime_tools import ToolsChanged
from app.mcp.client import tool_names
from app.mcp.client.catalog import MAX_REASON, Catalog, Invalid
from app.mcp.client.interfaces import Upstream
from app.mcp.client.tool_names import Identity

Make = Callable[[Upstream, Raw, str, tuple[Alias, ...]], Tool]
"""What makes a tool of one that a server lists. Raises `ValueError` with a sentence when it cannot be one."""


class ListedServer(NamedTuple):
    """A server, and what it lists."""

    upstream: Upstream
    catalogue: Catalog


class _Made(NamedTuple):
    raw: Raw
    name: str
    alias: str | None
    upstream: Upstream
    tool: Tool


Key = tuple[str | None, str]
"""Whose server (None: everybody's), and its name."""
Label = tuple[str | None, Identity]
"""Whose server, and which tool of it."""


@dataclass(slots=True)
class PublishPlan:
    """What is to be in the registry, and what that changes, by owner."""

    tools: dict[str | None, list[Tool]] = field(default_factory=dict)
    changes: dict[str | None, ToolsChanged] = field(default_factory=dict)
    touched: set[Key] = field(default_factory=set)
    unusable: dict[Key, list[Invalid]] = field(default_factory=dict)
    made: dict[Label, _Made] = field(default_factory=dict)

    def offered(self) -> dict[Key, list[str]]:
        """The tools of each server, by the names they have here."""
        found: dict[Key, list[str]] = {}
        for (owner, identity), one in self.made.items():
            found.setdefault((owner, identity.server), []).append(one.name)
        return found


class ToolPublisher:
    """What is made once is made again only when the server says something else of it, or it is called otherwise.

    `on_rival` hears that names may have to be given anew.
    """

    def __init__(self, registry: Registry, make: Make) -> None:
        self.on_rival: Callable[[], None] = lambda: None
        self._registry = registry
        self._make = make
        self._made: dict[Label, _Made] = {}
        self._owners: set[str | None] = set()
        registry.on_change = self._noticed

    async def plan(self, stands: Iterable[ListedServer]) -> PublishPlan:
        """Everybody's first: those of principals have to find other names."""
        plan = PublishPlan()
        everybodys: set[str] = set()
        by_owner = _by_owner(stands)
        for owner in sorted({*by_owner, *self._owners}, key=lambda owner: owner or ""):
            taken = self._registry.names_in_use(owner) | everybodys
            await self._plan_owner(plan, owner, by_owner.get(owner, []), taken)
            if owner is None:
                everybodys = {tool.name for tool in plan.tools[None]}
        return plan

    def show(self, plan: PublishPlan) -> None:
        """Put it into the registry."""
        late = [
            name for owner, tools in plan.tools.items() for name in self._registry.replace_server_tools(tools, owner)
        ]
        self._made = {label: one for label, one in plan.made.items() if one.name not in late}
        if late:  # somebody took them since this was planned
            self.on_rival()
        self._owners = {owner for owner, tools in plan.tools.items() if tools}

    def _noticed(self, name: str) -> None:
        """Another tool came or went that wants a name of ours, or had one that we wanted."""
        if name.startswith(tool_names.PREFIX):
            self.on_rival()

    async def _plan_owner(
        self, plan: PublishPlan, owner: str | None, stands: Sequence[ListedServer], taken: set[str]
    ) -> None:
        wanted = {
            Identity(stand.upstream.definition.name, raw["name"]): (stand.upstream, raw)
            for stand in stands
            for raw in stand.catalogue.offered(stand.upstream.definition)
        }
        while True:  # once more if some of them turn out to be no tools: their names are free then
            made, bad = await self._make_all(owner, wanted, taken)
            for identity, reason in bad.items():
                unusable = plan.unusable.setdefault((owner, identity.server), [])
                unusable.append(Invalid(identity.tool, reason[:MAX_REASON]))
                del wanted[identity]
            if not bad:
                break
        plan.made |= made
        plan.tools[owner] = sorted((one.tool for one in made.values()), key=lambda tool: tool.name)
        self._compare(plan, owner)

    async def _make_all(
        self, owner: str | None, wanted: dict[Identity, tuple[Upstream, Raw]], taken: set[str]
    ) -> tuple[dict[Label, _Made], dict[Identity, str]]:
        named = tool_names.assign(wanted, taken)
        aliases = tool_names.aliases(named, taken)
        made: dict[Label, _Made] = {}
        fresh: list[Identity] = []
        for identity, (upstream, raw) in wanted.items():
            old = self._made.get((owner, identity))
            if old is not None and old[:4] == (raw, named[identity], aliases.get(identity), upstream):
                made[owner, identity] = old
            else:
                fresh.append(identity)
        bad: dict[Identity, str] = {}

        def work() -> None:
            for identity in fresh:
                upstream, raw = wanted[identity]
                alias = aliases.get(identity)
                try:
                    tool = self._make(upstream, raw, named[identity], (Alias(alias),) if alias else ())
                except (ValueError, CallError) as error:
                    bad[identity] = str(error)
                else:
                    made[owner, identity] = _Made(raw, named[identity], alias, upstream, tool)

        if fresh:
            await asyncio.to_thread(work)  # there may be thousands
        return made, bad

    def _compare(self, plan: PublishPlan, owner: str | None) -> None:
        """Note what becomes another, and at which servers."""
        before = {one.name: one.tool for label, one in self._made.items() if label[0] == owner}
        after = {tool.name: tool for tool in plan.tools[owner]}
        both = before.keys() & after.keys()
        changed = ToolsChanged(
            added=sorted(after.keys() - before.keys()),
            removed=sorted(before.keys() - after.keys()),
            changed=sorted(name for name in both if _differ(before[name], after[name])),
        )
        if changed:
            plan.changes[owner] = changed
        for name in (*changed.added, *changed.removed, *changed.changed):
            origins = (tools[name].origin for tools in (before, after) if name in tools)
            plan.touched |= {(owner, origin.server) for origin in origins if origin}


def _by_owner(stands: Iterable[ListedServer]) -> dict[str | None, list[ListedServer]]:
    by_owner: dict[str | None, list[ListedServer]] = {}
    for stand in stands:
        by_owner.setdefault(stand.upstream.owner, []).append(stand)
    return by_owner


def _differ(before: Tool, after: Tool) -> bool:
    return before is not after and (before.view(), before.origin) != (after.view(), after.origin)
