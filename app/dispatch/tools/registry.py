"""The registry: every tool that can be called, by name. Some are everybody's, some belong to one principal.

What is everybody's goes first: nobody can put a tool of their own in its place,
and one that comes later hides the tools that principals had by its name. An alias
gives way to any tool that has the name for its own.

The tools of MCP servers come and go in whole sets. They are named so that no name
is in the way, and their aliases give way to everything else.
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


class Expected(Protocol):
    """Who may still list a tool that nobody has listed yet."""

    async def arrive(self) -> None:
        """Wait until it is known. Raises `ToolUnavailable` when it will not be for now."""
        ...


class Registry:
    """The tools it is made with are the built-in ones: they stay. `probes` knows which tools can be used.

    `on_change` hears the names that come and go, but for those of MCP servers.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.probes = ToolAvailability()
        self.expect: Callable[[str, str | None], Expected | None] = lambda name, principal: None
        self.on_change: Callable[[str], None] = lambda name: None
        self._everybodys: dict[str, Tool] = {}
        self._own: dict[str, dict[str, Tool]] = {}
        self._aliases: dict[str | None, dict[str, Tool]] = {}
        self._served: dict[str | None, dict[str, Tool]] = {}
        self._built_in: frozenset[str] = frozenset()
        for tool in tools:
            self.add(tool)
        self._built_in = frozenset(self._everybodys)

    def get(self, name: str, principal: str | None) -> Tool | None:
        """The tool this principal calls by this name. What was found by an alias takes the alias's arguments."""
        found = self._everybodys.get(name)
        if found is None and principal in self._own:
            found = self._own[principal].get(name)
        return found or self._by_alias(name, principal)

    def is_expected(self, name: str, principal: str | None) -> bool:
        """Whether a tool that is not there may come yet."""
        return self.get(name, principal) is None and self.expect(name, principal) is not None

    async def arrival(self, name: str, principal: str | None) -> None:
        """Wait for a tool that is not there and may come yet."""
        if self.get(name, principal) is None and (expected := self.expect(name, principal)) is not None:
            await expected.arrive()

    def find(self, name: str, principal: str | None) -> Tool:
        tool = self.get(name, principal)
        if tool is not None:
            return tool
        names = [known.name for known in self.all(principal)]
        close = get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"Available: {', '.join(names)}."
        raise UnknownTool(f"There is no tool named {name}. {hint}")

    def all(self, principal: str | None) -> list[Tool]:
        """In the order of their names, so that a list is the same every time. Aliases are not listed."""
        seen = self._own.get(principal or "", {}) | self._everybodys
        return [seen[name] for name in sorted(seen) if seen[name].is_listed]

    def add(self, tool: Tool) -> None:
        """Put in a new tool; its name must be free, and no other tool may have its aliases."""
        self.check(tool)
        self._put(tool)

    def replace(self, tool: Tool) -> Tool | None:
        """Put in a tool, in place of its owner's of this name if there is one; that one is answered.

        One that is not everybody's finds room beside those that are, even if it cannot be seen behind them.
        """
        self._check(tool, self._of(tool.name, tool.owner))
        old = self.remove(tool.name, tool.owner)
        self._put(tool)
        return old

    def remove(self, name: str, owner: str | None) -> Tool | None:
        """Take a tool out with all its names; calls that run it go on."""
        old = self._of(name, owner)
        if old is None:
            return None
        self._refuse_built_in(old)
        del self._shelf(owner)[name]
        for alias in old.aliases:
            del self._aliases[owner][alias.name]
        for shelves in (self._own, self._aliases):
            if owner is not None and not shelves.get(owner, True):
                del shelves[owner]
        self.on_change(name)
        return old

    def serve(self, tools: Iterable[Tool], owner: str | None) -> list[str]:
        """Put these in the place of all tools of MCP servers that this owner had. The answer are the names of those
        that found no room, because another tool came first."""
        shelf = self._everybodys if owner is None else self._own.setdefault(owner, {})
        for old in [tool for tool in shelf.values() if tool.origin is not None]:
            del shelf[old.name]
        given = list(tools)
        fitting = {tool.name: tool for tool in given if tool.name not in shelf}
        shelf |= fitting
        self._served[owner] = {alias.name: tool for tool in fitting.values() for alias in tool.aliases}
        if owner is not None and not shelf:
            del self._own[owner], self._served[owner]
        return [tool.name for tool in given if tool.name not in fitting]

    def taken(self, owner: str | None) -> set[str]:
        """The names, aliases too, of the tools this owner sees that are not of MCP servers."""
        seen = {None, owner}
        names = {tool.name for one in seen for tool in self._shelf(one).values() if tool.origin is None}
        return names.union(*(self._aliases.get(one, {}) for one in seen))

    def check(self, tool: Tool, *, instead: bool = False) -> None:
        """Whether there is room for this tool; with `instead`, room is also where one of its name and owner is."""
        old = self._of(tool.name, tool.owner) if instead else None
        self._check(tool, old, self._everybodys if tool.owner is not None else ())

    def _check(self, tool: Tool, old: Tool | None, others: Iterable[str] = ()) -> None:
        if old is not None:
            self._refuse_built_in(old)
            self._refuse_served(old)
        if tool.name in others or (old is None and tool.name in self._shelf(tool.owner)):
            raise NameTaken(tool.name)
        names = {tool.name, *self._shelf(tool.owner), *self._everybodys}
        aliases = {*self._aliases.get(tool.owner, {}), *self._aliases.get(None, {})}.difference(_aliases(old))
        taken = names | aliases  # an alias nobody could reach is a mistake
        for alias in _aliases(tool):
            if alias in taken:
                raise NameTaken(alias)
            taken.add(alias)

    def _refuse_built_in(self, tool: Tool) -> None:
        if tool.owner is None and tool.name in self._built_in:
            raise NameTaken(tool.name, "is built in and stays")

    def _refuse_served(self, tool: Tool) -> None:
        if tool.origin is not None:
            raise NameTaken(tool.name, f"is a tool of the MCP server {tool.origin.server}")

    def _of(self, name: str, owner: str | None) -> Tool | None:
        """An owner's tool by its own name."""
        return self._shelf(owner).get(name)

    def _by_alias(self, name: str, principal: str | None) -> Tool | None:
        for shelves in (self._aliases, self._served):
            for owner in (None, principal):
                if (found := shelves.get(owner, {}).get(name)) is not None:
                    return found
        return None

    def _shelf(self, owner: str | None) -> dict[str, Tool]:
        return self._everybodys if owner is None else self._own.get(owner, {})

    def _put(self, tool: Tool) -> None:
        shelf = self._everybodys if tool.owner is None else self._own.setdefault(tool.owner, {})
        shelf[tool.name] = tool
        if tool.aliases:
            known = self._aliases.setdefault(tool.owner, {})
            known |= {alias.name: _adapted(tool, alias) for alias in tool.aliases}
        self.on_change(tool.name)


def _aliases(tool: Tool | None) -> list[str]:
    return [alias.name for alias in tool.aliases] if tool else []


def _adapted(tool: Tool, alias: Alias) -> Tool:
    """The same tool, for those who call it by another name and know its arguments by others."""
    adapt = alias.adapt
    if adapt is None:
        return tool

    def parse(raw: Any) -> Any:
        return tool.parse(adapt(raw))

    return replace(tool, parse=parse)
