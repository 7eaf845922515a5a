"""A tool on a workspace without a service around it, and what it is compared with, in turn."""

import asyncio
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

from app.core.asks import Answer
from app.core.back_channel import BackChannel
from app.core.errors import CallError, ToolUnavailable
from app.core.mcp_resources import McpResources
from app.core.ports import HttpRequest, HttpResponse, SearchResult
from app.core.results import Result
from app.core.rules import DEFAULTS, Action, Need, judge_one
from app.core.sandbox import Command, Process
from app.core.sessions import Session
from app.core.terminals import Kernel, Terminal
from app.core.tools import Context, Tool
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.process.trusted import TrustedProcesses
from app.sandbox.ripgrep import Ripgrep
from app.tools import BUILTINS
from bench.results_sections import spread

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
        line = BenchLine(tool, self, approved)
        return await tool.run(
            args, Context(id="call", session_id="default", workspace=self.workspace, line=line, approved=approved)
        )

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


class BenchLine:
    """As much of the line as these tools use."""

    def __init__(self, tool: Tool, bench: Workbench, approved: frozenset[str]) -> None:
        self._tool = tool
        self._bench = bench
        self._approved = approved

    async def search(self, path: str, arguments: Sequence[str], seconds: float, limit: int) -> SearchResult:
        return await self._bench.searcher.search(
            self._bench.workspace, path, arguments, approved=self._approved, seconds=seconds, limit=limit
        )

    def may(self, needs: Sequence[Need]) -> list[bool]:
        return [judge_one(need, (DEFAULTS,), self._tool.name).action is Action.ALLOW for need in needs]

    def progress(self, title: str | None, metadata: dict[str, Any] | None) -> None:
        pass

    async def output(self, text: str, stream: str) -> None:
        pass

    async def require(self, needs: list[Need], metadata: dict[str, Any] | None) -> None:
        pass

    async def send(self, request: HttpRequest) -> HttpResponse:
        raise ToolUnavailable("Nothing is sent here.")

    async def environment(self) -> dict[str, str]:
        return {}

    def upload(self, id: str) -> BinaryIO:
        raise ToolUnavailable("Nothing is uploaded here.")

    def tools(self) -> list[Tool]:
        return []

    async def call(self, tool: str, arguments: dict[str, Any]) -> Result:
        raise ToolUnavailable("No tool calls another one here.")

    async def keep_plan(self, plan: dict[str, Any]) -> None:
        pass

    async def start(self, command: Command) -> Process:
        raise ToolUnavailable("No process is started here.")

    async def open_terminal(self, command: Command, shown: str) -> Terminal:
        raise ToolUnavailable("No process is started here.")

    def terminal(self, id: int) -> Terminal:
        raise ToolUnavailable("No process is started here.")

    def kernel(self, kind: str, memory: int | None) -> AbstractAsyncContextManager[Kernel]:
        raise ToolUnavailable("No process is started here.")

    async def drop_kernel(self, kind: str) -> bool:
        return False

    async def elicit(self, shows: dict[str, Any]) -> Answer:
        raise ToolUnavailable("nobody is asked here")

    def go_on(self) -> None:
        pass

    @property
    def session(self) -> Session:
        return Session("toy", "default")

    @property
    def attendant(self) -> BackChannel | None:
        return None

    @property
    def neighbours(self) -> McpResources:
        raise ToolUnavailable("there are no servers here")


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
