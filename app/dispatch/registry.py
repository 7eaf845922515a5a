"""The registry: every tool that can be called, by name."""

from collections.abc import Iterable
from difflib import get_close_matches

from app.core.errors import UnknownTool
from app.core.tools import Tool


class Registry:
    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise ValueError(f"two tools are named {tool.name}")
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def find(self, name: str) -> Tool:
        tool = self._tools.get(name)
        if tool is not None:
            return tool
        close = get_close_matches(name, self._tools, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"Available: {', '.join(sorted(self._tools))}."
        raise UnknownTool(f"There is no tool named {name}. {hint}")

    def all(self) -> list[Tool]:
        """In the order of their names, so that a list is the same every time."""
        return [self._tools[name] for name in sorted(self._tools)]
