"""The port of a REPL kernel: a process that runs cells."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from app.core.sandbox import Command, Process

Recipe = Callable[[int | None], Awaitable[Command]]
"""How a kernel is started, with so much memory. Raises `ToolUnavailable` when what it needs is not installed."""


class Kernel(Protocol):
    """An interpreter that waits for work. It speaks lines of JSON over its child's channel."""

    @property
    def child(self) -> Process: ...

    @property
    def is_fresh(self) -> bool:
        """Whether it was started for this call, so that nothing is defined in it."""
        ...

    @property
    def lost(self) -> str | None:
        """Why what was defined is gone, as a sentence, when the call before could not be told so."""
        ...
