"""`python -m bench.mcp`: a call of an MCP server's tool through Toolcrib, beside the same call made otherwise."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.load import ROOT, Slice
from bench.machine import Machine
from bench.proxies import DIRECT, FASTMCP, LEAST, MCPO, OURS, UPSTREAMS, Way, echoing, ways
from bench.results_sections import RESULTS, loads, spread, write
from bench.run import count_stored


@dataclass(slots=True)
class Measured:
    """Per upstream, number of clients and way one slice per round."""

    slices: dict[str, dict[int, dict[str, list[Slice]]]] = field(default_factory=dict)
    stored: int = 0

    def add(self, upstream: str, clients: int, way: str, slice: Slice) -> None:
        self.slices.setdefault(upstream, {}).setdefault(clients, {}).setdefault(way, []).append(slice)


def measure(found: dict[str, dict[str, Way]], rounds: int, seconds: float, clients: list[int]) -> Measured:
    """Within a round all take turns, and who begins changes from round to round. The first round warms up."""
    measured = Measured()
    for number in range(rounds + 1):
        for upstream, by_name in found.items():
            for count in clients:
                for name in turns(by_name, count, number):
                    took = by_name[name].load(count, seconds if number else 1)
                    show(upstream, count, name, took)
                    if number:
                        measured.add(upstream, count, name, took)
    return measured


def turns(by_name: dict[str, Way], clients: int, number: int) -> list[str]:
    """FastMCP's proxy over HTTP is asked by one client only: it needs minutes for what 32 of them want."""
    names = [name for name in by_name if clients == 1 or LEAST in by_name or name != FASTMCP]
    first = number % len(names)
    return names[first:] + names[:first]


def show(upstream: str, clients: int, name: str, took: Slice) -> None:
    print(f"{upstream:6} {clients:3} clients  {name:14} {took.rps:7.0f}/s  p50 {took.p50_ms:7.2f} ms", end="")
    print(f"  p99 {took.p99_ms:7.2f} ms  {took.cpu_us:6.0f} us of CPU each", flush=True)


def ratios(by_name: dict[str, list[Slice]], ours: str, theirs: str, of: str) -> list[float]:
    pairs = zip(by_name[ours], by_name[theirs], strict=True)
    return [getattr(one, of) / getattr(other, of) for one, other in pairs]


def goals(measured: Measured) -> Iterator[str]:
    yield "| goal | floor | aim | " + " | ".join(measured.slices) + " |"
    yield "|---|---|---|" + "---|" * len(measured.slices)
    lines = (
        ("p50 vs the direct call, 1 client", 1, DIRECT, "p50_ms", (2.0, 2.0)),
        ("p50 vs the direct call, 32 clients", 32, DIRECT, "p50_ms", (2.0, 2.0)),
        ("calls/s vs mcpo on uvloop, 32 clients", 32, MCPO, "rps", (0.85, 1.5)),
        ("p50 vs FastMCP's proxy, 1 client", 1, FASTMCP, "p50_ms", (0.2, 0.2)),
        ("p50 vs FastMCP's proxy, 32 clients", 32, FASTMCP, "p50_ms", (0.2, 0.2)),
    )
    for what, clients, other, of, (floor, aim) in lines:
        if any(clients not in by_count for by_count in measured.slices.values()):
            continue
        sign = "≥" if of == "rps" else "≤"
        cells = [verdict(by_count[clients], other, of, (floor, aim)) for by_count in measured.slices.values()]
        yield f"| {what} | {sign} {floor:g} | {sign} {aim:g} | {' | '.join(cells)} |"
    yield from least(measured)


def least(measured: Measured) -> Iterator[str]:
    """What stands beside the goals: how near to them one can come."""
    lines = (
        ("p50 of the least vs the direct call, 1 client", 1, LEAST, DIRECT, "p50_ms"),
        ("p50 of the least vs FastMCP's proxy, 1 client", 1, LEAST, FASTMCP, "p50_ms"),
        ("p50 of Toolcrib vs the least, 1 client", 1, OURS, LEAST, "p50_ms"),
        ("calls/s of Toolcrib vs the least, 32 clients", 32, OURS, LEAST, "rps"),
    )
    for what, clients, one, other, of in lines:
        named = [by_count.get(clients, {}) for by_count in measured.slices.values()]
        cells = [f"{median(ratios(by_name, one, other, of)):.2f}" if LEAST in by_name else "" for by_name in named]
        yield f"| {what} | | | {' | '.join(cells)} |"


def verdict(by_name: dict[str, list[Slice]], other: str, of: str, marks: tuple[float, float]) -> str:
    if other not in by_name:
        return "not measured"
    found = median(ratios(by_name, OURS, other, of))
    floor, aim = (found >= mark if of == "rps" else found <= mark for mark in marks)
    said = "aim reached" if aim else "floor reached" if floor else "**missed**"
    return f"{found:.2f}: {said}"


def table(measured: Measured) -> Iterator[str]:
    yield "| upstream | clients | way | calls/s | p50 ms | p99 ms | CPU µs each | calls/s, ours : theirs | p50, same |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for upstream, by_count in measured.slices.items():
        for clients, by_name in by_count.items():
            for name, slices in by_name.items():
                cells = [spread([one.rps for one in slices], 0), spread([one.p50_ms for one in slices], 2)]
                cells += [spread([one.p99_ms for one in slices], 2), spread([one.cpu_us for one in slices], 0)]
                if name != OURS:
                    cells += [spread(ratios(by_name, OURS, name, of), 2) for of in ("rps", "p50_ms")]
                else:
                    cells += ["", ""]
                yield f"| {upstream} | {clients} | {name} | {' | '.join(cells)} |"


def render(measured: Measured, machine: Machine, rounds: int, seconds: float) -> str:
    lines = [
        "## Calls of MCP servers",
        "",
        f"`python -m bench.mcp`, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC: {rounds} rounds of",
        f"{seconds:g} s, alternating, all processes up at the same time. `direct` is the SDK's client in its own",
        "process, without a proxy and without a record. `mcpo` (on uvloop) and `fastmcp` are other proxies",
        "(`bench/peers`). `least` (`bench/minimal_proxy.py`) is a proxy by hand that makes two commits of one row",
        f"around the call. Toolcrib makes two commits with `synchronous=FULL` ({measured.stored} calls stored, all",
        "completed). The proxy has one core, the echo server and wrk have the other. CPU is that of the proxy or of",
        f"the direct client. fdatasync takes {machine.fsync_ms:.2f} ms. Load average before",
        f"{loads(machine.load_before)}, after",
        f"{loads(os.getloadavg())}.",
        "",
        *(f"- {name}: {what}" for name, what in UPSTREAMS.items()),
        "",
        *table(measured),
        "",
        *goals(measured),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--upstreams", nargs="+", default=list(UPSTREAMS), choices=list(UPSTREAMS))
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="where the data directory is made")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    os.chdir(ROOT)
    subprocess.run(["bash", "scripts/bench-peers", sys.executable], check=True)
    with tempfile.TemporaryDirectory(prefix="toolcrib-bench-", dir=given.disk) as made, echoing() as echoes:
        machine = Machine.look(Path(made))
        wanted = {name: target for name, target in echoes.items() if name in given.upstreams}
        with ways(wanted, Path(made) / "data") as found:
            measured = measure(found, given.rounds, given.seconds, given.clients)
        measured.stored = count_stored(Path(made) / "data")
    text = render(measured, machine, given.rounds, given.seconds)
    write(given.results, "mcp", text)
    print(text)


if __name__ == "__main__":
    main()
