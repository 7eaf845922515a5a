"""`python -m bench.streams`: a thousand event streams on one service, quiet and under a steady flow of events.

The subscribers are a process of their own on the other core: raw sockets, frames counted in bytes, every
twentieth stream read frame by frame for its delays. Each stream must bring every event once, in order.
"""

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import uvloop

from bench.load import Server, cores, free_port, pinned
from bench.machine import Machine
from bench.results_sections import RESULTS, loads, write
from bench.servers import KEY

SAMPLE = 20
AT = re.compile(rb'"at":"([^"]+)"')
EVENTS_OF_A_CALL = 3
CALLERS = 16


@dataclass(slots=True)
class Heard:
    """What the subscribers saw of one load."""

    frames: int
    seconds: float
    delays_ms: list[float]
    broken: int


@dataclass(slots=True)
class Figures:
    wanted: float
    rate: float
    delivered: float
    core: float
    p50_ms: float
    p99_ms: float
    lost: int
    broken: int


class Subscriber(asyncio.Protocol):
    """One stream. Chunk marks and frames are told apart by what can only be in one of them."""

    def __init__(self, number: int) -> None:
        self.is_sample = number % SAMPLE == 0
        self.frames = 0
        self.delays: list[float] = []
        self.ids: list[int] = []
        self.connected = asyncio.get_running_loop().create_future()
        self.is_lost = False
        self._rest = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        head = f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n\r\n"
        transport.write(head.encode())

    def data_received(self, data: bytes) -> None:
        if not self.connected.done():
            if b": connected" not in data:
                return
            self.connected.set_result(None)
        if not self.is_sample:
            self.frames += data.count(b"\nevent: ")
            return
        now = time.time()
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            if found := AT.search(frame):
                self.frames += 1
                self.delays.append((now - seconds_of(found[1].decode())) * 1000)
                self.ids.append(int(re.search(rb"id: (\d+)", frame)[1]))  # type: ignore[index]

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if not self.connected.done():
            self.connected.set_exception(error or ConnectionError("closed"))

    @property
    def is_dense(self) -> bool:
        return self.ids == list(range(self.ids[0], self.ids[0] + len(self.ids))) if self.ids else True


def seconds_of(at: str) -> float:
    whole, _, fraction = at.removesuffix("Z").partition(".")
    return time.mktime(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) - time.timezone + float(f"0.{fraction}")


async def listen(port: int, count: int) -> None:
    """The subscribers' process: told on stdin what to do, answers on stdout."""
    loop = asyncio.get_running_loop()
    subscribers = [Subscriber(number) for number in range(count)]
    for some in range(0, count, 50):
        batch = subscribers[some : some + 50]
        await asyncio.gather(*(loop.create_connection(lambda s=s: s, "127.0.0.1", port) for s in batch))  # type: ignore[misc]
        await asyncio.gather(*(subscriber.connected for subscriber in batch))
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        wanted = int(line)
        print(json.dumps(asdict(await hear(subscribers, wanted))), flush=True)


async def hear(subscribers: list[Subscriber], wanted: int) -> Heard:
    """Until each has so many frames, or nothing came for five seconds."""
    began = time.perf_counter()
    last, idle = -1, time.perf_counter()
    while min(s.frames for s in subscribers) < wanted:
        await asyncio.sleep(0.05)
        total = sum(s.frames for s in subscribers)
        if total != last:
            last, idle = total, time.perf_counter()
        elif time.perf_counter() - idle > 5:
            break
    heard = Heard(
        frames=sum(s.frames for s in subscribers),
        seconds=time.perf_counter() - began,
        delays_ms=[delay for s in subscribers for delay in s.delays],
        broken=sum(s.is_lost or not s.is_dense for s in subscribers),
    )
    for subscriber in subscribers:
        subscriber.frames, subscriber.delays, subscriber.ids = 0, [], []
    return heard


