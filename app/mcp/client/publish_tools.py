"""Names, builds and registers the tools of all MCP servers."""

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
"""Builds a tool from a listed one. Raises `ValueError` with a sentence when it is unusable."""
Key = tuple[str | None, str]
"""A server by its owner (None: shared by all) and name."""
Label = tuple[str | None, Identity]
"""A tool by its server's owner and its identity."""


class ListedServer(NamedTuple):
    """A server and its catalog."""

    upstream: Upstream
    catalog: Catalog


class _BuiltTool(NamedTuple):
    raw: Raw
    name: str
    alias: str | None
    upstream: Upstream
    tool: Tool


@dataclass(slots=True)
class PublishPlan:
    """The tools to register and what that changes, by owner."""

    tools: dict[str | None, list[Tool]] = field(default_factory=dict)
    changes: dict[str | None, ToolsChanged] = field(default_factory=dict)
    changed_servers: set[Key] = field(default_factory=set)
    unusable: dict[Key, list[Invalid]] = field(default_factory=dict)
    built: dict[Label, _BuiltTool] = field(default_factory=dict)

    def names_by_server(self) -> dict[Key, list[str]]:
        """The names of each server's tools."""
        names: dict[Key, list[str]] = {}
        for (owner, identity), built in self.built.items():
            names.setdefault((owner, identity.server), []).append(built.name)
        return names


class ToolPublisher:
    """Rebuilds a tool only when its description or its name changes.

    `on_name_conflict` is called when names may have to be assigned again.
    """

    def __init__(self, registry: Registry, make: Make) -> None:
        self.on_name_conflict: Callable[[], None] = lambda: None
        self._registry = registry
        self._make = make
        self._built: dict[Label, _BuiltTool] = {}
        self._owners: set[str | None] = set()
        registry.on_change = self._on_registry_change

    async def plan(self, servers: Iterable[ListedServer]) -> PublishPlan:
        """Shared servers first: the tools of principals have to use other names."""
        plan = PublishPlan()
        shared: set[str] = set()
        by_owner: dict[str | None, list[ListedServer]] = {}
        for server in servers:
            by_owner.setdefault(server.upstream.owner, []).append(server)
        for owner in sorted({*by_owner, *self._owners}, key=lambda owner: owner or ""):
            taken = self._registry.names_in_use(owner) | shared
            await self._plan_owner(plan, owner, by_owner.get(owner, []), taken)
            if owner is None:
                shared = {tool.name for tool in plan.tools[None]}
        return plan

    def publish(self, plan: PublishPlan) -> None:
        """Put the planned tools into the registry."""
        refused = [
            name for owner, tools in plan.tools.items() for name in self._registry.replace_server_tools(tools, owner)
        ]
        self._built = {label: built for label, built in plan.built.items() if built.name not in refused}
        if refused:  # another tool took these names after the plan was made
            self.on_name_conflict()
        self._owners = {owner for owner, tools in plan.tools.items() if tools}

    def _on_registry_change(self, name: str) -> None:
        if name.startswith(tool_names.PREFIX):
            self.on_name_conflict()

    async def _plan_owner(
        self, plan: PublishPlan, owner: str | None, servers: Sequence[ListedServer], taken: set[str]
    ) -> None:
        listed = {
            Identity(server.upstream.definition.name, raw["name"]): (server.upstream, raw)
            for server in servers
            for raw in server.catalog.allowed_tools(server.upstream.definition)
        }
        while True:  # again if some are unusable: their names are free then
            built, unusable = await self._build_all(owner, listed, taken)
            for identity, reason in unusable.items():
                invalid = Invalid(identity.tool, reason[:MAX_REASON])
                plan.unusable.setdefault((owner, identity.server), []).append(invalid)
                del listed[identity]
            if not unusable:
                break
        plan.built |= built
        plan.tools[owner] = sorted((one.tool for one in built.values()), key=lambda tool: tool.name)
        self._compare(plan, owner)

    async def _build_all(
        self, owner: str | None, listed: dict[Identity, tuple[Upstream, Raw]], taken: set[str]
    ) -> tuple[dict[Label, _BuiltTool], dict[Identity, str]]:
        names = tool_names.assign(listed, taken)
        aliases = tool_names.aliases(names, taken)
        built: dict[Label, _BuiltTool] = {}
        new: list[Identity] = []
        for identity, (upstream, raw) in listed.items():
            old = self._built.get((owner, identity))
            if old is not None and old[:4] == (raw, names[identity], aliases.get(identity), upstream):
                built[owner, identity] = old
            else:
                new.append(identity)
        unusable: dict[Identity, str] = {}

        def build() -> None:
            for identity in new:
                upstream, raw = listed[identity]
                alias = aliases.get(identity)
                try:
                    tool = self._make(upstream, raw, names[identity], (Alias(alias),) if alias else ())
                except (ValueError, CallError) as error:
                    unusable[identity] = str(error)
                else:
                    built[owner, identity] = _BuiltTool(raw, names[identity], alias, upstream, tool)

        if new:
            await asyncio.to_thread(build)  # there may be thousands
        return built, unusable

    def _compare(self, plan: PublishPlan, owner: str | None) -> None:
        """Record which tools change, and at which servers."""
        before = {built.name: built.tool for label, built in self._built.items() if label[0] == owner}
        after = {tool.name: tool for tool in plan.tools[owner]}
        changes = ToolsChanged(
            added=sorted(after.keys() - before.keys()),
            removed=sorted(before.keys() - after.keys()),
            changed=sorted(name for name in before.keys() & after.keys() if _differ(before[name], after[name])),
        )
        if changes:
            plan.changes[owner] = changes
        for name in (*changes.added, *changes.removed, *changes.changed):
            origins = (tools[name].origin for tools in (before, after) if name in tools)
            plan.changed_servers |= {(owner, origin.server) for origin in origins if origin}


def _differ(before: Tool, after: Tool) -> bool:
    return before is not after and (before.view(), before.origin) != (after.view(), after.origin)
