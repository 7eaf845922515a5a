"""Processes that stay in their session after the call that started them: terminals and REPL kernels."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from app.core.sandbox import Command, ExitStatus, Isolation, Process
from app.core.util.clocks import rfc3339

Tell = Callable[[str, str], Awaitable[None]]
"""Gets the output while it is written: a text and its stream."""
Recipe = Callable[[int | None], Awaitable[Command]]
"""The command of a kernel with this much memory. Raises `ToolUnavailable` when a program is not installed."""


class Collected(NamedTuple):
    """The output of a terminal since the last collection: of long output the head and the tail.

    `size` and `lines` count all of it, `omitted` the bytes left out in the middle. With `ended` the terminal is gone.
    """

    text: str
    size: int
    lines: int
    omitted: int
    ended: ExitStatus | None


class Terminal(Protocol):
    """A process that is known by a number in its session."""

    @property
    def id(self) -> int: ...

    @property
    def command(self) -> str:
        """The started command, for display."""
        ...

    @property
    def isolation(self) -> Isolation: ...

    @property
    def takes_input(self) -> bool: ...

    @property
    def typed(self) -> str:
        """What was written to it since the last newline."""
        ...

    async def write(self, text: str) -> None:
        """Write to its input. A single Ctrl-C interrupts, with or without a terminal.

        Raises `InvalidArgs` when it has no input, `ToolUnavailable` when it does not read it. Input for one that has
        ended is ignored.
        """
        ...

    async def collect(self, seconds: float, tell: Tell | None = None) -> Collected:
        """Wait for its end, at most `seconds`, and return the output since the last one. `tell` gets it meanwhile.

        A canceled collection leaves the output for the next one.
        """
        ...

    async def end(self) -> None:
        """Kill it, and everything it started, and forget its number."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalView:
    """A terminal in the API. `call` is the one that opened it."""

    id: int
    call: str
    command: str
    is_tty: bool
    isolation: Isolation
    opened_at: int
    used_at: int
    exit_code: int | None

    def view(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "call": self.call,
            "command": self.command,
            "tty": self.is_tty,
            "sandbox": self.isolation.view(),
            "opened_at": rfc3339(self.opened_at),
            "used_at": rfc3339(self.used_at),
            "exit_code": self.exit_code,
        }


class Kernel(Protocol):
    """An idle interpreter. It exchanges lines of JSON over the channel of its process."""

    @property
    def process(self) -> Process: ...

    @property
    def is_fresh(self) -> bool:
        """Whether it was started for this call, so that nothing is defined in it."""
        ...

    @property
    def lost(self) -> str | None:
        """Why the definitions are gone, as a sentence, if the previous call could not report it."""
        ...