def measure(server: Server, listeners: "subprocess.Popen[str]", count: int, rate: float, seconds: float) -> Figures:
    """So many events per second, three to a call, at even distances."""
    calls = round(rate * seconds / EVENTS_OF_A_CALL)
    tell(listeners, str(calls * EVENTS_OF_A_CALL))
    before, began = server.cpu_ns, time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as callers:
        for number in range(calls):
            time.sleep(max(0.0, began + number * EVENTS_OF_A_CALL / rate - time.perf_counter()))
            callers.submit(server.ask)
    sent = time.perf_counter() - began
    heard = Heard(**json.loads(answer_of(listeners)))
    used = (server.cpu_ns - before) / 1e9
    took = time.perf_counter() - began
    return Figures(
        wanted=rate,
        rate=calls * EVENTS_OF_A_CALL / sent,
        delivered=heard.frames / took,
        core=used / took,
        p50_ms=median(heard.delays_ms),
        p99_ms=quantiles(heard.delays_ms, n=100)[98],
        lost=count * calls * EVENTS_OF_A_CALL - heard.frames,
        broken=heard.broken,
    )


def tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def answer_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line
    raise RuntimeError("the subscribers ended early")


def render(figures: list[Figures], count: int, kilobytes: float, rss: float, machine: Machine) -> str:
    busiest = figures[-1]
    lines = [
        f"## {count:,} event streams on one service",
        "",
        f"`python -m bench.streams`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}: subscribers on the other",
        "core, delays by the wall clock from the time an event carries (taken before its commit) to its arrival, of",
        f"every {SAMPLE}th stream. Load average before {loads(machine.load_before)}, after {loads(os.getloadavg())}.",
        "",
        "| events/s | deliveries/s | cores of the service | p50 ms | p99 ms | lost | streams cut or out of order |",
        "|---|---|---|---|---|---|---|",
        *(line_of(some) for some in figures),
        "",
        f"Each silent stream takes {kilobytes:.1f} KB of resident memory ({rss:.0f} MB with all of them open).",
        "",
        f"Goal: 100 events/s without loss within one core: {verdict(is_floor(busiest))}; p99 at most 100 ms: "
        f"{verdict(busiest.p99_ms <= 100)}; at most 30 KB each: {verdict(kilobytes <= 30)}.",
    ]
    return "\n".join(lines)


def line_of(some: Figures) -> str:
    figures = f"| {some.rate:.0f} | {some.delivered:.0f} | {some.core:.2f} | {some.p50_ms:.1f} | {some.p99_ms:.1f} "
    return f"{figures}| {some.lost} | {some.broken} |"


def verdict(is_reached: bool) -> str:
    return "reached" if is_reached else "**missed**"


def is_floor(busiest: Figures) -> bool:
    is_whole = not busiest.lost and not busiest.broken and busiest.rate >= 0.95 * busiest.wanted
    return is_whole and busiest.core <= 1


def run(count: int, rates: list[float], seconds: float, place: Path) -> str:
    machine = Machine.look(place)
    port = free_port()
    command = ["-m", "bench.servers", "toolcrib", "--data-dir", str(place / "data"), "--port", str(port)]
    server = Server([sys.executable, *command], port, cores()[0])
    try:
        server.ask()
        before = server.rss_mb
        listeners = subprocess.Popen(
            pinned([sys.executable, "-m", "bench.streams", "--listen", str(port), "--streams", str(count)], cores()[1]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            answer_of(listeners)
            rss = server.rss_mb
            figures = [measure(server, listeners, count, rate, seconds) for rate in rates]
        finally:
            listeners.kill()
            listeners.wait()
    finally:
        server.stop()
    return render(figures, count, (rss - before) * 1024 / count, rss, machine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rates", type=float, nargs="+", default=[10, 50, 100])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="where the data directory is made")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--listen", type=int, help="be the subscribers of the service on this port")
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if given.listen:
        uvloop.run(listen(given.listen, given.streams))
        return
    with tempfile.TemporaryDirectory(prefix="toolcrib-bench-", dir=given.disk) as made:
        text = run(given.streams, given.rates, given.seconds, Path(made))
    write(given.results, "streams", text)
    print(text)


if __name__ == "__main__":
    main()
