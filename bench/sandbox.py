"""`python -m bench.sandbox`: what it costs to run a command through the whole service, in each kind of sandbox.

Measured against what anybody would write, in one run and in turn: `subprocess.run(["true"])`, the same commands one
after the other, and a pipe into `cat > /dev/null`. The service is the real one, started by its own command.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.load import ROOT, Server, free_port
from bench.machine import Machine
from bench.results_sections import RESULTS, loads, spread, write
from bench.servers import KEY

BACKENDS = ("landlock", "bwrap")
FLOORS = {"landlock": (10.0, 6.0), "bwrap": (22.0, 15.0)}
PARALLEL = 16
GIB = 1024**3
FLOOD = f"yes 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde | head -c {GIB}"
FLOODING = {"command": FLOOD, "timeout_ms": 180_000}


@dataclass(slots=True)
class Found:
    """All figures of one backend; times in milliseconds."""

    calls: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    in_turn: list[float] = field(default_factory=list)
    flood: list[float] = field(default_factory=list)
    pipe: list[float] = field(default_factory=list)
    growth_mb: list[float] = field(default_factory=list)


class Client:
    """One connection that stays open, as a frontend has it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps({"tool": tool, "arguments": arguments, "timeout": 200})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        self._connection.request("POST", "/v1/calls?wait=200", body, headers)
        answer: dict[str, Any] = json.loads(self._connection.getresponse().read())
        if answer.get("status") != "completed":
            raise RuntimeError(f"{tool} did not work: {answer}")
        return answer


@contextmanager
def service(backend: str, data_dir: Path) -> Iterator[Server]:
    port = free_port()
    os.environ["TOOLCRIB_SANDBOX"] = json.dumps({"backend": backend})
    os.environ["TOOLCRIB_API_KEY"] = KEY
    os.environ["TOOLCRIB_ACCESS_LOG"] = "false"
    command = [sys.executable, "-m", "app", "serve", "--data-dir", str(data_dir), "--port", str(port)]
    server = Server(command, port, None)
    try:
        told = Client(port).call("shell", {"command": ["true"]})
        if told["sandbox"]["backend"] != backend:
            raise RuntimeError(f"asked for {backend}, got {told['sandbox']}")
        yield server
    finally:
        server.stop()


def timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def measure(backend: str, data_dir: Path, rounds: int, floods: int) -> Found:
    found = Found()
    with service(backend, data_dir) as server, ThreadPoolExecutor(PARALLEL) as threads:
        clients = [Client(server.port) for _ in range(PARALLEL)]
        for _ in range(rounds):
            found.calls.append(timed(lambda: clients[0].call("shell", {"command": ["true"]})))
            found.bare.append(timed(lambda: subprocess.run(["true"], check=True)))
        safe = [{"command": f"cat /etc/passwd | wc -l # {number}"} for number in range(PARALLEL)]
        for _ in range(5):
            found.together.append(timed(lambda: list(threads.map(_call, clients, safe))))
            found.in_turn.append(timed(lambda: [clients[0].call("shell_command", one) for one in safe]))
        for _ in range(floods):
            before = server.rss_mb
            found.flood.append(
                timed(lambda: clients[0].call("shell_command", {"command": FLOOD, "timeout_ms": 180_000}))
            )
            found.growth_mb.append(_most_rss(server) - before)
            found.pipe.append(timed(lambda: subprocess.run(f"{FLOOD} | cat > /dev/null", shell=True, check=True)))
    return found


def _call(client: Client, arguments: dict[str, Any]) -> None:
    client.call("shell_command", arguments)


def _most_rss(server: Server) -> float:
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def line(backend: str, found: Found) -> str:
    starts = median(found.calls) / median(found.bare)
    floor, aim = FLOORS[backend]
    verdict = "aim reached" if starts <= aim else "floor reached" if starts <= floor else "**missed**"
    throughput = GIB / 1e6 / (median(found.flood) / 1000)
    return (
        f"| {backend} | {median(found.calls):.1f} | {median(found.bare):.2f} | {starts:.1f} "
        f"(floor {floor:g}, aim {aim:g}: {verdict}) | {spread(ratios(found.in_turn, found.together), 1)} "
        f"| {throughput:.0f} MB/s, {spread(ratios(found.pipe, found.flood), 2)} | {max(found.growth_mb):.0f} |"
    )


def render(found: dict[str, Found], machine: Machine, rounds: int) -> str:
    return "\n".join(
        [
            "## Sandboxed commands",
            "",
            f"`python -m bench.sandbox`, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {rounds} calls of each",
            "kind, alternating. `true` is a whole `POST /v1/calls` with its durable record, by one client that",
            "waits for",
            "each answer; bare is `subprocess.run` in the client. The parallel calls are read-only command lines,",
            f"{PARALLEL} at once. The flood is 1 GiB of output through the service, of which 64 MiB are stored;",
            "bare is",
            f"the same producer into `cat > /dev/null`. fsync takes {machine.fsync_ms:.2f} ms. Load",
            f"average before {loads(machine.load_before)}, after {loads(os.getloadavg())}.",
            "",
            "| backend | `true`, p50 ms | bare, p50 ms | ratio | 16 in turn / at once | flood, bare time / ours "
            "| growth of memory, MB |",
            "|---|---|---|---|---|---|---|",
            *(line(backend, one) for backend, one in found.items()),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--floods", type=int, default=2)
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="where the data directory is made")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="toolcrib-bench-", dir=given.disk) as made:
        os.chmod(made, 0o755)
        machine = Machine.look(Path(made))
        found = {
            backend: measure(backend, Path(made) / backend, given.rounds, given.floods) for backend in given.backends
        }
    text = render(found, machine, given.rounds)
    write(given.results, "sandbox", text)
    print(text)


if __name__ == "__main__":
    main()
