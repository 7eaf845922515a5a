"""Kernels: the interpreters of a session that keep what was defined from one call to the next."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from app.core.walls import Child, Command

Recipe = Callable[[int | None], Awaitable[Command]]
"""How a kernel is started, with so much memory. Raises `ToolUnavailable` when what it needs is not installed."""


class Kernel(Protocol):
    """An interpreter that waits for work. It speaks lines of JSON over its child's channel."""

    @property
    def child(self) -> Child: ...

    @property
    def is_fresh(self) -> bool:
        """Whether it was started for this call, so that nothing is defined in it."""
        ...

    @property
    def lost(self) -> str | None:
        """Why what was defined is gone, as a sentence, when the call before could not be told so."""
        ...
