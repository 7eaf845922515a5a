"""A tool on a workspace without a service around it, and what it is compared with, in turn."""

import asyncio
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from app.core.errors import CallError
from app.core.ports import SearchResult
from app.core.results import Result
from app.core.rules import DEFAULTS, Action, Need, judge_one
from app.core.tools import MAX_SEARCH_BYTES, Tool
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.process.trusted import TrustedProcesses
from app.sandbox.ripgrep import Ripgrep
from app.tools import BUILTINS
from bench.results_sections import spread
from tests.support.tool_contexts import StubContext

TOOLS = {tool.name: tool for tool in BUILTINS}

Work = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Took:
    """One run, in milliseconds: on the clock, and of processors, those of programs that were started included."""

    ms: float
    cpu_ms: float


@dataclass(slots=True)
class Row:
    """One tool beside one bare way to do its work, round by round."""

    what: str
    bare: str
    goal: float | None = None
    ours: list[Took] = field(default_factory=list)
    theirs: list[Took] = field(default_factory=list)

    def ratios(self, of: Callable[[Took], float]) -> list[float]:
        return [of(ours) / of(theirs) for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    def line(self) -> str:
        """A line of the table `HEAD` begins."""
        shown = f"| {self.what} | {_spread(self.ours)} | {self.bare} | {_spread(self.theirs)} "
        return shown + f"| {spread(self.ratios(_ms), 2)} | {spread(self.ratios(_cpu_ms), 2)} | {self.verdict()} |"

    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return f"≤ {self.goal:g}: " + ("reached" if median(self.ratios(_ms)) <= self.goal else "**missed**")


HEAD = ("| what | ms | bare | ms | ratio | ratio of CPU | goal |", "|---|---|---|---|---|---|---|")


class Workbench:
    """A workspace and what a tool finds there: the real opener, the real ripgrep, the default rules."""

    def __init__(self, root: Path, rounds: int) -> None:
        root.mkdir()
        self.root = root
        self.rounds = rounds
        self.workspace = LocalWorkspace(root)
        self.searcher = Ripgrep(TrustedProcesses())
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.close()
        self.workspace.close()

    def call(self, name: str, arguments: Any) -> Result:
        """A tool from its arguments to its result. Raises the `CallError` that is its answer."""
        return self._runner.run(self._call(TOOLS[name], arguments))

    async def _call(self, tool: Tool, arguments: Any) -> Result:
        args = tool.parse(arguments)
        approved = frozenset(need.pattern for need in tool.needs(args, self.workspace))
        context = BenchContext(workspace=self.workspace, approved=approved, tool=tool, searcher=self.searcher)
        return await tool.run(args, context)

    def failure(self, name: str, arguments: Any) -> CallError:
        """The error a tool has to end in."""
        try:
            self.call(name, arguments)
        except CallError as error:
            return error
        raise RuntimeError(f"{name} should have failed")

    def compare(self, rows: Sequence[Row], ours: Work, theirs: Sequence[Work], prepare: Work | None = None) -> None:
        """Run ours and each row's bare way in turn. The first round warms up; who begins changes every round."""
        works = [(row.theirs, work) for row, work in zip(rows, theirs, strict=True)]
        works.append((rows[0].ours, ours))
        for number in range(self.rounds + 1):
            for times, work in works if number % 2 else works[::-1]:
                if prepare is not None:
                    prepare()
                took = _took(work)
                if number:
                    times.append(took)
        for row in rows:
            row.ours = rows[0].ours
            print(row.line(), flush=True)


@dataclass(kw_only=True)
class BenchContext(StubContext):
    """The real ripgrep and the default rules; nothing else."""

    tool: Tool
    searcher: Ripgrep

    async def search(
        self, path: str, arguments: Sequence[str], *, seconds: float = 30, limit: int = MAX_SEARCH_BYTES
    ) -> SearchResult:
        return await self.searcher.search(
            self.workspace, path, arguments, approved=self.approved, seconds=seconds, limit=limit
        )

    def is_allowed(self, needs: Sequence[Need]) -> list[bool]:
        return [judge_one(need, (DEFAULTS,), self.tool.name).action is Action.ALLOW for need in needs]


def _took(work: Work) -> Took:
    began, spent = time.perf_counter(), _spent()
    work()
    return Took((time.perf_counter() - began) * 1000, (_spent() - spent) * 1000)


def _spent() -> float:
    """Seconds of processors so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _ms(took: Took) -> float:
    return took.ms


def _cpu_ms(took: Took) -> float:
    return took.cpu_ms


def _spread(runs: list[Took]) -> str:
    return spread([run.ms for run in runs], 1)
