"""Counters for metrics: how calls ended, by tool, status and error code, and how long their tools ran.

The number of labels is bounded: unregistered tools count as `unknown`, tools of single principals as `own`, and error
codes beyond a limit as `other`.
"""

import re
from collections import Counter

from app.core.calls import Call
from app.core.errors import CallError
from app.core.util.histogram import Histogram
from app.dispatch.tools.registry import Registry

UNKNOWN = "unknown"
OWN = "own"
OTHER = "other"
MAX_CODES = 64
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class CallStats:
    """`ends` by (tool, status, code), where the code of a completed call is empty; `durations` in seconds by tool."""

    def __init__(self, registry: Registry) -> None:
        self.ends: Counter[tuple[str, str, str]] = Counter()
        self.durations: dict[str, Histogram] = {}
        self._registry = registry
        self._codes: set[str] = set()

    def record(self, call: Call, error: CallError | None) -> None:
        """Count a call whose end is committed. One that never started has no duration."""
        tool = self._name(call)
        self.ends[tool, call.status.value, "" if error is None else self._code(error.code)] += 1
        if call.duration_us is None:
            return
        durations = self.durations.get(tool)
        if durations is None:
            durations = self.durations[tool] = Histogram(SECONDS)
        durations.record(call.duration_us / 1_000_000)

    def _name(self, call: Call) -> str:
        """A tool is counted by its own name, not by an alias; tools of single principals count as one."""
        tool = self._registry.get(call.tool, call.principal)
        if tool is None:
            return UNKNOWN
        return tool.name if tool.owner is None else OWN

    def _code(self, code: str) -> str:
        """The family of a code (`ExitCode` of `ExitCode:3`), if it is known or there is room for one more."""
        family = code.partition(":")[0]
        if family in self._codes:
            return family
        if len(self._codes) >= MAX_CODES or not _WORD.fullmatch(family):
            return OTHER
        self._codes.add(family)
        return family
