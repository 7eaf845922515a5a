"""Terminals: processes that go on in their session when the call that started them has ended."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from app.core.clocks import rfc3339
from app.core.walls import Ended, Walls


class Collected(NamedTuple):
    """What a terminal wrote since it was last asked: the beginning and the end of it when it was much.

    `size` counts all bytes of it, `omitted` those that are left out in the middle. `ended` is told once it has.
    """

    text: str
    size: int
    omitted: int
    ended: Ended | None


class Terminal(Protocol):
    """One process with a number of its own in its session."""

    @property
    def id(self) -> int: ...

    @property
    def walls(self) -> Walls: ...

    async def write(self, text: str) -> None:
        """Raises `InvalidArgs` when it takes no input."""
        ...

    async def collect(self, seconds: float) -> Collected:
        """Wait so long for output, or for its end, whichever comes first; then tell what came."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalView:
    """A terminal as the world sees it. `call` is the one that opened it."""

    id: int
    call: str
    command: str
    is_tty: bool
    walls: Walls
    opened_at: int
    used_at: int
    exit_code: int | None

    def view(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "call": self.call,
            "command": self.command,
            "tty": self.is_tty,
            "sandbox": self.walls.view(),
            "opened_at": rfc3339(self.opened_at),
            "used_at": rfc3339(self.used_at),
            "exit_code": self.exit_code,
        }
