"""The registry: every tool that can be called, by name. Tools are shared by all principals or belong to one.

Shared tools win: a principal cannot replace one, and a shared tool added later hides principals' tools of its name.
A tool's own name wins over an alias. The tools of MCP servers are replaced in whole sets; their names do not collide
with others, and their aliases lose against everything else.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Protocol

from app.core.errors import UnknownTool
from app.core.tools import Alias, Tool
from app.dispatch.tools.availability import ToolAvailability


class NameTaken(Exception):
    """Another tool has this name."""

    def __init__(self, name: str, why: str = "is the name of a tool already") -> None:
        super().__init__(f"{name} {why}.")
        self.name = name


class PendingServer(Protocol):
    """An MCP server that has not listed its tools yet."""

    async def wait_listed(self) -> None:
        """Wait until its tools are listed. Raises `ToolUnavailable` when that fails."""
        ...


class Registry:
    """The tools it is made with are the built-in ones and cannot be removed.

    `on_change` is called with the names of tools that are added and removed, except those of MCP servers.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.availability = ToolAvailability()
        #: The server that may still list a tool of this name, for this principal.
        self.pending_server: Callable[[str, str | None], PendingServer | None] = lambda name, principal: None
        self.on_change: Callable[[str], None] = lambda name: None
        self._shared: dict[str, Tool] = {}
        self._own: dict[str, dict[str, Tool]] = {}
        self._aliases: dict[str | None, dict[str, Tool]] = {}
        self._server_aliases: dict[str | None, dict[str, Tool]] = {}
        self._built_in: frozenset[str] = frozenset()
        for tool in tools:
            self.add(tool)
        self._built_in = frozenset(self._shared)

    def get(self, name: str, principal: str | None) -> Tool | None:
        """The tool this principal calls by this name. Found by an alias, it takes the alias's arguments."""
        tool = self._shared.get(name)
        if tool is None and principal in self._own:
            tool = self._own[principal].get(name)
        if tool is not None:
            return tool
        for aliases in (self._aliases, self._server_aliases):
            for owner in (None, principal):
                if (tool := aliases.get(owner, {}).get(name)) is not None:
                    return tool
        return None

    async def wait_until_listed(self, name: str, principal: str | None) -> None:
        """Wait for a tool that its MCP server has not listed yet."""
        if self.get(name, principal) is None and (server := self.pending_server(name, principal)) is not None:
            await server.wait_listed()

    def find(self, name: str, principal: str | None) -> Tool:
        tool = self.get(name, principal)
        if tool is not None:
            return tool
        names = [known.name for known in self.all(principal)]
        close = get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"Available: {', '.join(names)}."
        raise UnknownTool(f"There is no tool named {name}. {hint}")

    def all(self, principal: str | None) -> list[Tool]:
        """Sorted by name, without aliases."""
        seen = self._own.get(principal or "", {}) | self._shared
        return [seen[name] for name in sorted(seen) if seen[name].is_listed]

    def add(self, tool: Tool) -> None:
        """Add a tool; its name and aliases must be free."""
        self.check(tool)
        self._put(tool)

    def replace(self, tool: Tool) -> Tool | None:
        """Add a tool, replacing its owner's tool of this name; returns the old one.

        A principal's tool can be added beside a shared one of the same name, which hides it.
        """
        self._check(tool, self._of(tool.name, tool.owner))
        old = self.remove(tool.name, tool.owner)
        self._put(tool)
        return old

    def remove(self, name: str, owner: str | None) -> Tool | None:
        """Remove a tool with all its names; calls that run it continue."""
        old = self._of(name, owner)
        if old is None:
            return None
        self._refuse_built_in(old)
        del self._tools_of(owner)[name]
        for alias in old.aliases:
            del self._aliases[owner][alias.name]
        for by_owner in (self._own, self._aliases):
            if owner is not None and not by_owner.get(owner, True):
                del by_owner[owner]
        self.on_change(name)
        return old

    def replace_server_tools(self, tools: Iterable[Tool], owner: str | None) -> list[str]:
        """Replace all MCP tools of this owner by these. Returns the names of those that another tool has already."""
        existing = self._shared if owner is None else self._own.setdefault(owner, {})
        for old in [tool for tool in existing.values() if tool.origin is not None]:
            del existing[old.name]
        new = list(tools)
        fitting = {tool.name: tool for tool in new if tool.name not in existing}
        existing |= fitting
        self._server_aliases[owner] = {alias.name: tool for tool in fitting.values() for alias in tool.aliases}
        if owner is not None and not existing:
            del self._own[owner], self._server_aliases[owner]
        return [tool.name for tool in new if tool.name not in fitting]

    def names_in_use(self, owner: str | None) -> set[str]:
        """The names, aliases too, of the tools this owner sees that are not of MCP servers."""
        seen = {None, owner}
        names = {tool.name for one in seen for tool in self._tools_of(one).values() if tool.origin is None}
        return names.union(*(self._aliases.get(one, {}) for one in seen))

    def check(self, tool: Tool, *, instead: bool = False) -> None:
        """Raise `NameTaken` when the tool cannot be added. `instead`: it may replace its owner's tool of this name."""
        old = self._of(tool.name, tool.owner) if instead else None
        self._check(tool, old, self._shared if tool.owner is not None else ())

    def _check(self, tool: Tool, old: Tool | None, others: Iterable[str] = ()) -> None:
        if old is not None:
            self._refuse_built_in(old)
            if old.origin is not None:
                raise NameTaken(old.name, f"is a tool of the MCP server {old.origin.server}")
        if tool.name in others or (old is None and tool.name in self._tools_of(tool.owner)):
            raise NameTaken(tool.name)
        names = {tool.name, *self._tools_of(tool.owner), *self._shared}
        aliases = {*self._aliases.get(tool.owner, {}), *self._aliases.get(None, {})}.difference(_aliases(old))
        taken = names | aliases  # an alias that no caller could use is a mistake
        for alias in _aliases(tool):
            if alias in taken:
                raise NameTaken(alias)
            taken.add(alias)

    def _refuse_built_in(self, tool: Tool) -> None:
        if tool.owner is None and tool.name in self._built_in:
            raise NameTaken(tool.name, "is built in and stays")

    def _of(self, name: str, owner: str | None) -> Tool | None:
        return self._tools_of(owner).get(name)

    def _tools_of(self, owner: str | None) -> dict[str, Tool]:
        return self._shared if owner is None else self._own.get(owner, {})

    def _put(self, tool: Tool) -> None:
        tools = self._shared if tool.owner is None else self._own.setdefault(tool.owner, {})
        tools[tool.name] = tool
        if tool.aliases:
            known = self._aliases.setdefault(tool.owner, {})
            known |= {alias.name: _adapted(tool, alias) for alias in tool.aliases}
        self.on_change(tool.name)


def _aliases(tool: Tool | None) -> list[str]:
    return [alias.name for alias in tool.aliases] if tool else []


def _adapted(tool: Tool, alias: Alias) -> Tool:
    """The same tool with the argument names of the alias."""
    adapt = alias.adapt
    if adapt is None:
        return tool

    def parse(raw: Any) -> Any:
        return tool.parse(adapt(raw))

    return replace(tool, parse=parse)
