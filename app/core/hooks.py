"""Hooks: the operator's own say on the line. Python, a command or a webhook; all get a dict and may answer with one.

| point | gets | may answer |
|---|---|---|
| tool.definition | name, description, parameters | description, parameters |
| tool.execute.before | call, tool, kind, effect, session, agent, attempt, arguments or input | the same two · deny |
| permission.ask | the same, and the needs | decision: allow or deny, message |
| tool.execute.after | the same, and executed, success, output (a preview), error, duration_ms | output · deny |
| shell.env | call, tool, session, agent, cwd | env |

`deny` is the reason for a no, one sentence the model reads. It is heard at every point but the first.
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
    """The hook itself broke: no answer, a bad one, or none in time. What that means says its `on_failure`."""


class HookRun(Protocol):
    """How a hook is reached. None is an answer too: nothing to say."""

    async def __call__(self, point: Point, data: dict[str, Any], /) -> dict[str, Any] | None: ...


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


def hook(
    *points: str,
    name: str | None = None,
    tools: str | Sequence[str] = "*",
    timeout: float = 30.0,
    on_failure: OnFailure | None = None,
) -> Callable[[F], F]:
    """Make a function a hook, to be found in `hooks_dir` or by the entry point `toolcrib.hooks`.

    The function gets one dict, the `point` with it, and gives back a dict or None. It may be async;
    one that is not runs in a thread of its own.
    """
    at = frozenset(Point(point) for point in points)
    if not at:
        raise ValueError("a hook needs at least one point, like @hook('tool.execute.before')")
    patterns = (tools,) if isinstance(tools, str) else tuple(tools)

    def mark(function: F) -> F:
        called = name or function.__name__
        making = partial(Hook, name=called, points=at, tools=patterns, timeout=timeout, on_failure=on_failure)
        setattr(function, MARK, making)
        return function

    return mark


def marked(function: Any) -> "Callable[..., Hook] | None":
    """What makes a `Hook` of a function that was decorated, once it is said how to `run` it; None for any other."""
    making = getattr(function, MARK, None)
    return making if isinstance(making, partial) else None
