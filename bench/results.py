"""RESULTS.md: the figures, the goals of the design beside them, and notes written by hand."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.load import Slice
from bench.machine import Machine
from bench.results_sections import loads, marks, spread, written

if TYPE_CHECKING:
    from bench.run import Measured

NOTES = "notes"
OTHERS = ("million", "streams", "files", "sandbox", "mcp", "runs")
NOTHING = "(nothing written yet)"


@dataclass(frozen=True, slots=True)
class Goal:
    """A line of the design's table: at least, or at most, this floor and this aim."""

    what: str
    floor: float
    aim: float
    is_more_better: bool
    measured: float | None
    unit: str = ""

    def verdict(self) -> str:
        if self.measured is None:
            return ""
        if self._reaches(self.aim):
            return "aim reached"
        return "floor reached" if self._reaches(self.floor) else "**missed**"

    def line(self) -> str:
        sign = "≥" if self.is_more_better else "≤"
        shown = "not measured" if self.measured is None else f"{self.measured:.2f}{self.unit}"
        marks = f"{sign} {self.floor:g}{self.unit} | {sign} {self.aim:g}{self.unit}"
        return f"| {self.what} | {marks} | {shown} | {self.verdict()} |"

    def _reaches(self, mark: float) -> bool:
        assert self.measured is not None
        return self.measured >= mark if self.is_more_better else self.measured <= mark


def render(
    found: "Measured", machine: Machine, load_after: tuple[float, float, float], seconds: float, kept: Path
) -> str:
    rounds = len(next(iter(found.slices.values()))["toolcrib"])
    lines = [
        *_preface(rounds, seconds),
        "",
        f"- {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}",
        f"- {machine.cores} cores, {machine.processor}, Linux {machine.kernel}",
        f"- Python {machine.python}, SQLite {machine.sqlite}, {machine.packages}",
        f"- disk {machine.disk}, fdatasync of 4 KiB {machine.fsync_ms:.2f} ms (median)",
        f"- {found.stored} calls stored at the end, each of them completed",
        f"- load average before {loads(machine.load_before)}, after {loads(load_after)}",
        "",
        *_table(found),
        "",
        *_starts(found),
        "",
        "## Goals",
        "",
        "| goal | floor | aim | measured | |",
        "|---|---|---|---|---|",
        *(goal.line() for goal in goals(found)),
        "",
        "## Notes",
        "",
        _section(kept, NOTES),
        "",
        *(f"{_section(kept, name)}\n" for name in OTHERS),
    ]
    return "\n".join(lines)


def _preface(rounds: int, seconds: float) -> Iterable[str]:
    yield "# Benchmark results"
    yield ""
    yield "A figure is the median [minimum to maximum] of all rounds. Ratios are computed within a round, and only"
    yield "ratios are claims: absolute figures depend on the machine. `make bench` writes this file."
    yield ""
    yield "## Durable calls"
    yield ""
    yield "`POST /v1/calls` with authentication, validation, rules, gate and two commits (`synchronous=FULL`),"
    yield "compared with a bare FastAPI echo with a pydantic body and a response_model. Both run under uvicorn, uvloop"
    yield f"and httptools, in one run of `python -m bench.run`: {rounds} rounds of {seconds:g} s, alternating, the"
    yield "server on one core and wrk on the other. CPU is that of all threads of the server per request."


def goals(found: "Measured") -> list[Goal]:
    """The lines of the design's table that this run can measure."""
    ready = median(start.seconds for start in found.starts["toolcrib"])
    memory = median(start.rss_mb for start in found.starts["toolcrib"])
    return [
        Goal("durable call vs bare echo, 32 clients, rps", 0.60, 0.85, True, _median_ratio(found, 32, _rps)),
        Goal("same at 256 clients", 0.70, 1.0, True, _median_ratio(found, 256, _rps)),
        Goal("server CPU per call vs the echo's, 32 clients", 2.0, 1.4, False, _median_ratio(found, 32, _cpu)),
        Goal("resident memory, idle", 120, 90, False, memory, " MB"),
        Goal("start to ready", 2, 1, False, ready, " s"),
    ]


def _table(found: "Measured") -> Iterable[str]:
    yield "| clients | server | requests/s | p50 ms | p99 ms | CPU µs each |"
    yield "|---|---|---|---|---|---|"
    for clients, by_name in found.slices.items():
        for name, slices in by_name.items():
            shown = [spread([s.rps for s in slices], 0)]
            shown += [spread([s.p50_ms for s in slices], 2), spread([s.p99_ms for s in slices], 2)]
            yield f"| {clients} | {name} | {' | '.join([*shown, spread([s.cpu_us for s in slices], 0)])} |"
        columns = [_rps, _p50, _p99, _cpu]
        ratios = " | ".join(spread(_ratios(found, clients, of), 2) for of in columns)
        yield f"| {clients} | **ratio** | {ratios} |"


def _starts(found: "Measured") -> Iterable[str]:
    yield "| server | start to ready s | resident MB, idle |"
    yield "|---|---|---|"
    for name, starts in found.starts.items():
        yield f"| {name} | {spread([s.seconds for s in starts], 2)} | {spread([s.rss_mb for s in starts], 1)} |"
    ours, bare = found.starts["toolcrib"], found.starts["echo"]
    seconds = [a.seconds / b.seconds for a, b in zip(ours, bare, strict=True)]
    memory = [a.rss_mb / b.rss_mb for a, b in zip(ours, bare, strict=True)]
    yield f"| **ratio** | {spread(seconds, 2)} | {spread(memory, 2)} |"


def _rps(slice: Slice) -> float:
    return slice.rps


def _p50(slice: Slice) -> float:
    return slice.p50_ms


def _p99(slice: Slice) -> float:
    return slice.p99_ms


def _cpu(slice: Slice) -> float:
    return slice.cpu_us


def _ratios(found: "Measured", clients: int, of: Callable[[Slice], float]) -> list[float]:
    by_name = found.slices[clients]
    return [of(ours) / of(bare) for ours, bare in zip(by_name["toolcrib"], by_name["echo"], strict=True)]


def _median_ratio(found: "Measured", clients: int, of: Callable[[Slice], float]) -> float | None:
    return median(_ratios(found, clients, of)) if clients in found.slices else None


def _section(kept: Path, name: str) -> str:
    """What a person or another benchmark wrote between the marks stays."""
    begin, end = marks(name)
    return f"{begin}\n{written(kept, name) or NOTHING}\n{end}"
