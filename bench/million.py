"""`python -m bench.million`: a service with a million calls stored against one with none, interleaved in one run."""

import argparse
import http.client
import json
import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from app.core.util.clocks import rfc3339
from app.store import db, migrate
from bench.load import Server, Slice, load, serving, started
from bench.machine import Machine
from bench.results_sections import RESULTS, loads, spread, write
from bench.servers import KEY, TEXT

EMPTY, FULL = "empty", "full"
SESSIONS = 50
STEP = 1_000_000  # microseconds between two stored calls
ASKS = 200


@dataclass(slots=True)
class Found:
    """All figures of one run, by the name of the service."""

    rps: dict[str, list[Slice]] = field(default_factory=lambda: {EMPTY: [], FULL: []})
    starts: dict[str, list[float]] = field(default_factory=lambda: {EMPTY: [], FULL: []})
    memory: dict[str, list[float]] = field(default_factory=lambda: {EMPTY: [], FULL: []})
    pages: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    loaded_seconds: float = 0
    megabytes: float = 0


def fill(data_dir: Path, count: int) -> None:
    """As the service itself would have left them: completed calls with three events each, the newest just now."""
    data_dir.mkdir(parents=True, mode=0o700)
    url = db.database_url(data_dir, None)
    migrate.upgrade(url)
    with closing(sqlite3.connect(str(url.database))) as store:
        store.execute("PRAGMA synchronous=OFF")
        columns = [row[1] for row in store.execute("PRAGMA table_info(calls)")]
        names = f"({','.join(columns)}) VALUES ({','.join(f':{name}' for name in columns)})"
        empty = dict.fromkeys(columns)
        first = time.time_ns() // 1000 - count * STEP
        with store:
            store.executemany(f"INSERT INTO calls {names}", (empty | call(first, n) for n in range(count)))
        with store:
            store.executemany("INSERT INTO events VALUES (?,?,?,?,?,?,?)", events(first, count))
            store.execute("UPDATE counters SET value = ? WHERE name = 'event_seq'", (count * 3,))
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def call(first: int, number: int) -> dict[str, object]:
    at = first + number * STEP
    result: dict[str, object] = {"output": TEXT, "title": "", "metadata": {}, "attachments": [], "structured": None}
    return {
        "id": call_id(at, number),
        "principal": "admin",
        "session": f"s{number % SESSIONS}",
        "tool": "echo",
        "status": "completed",
        "arguments": json.dumps({"text": TEXT}),
        "result": json.dumps(result),
        "owner": "bench",
        "attempt": 1,
        "created_at": at,
        "started_at": at,
        "ended_at": at + 900,
        "duration_us": 400,
        "output_dropped": 0,
    }


def call_id(at: int, number: int) -> str:
    return f"call_{at:014x}{number:010x}"


def events(first: int, count: int) -> Iterator[tuple[object, ...]]:
    for number in range(count):
        at = first + number * STEP
        about = (call_id(at, number), "admin", f"s{number % SESSIONS}", at, None)
        for place, kind in enumerate(("call.pending", "call.running", "call.completed"), 1):
            yield number * 3 + place, kind, *about


def pages(count: int) -> dict[str, Callable[[random.Random], str]]:
    """What is asked for, each time somewhere else."""
    first = time.time_ns() // 1000 - count * STEP

    def somewhere(chance: random.Random) -> str:
        return call_id(first + chance.randrange(count) * STEP, 0)

    return {
        "calls, newest page": lambda chance: "/v1/calls?limit=50",
        "calls, page in the middle": lambda chance: f"/v1/calls?limit=50&cursor={somewhere(chance)}",
        "calls of a session, in the middle": lambda chance: (
            f"/v1/calls?limit=50&session=s{chance.randrange(SESSIONS)}&cursor={somewhere(chance)}"
        ),
        "calls since a time, completed": lambda chance: (
            f"/v1/calls?limit=50&status=completed&since={rfc3339(first + chance.randrange(count) * STEP)}"
        ),
        "calls that run": lambda chance: "/v1/calls?limit=50&status=running",
        "events behind a number": lambda chance: f"/v1/events?limit=100&after={chance.randrange(1, count * 3)}",
    }


