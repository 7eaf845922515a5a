"""Hooks: code of the operator in the call pipeline. Python, a command or a webhook; all get a dict and may return one.

| point | gets | may return |
|---|---|---|
| tool.definition | name, description, parameters | description, parameters |
| tool.execute.before | call, tool, kind, effect, session, agent, attempt, arguments or input | the same two · deny |
| permission.ask | the same, and the needs | decision: allow or deny, message |
| tool.execute.after | the same, and executed, success, output (a preview), error, duration_ms | output · deny |
| shell.env | call, tool, session, agent, cwd | env |

`deny` is the reason of a denial, one sentence for the model. It works at every point but the first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from app.core.rules import matches

OnFailure = Literal["block", "continue"]
MARK = "__toolcrib_hook__"
F = TypeVar("F", bound=Callable[..., Any])


class Point(StrEnum):
    DEFINITION = "tool.definition"
    BEFORE = "tool.execute.before"
    AFTER = "tool.execute.after"
    SHELL_ENV = "shell.env"
    ASK = "permission.ask"


class HookFailed(Exception):
    """The hook failed: an error, an invalid result, or a timeout. `on_failure` decides what follows."""


class HookRun(Protocol):
    """Calls a hook; None means no change."""

    async def __call__(self, point: Point, data: dict[str, Any], /) -> dict[str, Any] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A hook: its points, its tools, its timeout, and what its failure means."""

    name: str
    points: frozenset[Point]
    run: HookRun
    tools: tuple[str, ...] = ("*",)
    timeout: float = 30.0
    on_failure: OnFailure | None = None

    def concerns(self, point: Point, tool: str) -> bool:
        return point in self.points and any(matches(pattern, tool) for pattern in self.tools)

    def blocks(self, point: Point) -> bool:
        """Whether its failure denies the call; by default only at the points before execution."""
        if self.on_failure is not None:
            return self.on_failure == "block"
        return point in (Point.BEFORE, Point.ASK, Point.SHELL_ENV)


def hook(
    *points: str,
    name: str | None = None,
    tools: str | Sequence[str] = "*",
    timeout: float = 30.0,
    on_failure: OnFailure | None = None,
) -> Callable[[F], F]:
    """Make a function a hook, for a file in `hooks_dir` or the entry point `toolcrib.hooks`.

    The function gets one dict, with the `point` in it, and returns a dict or None. A function that is not async
    runs in a thread.
    """
    at = frozenset(Point(point) for point in points)
    if not at:
        raise ValueError("a hook needs at least one point, like @hook('tool.execute.before')")
    patterns = (tools,) if isinstance(tools, str) else tuple(tools)

    def mark(function: F) -> F:
        factory = partial(
            Hook, name=name or function.__name__, points=at, tools=patterns, timeout=timeout, on_failure=on_failure
        )
        setattr(function, MARK, factory)
        return function

    return mark


def marked(function: Any) -> "Callable[..., Hook] | None":
    """The `Hook` factory of a decorated function, which needs only `run`; None for other functions."""
    factory = getattr(function, MARK, None)
    return factory if isinstance(factory, partial) else None
