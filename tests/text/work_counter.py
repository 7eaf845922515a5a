"""How much work is done, counted and not timed: calls made, and characters searched by the calls that search."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

SEARCHES = {"find", "rfind", "index", "count", "replace", "split", "sub", "strip", "join", "__contains__"}


@dataclass
class Work:
    calls: int = 0
    searched: int = 0

    def watch(self, frame: FrameType, event: str, about: Any) -> None:
        if event not in ("call", "c_call"):
            return
        self.calls += 1
        if event == "c_call" and about.__name__ in SEARCHES and isinstance(about.__self__, str):
            self.searched += len(about.__self__)


def work_of(action: Callable[[], object]) -> Work:
    work = Work()
    sys.setprofile(work.watch)
    try:
        action()
    finally:
        sys.setprofile(None)
    return work
