"""The registry: every tool that can be called, by name. Some are everybody's, some belong to one principal.

What is everybody's goes first: nobody can put a tool of their own in its place,
and one that comes later hides the tools that principals had by its name.
"""

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from app.core.errors import UnknownTool
from app.core.tools import Alias, Tool
from app.dispatch.probes import Probes


class NameTaken(Exception):
    """Another tool has this name."""

    def __init__(self, name: str, why: str = "is the name of a tool already") -> None:
        super().__init__(f"{name} {why}.")
        self.name = name


class Registry:
    """The tools it is made with are the built-in ones: they stay. `probes` knows which tools can be used."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.probes = Probes()
        self._everybodys: dict[str, Tool] = {}
        self._own: dict[str, dict[str, Tool]] = {}
        self._built_in: frozenset[str] = frozenset()
        for tool in tools:
            self.add(tool)
        self._built_in = frozenset(self._everybodys)

    def get(self, name: str, principal: str | None) -> Tool | None:
        """The tool this principal calls by this name. What was found by an alias takes the alias's arguments."""
        found = self._everybodys.get(name)
        if found is None and principal in self._own:
            return self._own[principal].get(name)
        return found

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
        return [seen[name] for name in sorted(seen) if seen[name].name == name and seen[name].is_listed]

    def add(self, tool: Tool) -> None:
        """Put in a new tool; all its names must be free."""
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
        shelf = self._shelf(owner)
        for known in _names(old):
            del shelf[known]
        if owner is not None and not shelf:
            del self._own[owner]
        return old

    def check(self, tool: Tool, *, instead: bool = False) -> None:
        """Whether there is room for this tool; with `instead`, room is also where one of its name and owner is."""
        old = self._of(tool.name, tool.owner) if instead else None
        self._check(tool, old, self._everybodys if tool.owner is not None else ())

    def _check(self, tool: Tool, old: Tool | None, others: Iterable[str] = ()) -> None:
        if old is not None:
            self._refuse_built_in(old)
        taken = {*self._shelf(tool.owner)}.difference(_names(old) if old else ()).union(others)
        for name in _names(tool):
            if name in taken:
                raise NameTaken(name)
            taken.add(name)

    def _refuse_built_in(self, tool: Tool) -> None:
        if tool.owner is None and tool.name in self._built_in:
            raise NameTaken(tool.name, "is built in and stays")

    def _of(self, name: str, owner: str | None) -> Tool | None:
        """An owner's tool by its own name."""
        found = self._shelf(owner).get(name)
        return found if found is not None and found.name == name else None

    def _shelf(self, owner: str | None) -> dict[str, Tool]:
        return self._everybodys if owner is None else self._own.get(owner, {})

    def _put(self, tool: Tool) -> None:
        shelf = self._everybodys if tool.owner is None else self._own.setdefault(tool.owner, {})
        shelf[tool.name] = tool
        shelf |= {alias.name: _adapted(tool, alias) for alias in tool.aliases}


def _names(tool: Tool) -> list[str]:
    return [tool.name, *(alias.name for alias in tool.aliases)]


def _adapted(tool: Tool, alias: Alias) -> Tool:
    """The same tool, for those who call it by another name and know its arguments by others."""
    adapt = alias.adapt
    if adapt is None:
        return tool

    def parse(raw: Any) -> Any:
        return tool.parse(adapt(raw))

    return replace(tool, parse=parse)
