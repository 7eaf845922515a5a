"""Which tools a caller sees, and how they are described to it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from app.core.principals import Key
from app.core.redaction import Redactor
from app.core.rules import Action, Need
from app.core.sessions import Session
from app.core.tools import Audience, Effect, Ready, Tool
from app.core.util.json_codec import dumps
from app.dispatch.permission.permissions import Permissions
from app.dispatch.tools.availability import ANY_AUDIENCE
from app.dispatch.tools.registry import Registry

View = dict[str, Any]
Rank = Callable[[str, list[View]], list[View]]
Redefine = Callable[[View], Awaitable[View]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFilter:
    """Which tools to list. None means all; with `query` the best match comes first."""

    audience: Audience = ANY_AUDIENCE
    source: str | None = None
    server: str | None = None
    effect: Effect | None = None
    query: str | None = None

    def matches(self, tool: Tool) -> bool:
        return (
            (self.source is None or tool.source == self.source)
            and (self.server is None or server_of(tool) == self.server)
            and (self.effect is None or shown_effect(tool) is self.effect)
            and suits(tool, self.audience)
        )


def visible(tools: Iterable[Tool], session: Session, key: Key | None, permissions: Permissions) -> list[Tool]:
    """The tools a caller sees: those its key allows, without those that rules deny for all arguments."""
    return [tool for tool in tools if not permissions.hides(tool, session, key)]


def suits(tool: Tool, audience: Audience) -> bool:
    return tool.suits is None or tool.suits(audience)


def server_of(tool: Tool) -> str | None:
    """The MCP server a tool comes from, if it does."""
    return tool.origin and tool.origin.server


def shown_effect(tool: Tool) -> Effect:
    """An effect that depends on the arguments is shown as `write`."""
    return tool.effect if isinstance(tool.effect, Effect) else Effect.WRITE


def audience_of(session: Session) -> Audience:
    """For whom the tools of a session are."""
    return Audience(model=session.model, agent=session.agent, session=session.id)


class Listing:
    """Tools as they are shown. `redefine` runs the definition hooks, `rank` sorts by a query."""

    def __init__(
        self, registry: Registry, permissions: Permissions, redactor: Redactor, *, rank: Rank, redefine: Redefine
    ) -> None:
        self._registry = registry
        self._permissions = permissions
        self._redactor = redactor
        self._rank = rank
        self._redefine = redefine

    async def tools(self, session: Session, key: Key, wanted: ToolFilter, *, probe: bool = False) -> list[View]:
        """The tools this caller sees that fit, by name or, with a query, the best first."""
        seen = visible(self._registry.all(key.principal), session, key, self._permissions)
        fitting = [tool for tool in seen if wanted.matches(tool)]
        views = await asyncio.gather(*(self.show(tool, wanted.audience, probe=probe) for tool in fitting))
        return self._rank(wanted.query, views) if wanted.query is not None else views

    def get(self, name: str, session: Session, key: Key) -> Tool | None:
        """One tool by any of its names, if this caller sees it."""
        tool = self._registry.get(name, key.principal)
        return tool if tool and visible([tool], session, key, self._permissions) else None

    def shows_server(self, server: str, session: Session, key: Key) -> bool:
        """Whether this caller sees an MCP server: something of it can be used."""
        if any(self.allows_mcp(server, part, session, key) for part in ("", "resources", "prompts")):
            return True
        seen = visible(self._registry.all(key.principal), session, key, self._permissions)
        return any(self._may_use(tool, session, key) for tool in seen if server_of(tool) == server)

    def _may_use(self, tool: Tool, session: Session, key: Key) -> bool:
        """Whether calls of an MCP tool are not all denied."""
        assert tool.origin is not None, "only MCP tools are checked"
        need = Need("mcp", f"{tool.origin.server}/{tool.origin.raw['name']}")
        return self._permissions.verdicts(tool, [need], session, key)[0].action is not Action.DENY

    def allows_mcp(self, server: str, part: str, session: Session, key: Key) -> bool:
        """Whether this caller may ask an MCP server for what it has besides tools: its `resources` or `prompts`. A key
        that is bound to some tools is bound to their servers, too."""
        if key.bounds.tools and not any(
            server_of(tool) == server and key.bounds.allows_tool(tool.name)
            for tool in self._registry.all(key.principal)
        ):
            return False
        return self._permissions.allows_mcp(server, part, session, key)

    def redacted(self, info: View) -> View:
        """What an MCP server says of itself, without secrets."""
        text = dumps(info).decode()
        cleaned = self._redactor.json(text, is_output=True)
        shown: View = info if cleaned == text else json.loads(cleaned)
        return shown

    def quoted(self, text: str) -> str:
        """A caller's text as it may be repeated in an error."""
        return self._redactor.text(text)

    async def show(self, tool: Tool, audience: Audience = ANY_AUDIENCE, *, probe: bool = False) -> View:
        """One tool, with what its `init` says to this audience and whether it can be used at all."""
        ready = await self._ready(tool, audience, probe)
        view = tool.view()
        if ready.description is not None:
            view["description"] = ready.description
        if ready.schema is not None:
            view["parameters"] = ready.schema
        reason = None if ready.reason is None else self._redactor.text(ready.reason)
        return await self._redefine(view) | {"owner": tool.owner, "available": reason is None, "reason": reason}

    async def _ready(self, tool: Tool, audience: Audience, probe: bool) -> Ready:
        """A tool that cannot be used at all is not asked for this audience."""
        availability = self._registry.availability
        answer = availability.known(tool) if not probe else None
        answer = answer or await availability.ask(tool)
        if audience == ANY_AUDIENCE or answer.reason is not None:
            return answer
        known = availability.known(tool, audience) if not probe else None
        return known or await availability.ask(tool, audience)
