"""Watchdogs: they look at a tree from time to time, and say when it takes more than it may."""

import time

from app.sandbox.process import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

SHORTEST, LONGEST = 0.25, 1.0
MUCH = 0.02


class Watchdog:
    """Looks often, and less often where nothing changes."""

    def __init__(self, memory: int | None, processes: int | None) -> None:
        self._memory = memory
        self._processes = processes
        self._pause = SHORTEST
        self._last = (0, 0)
        self.due = float("inf") if memory is None and processes is None else time.monotonic() + SHORTEST

    @property
    def is_due(self) -> bool:
        return self.due <= time.monotonic()

    def look(self, pids: list[int]) -> "Literal['memory', 'processes'] | None":
        """The limit that these processes are over."""
        threads, memory = process_tree.usage(pids)
        if self._processes is not None and threads > self._processes:
            return "processes"
        if self._memory is not None and memory > self._memory and process_tree.fair_memory(pids) > self._memory:
            return "memory"
        is_same = threads == self._last[0] and abs(memory - self._last[1]) <= MUCH * self._last[1]
        self._pause = min(2 * self._pause, LONGEST) if is_same else SHORTEST
        self._last = threads, memory
        self.due = time.monotonic() + self._pause
        return None
