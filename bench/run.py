"""`python -m bench.run`: Toolcrib against a bare FastAPI echo, interleaved in one run; writes RESULTS.md."""

import argparse
import os
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bench.load import Server, Slice, load, serving, started
from bench.machine import Machine
from bench.results import render
from bench.results_sections import RESULTS

BARE, OURS = "echo", "toolcrib"


@dataclass(slots=True)
class Start:
    """One start of a server: how long until it was ready, and what it held then."""

    seconds: float
    rss_mb: float


@dataclass(slots=True)
class Measured:
    """All figures of one run: per number of clients and server one slice per round."""

    slices: dict[int, dict[str, list[Slice]]] = field(default_factory=dict)
    starts: dict[str, list[Start]] = field(default_factory=dict)
    stored: int = 0


def measure(clients: list[int], rounds: int, seconds: float, data_dir: Path) -> Measured:
    """Both servers are up at once; within a round they take turns, and the first one changes from round to round."""
    found = Measured(starts=measure_starts(rounds, data_dir / "starts"))
    with serving(BARE) as bare, serving(OURS, data_dir / "load") as ours:
        servers = {BARE: bare, OURS: ours}
        for server in servers.values():
            load(server, 32, 1)
        for number in range(rounds):
            for count in clients:
                measure_round(found, servers, count, seconds, is_reversed=number % 2 == 1)
    found.stored = count_stored(data_dir / "load")
    return found


def measure_round(found: Measured, servers: dict[str, Server], count: int, seconds: float, is_reversed: bool) -> None:
    turns = list(reversed(servers)) if is_reversed else list(servers)
    for name in turns:
        took = load(servers[name], count, seconds)
        found.slices.setdefault(count, {BARE: [], OURS: []})[name].append(took)
        print(
            f"{count:4} clients  {name:9} {took.rps:7.0f}/s  p50 {took.p50_ms:7.2f}  p99 {took.p99_ms:7.2f} ms", end=""
        )
        print(f"  {took.cpu_us:6.0f} us of CPU each", flush=True)


def measure_starts(rounds: int, data_dir: Path) -> dict[str, list[Start]]:
    """Starts in turn, ours by its own command. Its first one makes the database and is not counted."""
    commands = {BARE: ["bench.servers", BARE], OURS: ["app", "serve", "--data-dir", str(data_dir)]}
    starts: dict[str, list[Start]] = {BARE: [], OURS: []}
    with started(*commands[OURS]):
        pass
    for _ in range(rounds):
        for name, command in commands.items():
            with started(*command) as server:
                starts[name].append(Start(server.ready_seconds, server.rss_mb))
    return starts


def count_stored(data_dir: Path) -> int:
    """How many calls are on the disk; each of them must have been completed."""
    with sqlite3.connect(data_dir / "toolcrib.db") as db:
        counts = dict(db.execute("SELECT status, count(*) FROM calls GROUP BY status").fetchall())
    db.close()
    if set(counts) != {"completed"}:
        raise RuntimeError(f"not all calls were completed: {counts}")
    return int(counts["completed"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="where the data directory is made")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory(prefix="toolcrib-bench-", dir=given.disk) as made:
        machine = Machine.look(Path(made))
        found = measure(given.clients, given.rounds, given.seconds, Path(made))
    text = render(found, machine, os.getloadavg(), given.seconds, given.results)
    given.results.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