def measure(count: int, rounds: int, seconds: float, place: Path) -> Found:
    found = Found()
    began = time.perf_counter()
    fill(place / FULL, count)
    found.loaded_seconds = time.perf_counter() - began
    found.megabytes = (place / FULL / db.FILE_NAME).stat().st_size / 2**20
    fill(place / EMPTY, 0)
    for _ in range(rounds):
        for name in (EMPTY, FULL):
            with started("bench.servers", "toolcrib", "--data-dir", str(place / name)) as server:
                found.starts[name].append(server.ready_seconds)
                found.memory[name].append(server.rss_mb)
    with serving("toolcrib", place / EMPTY) as empty, serving("toolcrib", place / FULL) as full:
        servers = {EMPTY: empty, FULL: full}
        for server in servers.values():
            load(server, 32, 1)
        for number in range(rounds):
            for name in sorted(servers, reverse=number % 2 == 1):
                found.rps[name].append(load(servers[name], 32, seconds))
        for name, path_of in pages(count).items():
            found.pages[name] = {which: ask(server, path_of) for which, server in servers.items()}
        found.pages["resume: 1,000 events from the middle"] = {FULL: [resume(full, count) for _ in range(10)]}
    return found


def ask(server: Server, path_of: Callable[[random.Random], str]) -> list[float]:
    """Milliseconds of a page over HTTP on one connection."""
    chance, times = random.Random(1), []
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/json"}
    for _ in range(ASKS):
        began = time.perf_counter()
        connection.request("GET", path_of(chance), headers=headers)
        answer = connection.getresponse()
        answer.read()
        times.append((time.perf_counter() - began) * 1000)
        if answer.status != 200:
            raise RuntimeError(f"{path_of(chance)} was answered {answer.status}")
    connection.close()
    return times


def resume(server: Server, count: int) -> float:
    """Milliseconds until a stream that resumes in the middle has brought a thousand events."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Authorization": f"Bearer {KEY}", "Last-Event-ID": str(count * 3 // 2)}
    connection.request("GET", "/v1/events", headers=headers)
    answer, seen = connection.getresponse(), 0
    while seen < 1000:
        seen += answer.readline().startswith(b"id: ")
    connection.close()
    return (time.perf_counter() - began) * 1000


def render(found: Found, count: int, machine: Machine) -> str:
    ratios = [full.rps / empty.rps for full, empty in zip(found.rps[FULL], found.rps[EMPTY], strict=True)]
    cpu = [full.cpu_us / empty.cpu_us for full, empty in zip(found.rps[FULL], found.rps[EMPTY], strict=True)]
    lines = [
        f"## {count:,} calls and {count * 3:,} events stored",
        "",
        f"`python -m bench.million`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}: two services at",
        "the same time,",
        f"one with an empty database, one with {found.megabytes:.0f} MB (written in",
        f"{found.loaded_seconds:.0f} s); slices",
        f"with 32 clients, alternating. Load average before {loads(machine.load_before)}, after",
        f"{loads(os.getloadavg())};",
        f"disk {machine.disk}, fdatasync {machine.fsync_ms:.2f} ms.",
        "",
        "| | empty | full | full vs empty |",
        "|---|---|---|---|",
        f"| calls/s, 32 clients | {spread([s.rps for s in found.rps[EMPTY]], 0)} "
        f"| {spread([s.rps for s in found.rps[FULL]], 0)} | {spread(ratios, 2)} |",
        f"| CPU µs per call | {spread([s.cpu_us for s in found.rps[EMPTY]], 0)} "
        f"| {spread([s.cpu_us for s in found.rps[FULL]], 0)} | {spread(cpu, 2)} |",
        f"| start to ready s | {spread(found.starts[EMPTY], 2)} | {spread(found.starts[FULL], 2)} "
        f"| {median(found.starts[FULL]) / median(found.starts[EMPTY]):.2f} |",
        f"| resident MB, idle | {spread(found.memory[EMPTY], 1)} | {spread(found.memory[FULL], 1)} "
        f"| {median(found.memory[FULL]) / median(found.memory[EMPTY]):.2f} |",
        "",
        "| page, over HTTP on one connection | empty p50 / p99 ms | full p50 / p99 ms |",
        "|---|---|---|",
        *(f"| {name} | {tails(by.get(EMPTY))} | {tails(by.get(FULL))} |" for name, by in found.pages.items()),
        "",
        f"Goal: at most 15 % fewer calls per second than with an empty database (aim 10 %): {verdict(median(ratios))}.",
    ]
    return "\n".join(lines)


def verdict(ratio: float) -> str:
    seen = f"{(1 - ratio) * 100:+.0f} % fewer" if ratio <= 1 else f"{(ratio - 1) * 100:.0f} % more"
    return f"{seen}, " + ("aim reached" if ratio >= 0.90 else "floor reached" if ratio >= 0.85 else "**missed**")


def tails(values: list[float] | None) -> str:
    return f"{median(values):.2f} / {quantiles(values, n=100)[98]:.2f}" if values else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="where the data directories are made")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory(prefix="toolcrib-bench-", dir=given.disk) as made:
        machine = Machine.look(Path(made))
        found = measure(given.calls, given.rounds, given.seconds, Path(made))
    text = render(found, given.calls, machine)
    write(given.results, "million", text)
    print(text)


if __name__ == "__main__":
    main()
