"""Servers under load: started on one core, loaded from another by wrk, and what the kernel says they used."""

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.servers import BODY, KEY

ROOT = Path(__file__).parent.parent
SCRIPT = Path(__file__).with_name("call.lua")
READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Slice:
    """One server under one load for a few seconds."""

    rps: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    requests: int


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent again and again. `mark` has to be in every answer."""

    path: str = "/v1/calls"
    body: dict[str, Any] = field(default_factory=lambda: BODY)
    headers: dict[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {KEY}"})
    mark: str = ""


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    finally:
        connection.close()


class Server:
    """A server process pinned to one core."""

    def __init__(
        self, command: list[str], port: int, core: int | None, ready: Callable[[int], bool] = is_ready
    ) -> None:
        began = time.perf_counter()
        self.port = port
        self._process = subprocess.Popen(pinned(command, core), cwd=ROOT, stdout=subprocess.DEVNULL)
        self.pid = self._process.pid
        self._wait_ready(began + READY_SECONDS, ready)
        self.ready_seconds = time.perf_counter() - began

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def cpu_by_thread(self) -> dict[str, int]:
        """CPU time of each thread; schedstat counts nanoseconds where /proc/stat counts ticks."""
        times = {}
        for path in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                name = f"{(path / 'comm').read_text().strip()} {path.name}"
                times[name] = int((path / "schedstat").read_text().split()[0])
        return times

    @property
    def cpu_ns(self) -> int:
        return sum(self.cpu_by_thread.values())

    @property
    def rss_mb(self) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return float("nan")

    def ask(self) -> dict[str, object]:
        """One call, to see that it works at all."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        connection.request("POST", "/v1/calls", json.dumps(BODY), headers)
        answer: dict[str, object] = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def _wait_ready(self, until: float, ready: Callable[[int], bool]) -> None:
        while time.perf_counter() < until:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode} before it was ready")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if ready(self.port):
                    return
            time.sleep(0.005)
        self._process.kill()
        raise RuntimeError(f"the server was not ready within {READY_SECONDS:g} s")


def cores() -> tuple[int | None, int | None]:
    """One core for the server, another for the load; on a machine with one core nothing is pinned."""
    free = sorted(os.sched_getaffinity(0))
    return (free[0], free[1]) if len(free) > 1 else (None, None)


def pinned(command: list[str], core: int | None) -> list[str]:
    """The command on that core only; taskset becomes the command, so the pid stays."""
    return command if core is None else ["taskset", "-c", str(core), *command]


@contextlib.contextmanager
def serving(which: str, data_dir: Path | None = None) -> Iterator[Server]:
    """One of the two servers, seen to work."""
    with started("bench.servers", which, *(["--data-dir", str(data_dir)] if data_dir else [])) as server:
        answer = server.ask()
        if answer.get("status") != "completed":
            raise RuntimeError(f"{which} does not work: {answer}")
        yield server


@contextlib.contextmanager
def started(*module: str) -> Iterator[Server]:
    """`python -m …` on a port of its own."""
    port = free_port()
    server = Server([sys.executable, "-m", *module, "--port", str(port)], port, cores()[0])
    try:
        yield server
    finally:
        server.stop()


def load(server: Server, clients: int, seconds: float, request: Request | None = None) -> Slice:
    """wrk with that many connections, each sending the next request when it has its answer."""
    before = server.cpu_ns
    told = run_wrk(server.port, clients, seconds, request)
    used = server.cpu_ns - before
    if told["failed"]:
        raise RuntimeError(f"{told['failed']:.0f} requests failed at {clients} clients")
    return Slice(
        rps=told["requests"] / told["micros"] * 1e6,
        p50_ms=told["p50"] / 1000,
        p99_ms=told["p99"] / 1000,
        cpu_us=used / told["requests"] / 1000,
        requests=int(told["requests"]),
    )


def run_wrk(port: int, clients: int, seconds: float, request: Request | None = None) -> dict[str, float]:
    with start_wrk(port, clients, seconds, request) as process:
        told, _ = process.communicate(timeout=seconds + 60)
    if process.returncode:
        raise RuntimeError(f"wrk failed: {told}")
    answer: dict[str, float] = json.loads(told.strip().splitlines()[-1])
    return answer


def start_wrk(port: int, clients: int, seconds: float, request: Request | None = None) -> "subprocess.Popen[str]":
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt-get install wrk")
    request = request or Request()
    duration = f"{max(round(seconds), 1)}s"
    command = ["wrk", "-t1", f"-c{clients}", f"-d{duration}", "--timeout", "30s", "-s", str(SCRIPT)]
    for name, value in request.headers.items():
        command += ["-H", f"{name}: {value}"]
    return subprocess.Popen(
        pinned([*command, f"http://127.0.0.1:{port}{request.path}"], cores()[1]),
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"BENCH_BODY": json.dumps(request.body), "BENCH_MARK": request.mark},
    )


def free_port() -> int:
    """A port below those the system gives to outgoing connections, of which the load makes many."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
