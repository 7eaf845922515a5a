"""`python -m bench.direct stdio|http auto|legacy TARGET…`: the SDK's own client against a server, with nothing between.

Reads lines `CLIENTS SECONDS` and answers each with one line of JSON: so many calls under way at once for that long,
as wrk's connections do it.
"""

import asyncio
import json
import sys
import time
from statistics import median, quantiles
from typing import Any

import uvloop
from mcp import Client, StdioServerParameters

from bench.servers import TEXT


async def main(kind: str, mode: str, target: list[str]) -> None:
    server: Any = StdioServerParameters(command=target[0], args=target[1:]) if kind == "stdio" else target[0]
    loop = asyncio.get_running_loop()
    async with Client(server, mode=mode) as client:
        await client.list_tools()
        tell(version=client.protocol_version)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            clients, seconds = line.split()
            await measure(client, int(clients), float(seconds))


async def measure(client: Client, clients: int, seconds: float) -> None:
    times: list[float] = []
    began, used = time.perf_counter(), time.process_time_ns()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(call_until(client, began + seconds, times))
    took, used = time.perf_counter() - began, time.process_time_ns() - used
    tell(
        requests=len(times),
        micros=took * 1e6,
        p50=median(times) * 1e6,
        p99=quantiles(times, n=100)[98] * 1e6,
        cpu_us=used / len(times) / 1000,
    )


async def call_until(client: Client, until: float, times: list[float]) -> None:
    while (began := time.perf_counter()) < until:
        said = await client.call_tool("echo", {"text": TEXT})
        times.append(time.perf_counter() - began)
        if said.is_error or said.content[0].text != TEXT:  # type: ignore[union-attr]
            raise RuntimeError(f"it said {said}")


def tell(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
