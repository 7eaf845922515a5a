"""Neighbours: MCP servers as tools and routes see them, apart from the tools they give."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.core.sessions import Session
from app.core.util.json_codec import Raw

if TYPE_CHECKING:
    from app.core.tools import Context


class ResourceList(NamedTuple):
    """One page. Each item is as its server said it, with `server` added."""

    items: list[Raw]
    next_cursor: str | None = None


class McpResources(Protocol):
    """What the servers have besides tools. Each session sees everybody's servers and those of its principal.

    Without a server all of them are asked, in the order of their names, and there is no cursor; one that is down is
    left out. Raises `InvalidArgs` for a server that is not known or has no such thing, `ToolUnavailable` for one that
    is down, `McpFailed` with what it said, `McpDisconnected`.
    """

    async def resources(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList: ...

    async def templates(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList: ...

    async def prompts(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList: ...

    async def read(self, session: Session, server: str, uri: str, about: "Context | None" = None) -> Raw:
        """A resource: `{"contents": […]}`. What the server asks meanwhile belongs to the call it is read for."""
        ...

    async def prompt(
        self, session: Session, server: str, name: str, arguments: dict[str, str], about: "Context | None" = None
    ) -> Raw:
        """A prompt: `{"messages": […]}`, likewise."""
        ...

    async def complete(self, session: Session, server: str, params: Raw) -> Raw:
        """What would complete an argument of a prompt or template: `{"completion": {…}}`."""
        ...

    async def watch(self, session: Session, server: str, uri: str) -> None:
        """Be told by the server when this resource changes, as long as anybody watches it."""
        ...

    async def unwatch(self, session: Session, server: str, uri: str) -> None: ...
