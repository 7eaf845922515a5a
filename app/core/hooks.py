"""Hooks: the operator's own say on the line. Python, a command or a webhook; all get a dict and may answer with one.

| point | gets | may answer |
|---|---|---|
| tool.definition | name, description, parameters | description, parameters |
| tool.execute.before | call, tool, kind, effect, session, agent, attempt, arguments or input | the same two · deny |
| permission.ask | the same, and the needs | decision: allow or deny, message |
| tool.execute.after | the same, and executed, success, output (a preview), error, duration_ms | output · deny |
| shell.env | call, tool, session, agent, cwd | env |

`deny` is the reason for a no, one sentence the model reads.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from app.core.rules import matches

OnFailure = Literal["block", "continue"]


class Point(StrEnum):
    DEFINITION = "tool.definition"
    BEFORE = "tool.execute.before"
    AFTER = "tool.execute.after"
    SHELL_ENV = "shell.env"
    ASK = "permission.ask"


class HookFailed(Exception):
    """The hook itself broke: no answer, a bad one, or none in time. What that means says its `on_failure`."""


class HookRun(Protocol):
    """How a hook is reached. None is an answer too: nothing to say."""

    async def __call__(self, point: Point, about: dict[str, Any]) -> dict[str, Any] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One hook: where it is asked, about which tools, how long it has, and what its failure means."""

    name: str
    points: frozenset[Point]
    run: HookRun
    tools: tuple[str, ...] = ("*",)
    timeout: float = 30.0
    on_failure: OnFailure | None = None

    def concerns(self, point: Point, tool: str) -> bool:
        return point in self.points and any(matches(pattern, tool) for pattern in self.tools)

    def blocks(self, point: Point) -> bool:
        """Whether its failure is a no: unless said otherwise, only before something has happened."""
        if self.on_failure is not None:
            return self.on_failure == "block"
        return point in (Point.BEFORE, Point.ASK, Point.SHELL_ENV)
