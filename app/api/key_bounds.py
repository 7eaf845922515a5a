"""Requests for key bounds and permission rules."""

from collections.abc import Callable, Collection
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from app.core.principals import Bounds, OnAsk, Scope
from app.core.rules import Action, Approval, Rule
from app.core.sessions import InvalidSession

MAX_RULES = 256
MAX_PATTERNS = 64
MAX_LIMIT = 60_000

Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Folder = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^/")]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]


class RuleLine(BaseModel, extra="forbid"):
    """One rule; of several the last match wins."""

    permission: str = Field(
        default="*", min_length=1, max_length=256, description="The permission, or a tool's name.", examples=["edit"]
    )
    pattern: str = Field(
        default="*",
        min_length=1,
        max_length=1024,
        description="To what; `*` is any text, `?` any character.",
    )
    action: Action = Field(description="What happens.", examples=["ask"])

    def rule(self) -> Rule:
        return Rule(self.permission, self.pattern, self.action)


Rules = Annotated[list[RuleLine], Field(max_length=MAX_RULES)]


class BoundsRequest(BaseModel, extra="forbid"):
    """The bounds of a key, besides its scopes. What is left out is not bound."""

    sessions: list[Pattern] = Field(
        default=[], max_length=MAX_PATTERNS, description="Patterns of the sessions it sees and uses."
    )
    workspaces: list[Folder] = Field(
        default=[], max_length=MAX_PATTERNS, description="Folders that contain the workspaces of its sessions."
    )
    tools: list[Pattern] = Field(
        default=[], max_length=MAX_PATTERNS, description="Patterns of the tools it sees and uses."
    )
    rules: Rules = Field(default=[], description="Permission rules for its calls; the last match wins.")
    approval: Approval | None = Field(default=None, description="The approval preset for its calls.")
    on_ask: OnAsk | None = Field(default=None, description="`deny`: what would be asked is denied without asking.")
    calls_per_minute: Limit | None = Field(default=None, description="Most calls it may make in a minute.")
    concurrent_calls: Limit | None = Field(default=None, description="Most of its calls under way at once.")
    streams: Limit | None = Field(default=None, description="Most event streams it has open at once.")

    def bounds(self, real: Callable[[str], str], scopes: Collection[Scope]) -> Bounds:
        """The bounds with symlinks in folders resolved. Raises `InvalidSession`."""
        if Scope.ADMIN in scopes and (self.sessions or self.workspaces or self.tools):
            raise InvalidSession(  # it could create a key that sees more
                "bounds: an admin key sees everything; it cannot be bound to sessions, workspaces or tools."
            )
        limits = self.model_dump(exclude={"rules", "sessions", "workspaces", "tools"})
        return Bounds(
            **limits,
            sessions=tuple(self.sessions),
            workspaces=tuple(real(folder) for folder in self.workspaces),
            tools=tuple(self.tools),
            rules=tuple(line.rule() for line in self.rules),
        )
