"""Terminals: processes that go on in their session when the call that started them has ended."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from app.core.sandbox import Command, ExitStatus, Isolation, Process
from app.core.util.clocks import rfc3339

Tell = Callable[[str, str], Awaitable[None]]
"""Who hears what is written, as it comes: a text, and the stream it came on."""
Recipe = Callable[[int | None], Awaitable[Command]]
"""How a kernel is started, with so much memory. Raises `ToolUnavailable` when what it needs is not installed."""


class Collected(NamedTuple):
    """What a terminal wrote since it was last asked: the beginning and the end of it when it was much.

    `size` and `lines` count all of it, `omitted` the bytes that are left out in the middle. `ended` is told once it
    has, and then the terminal is gone.
    """

    text: str
    size: int
    lines: int
    omitted: int
    ended: ExitStatus | None


class Terminal(Protocol):
    """One process with a number of its own in its session."""

    @property
    def id(self) -> int: ...

    @property
    def command(self) -> str:
        """What was started, as it is shown."""
        ...

    @property
    def isolation(self) -> Isolation: ...

    @property
    def takes_input(self) -> bool: ...

    @property
    def typed(self) -> str:
        """What was written into it since the last end of a line."""
        ...

    async def write(self, text: str) -> None:
        """Give it input. A lone Ctrl-C interrupts, with or without a terminal.

        Raises `InvalidArgs` when it takes no input, `ToolUnavailable` when it does not read what it is given. One that
        has ended takes everything.
        """
        ...

    async def collect(self, seconds: float, tell: Tell | None = None) -> Collected:
        """Wait for its end, at most so long, then say what came. `tell` hears it meanwhile, and what was there before.

        One that is canceled takes nothing away from the next.
        """
        ...

    async def end(self) -> None:
        """Kill it, and everything it started. Its number is not known any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalView:
    """A terminal as the world sees it. `call` is the one that opened it."""

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
    """An interpreter that waits for work. It speaks lines of JSON over the channel of its process."""

    @property
    def process(self) -> Process: ...

    @property
    def is_fresh(self) -> bool:
        """Whether it was started for this call, so that nothing is defined in it."""
        ...

    @property
    def lost(self) -> str | None:
        """Why what was defined is gone, as a sentence, when the call before could not be told so."""
        ...
