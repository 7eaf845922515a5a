"""`python -m bench.runs`: a model's message through `POST /v1/run/openai-chat`, beside the same calls as one batch."""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench.load import Request, Server, Slice, load, serving
from bench.machine import Machine
from bench.results_sections import RESULTS, loads, spread, write
from bench.servers import TEXT

RUN, BATCH = "run", "batch"
CALLS = (1, 16)
CLIENTS = (1, 8)
FLOOR, AIM = 1.3, 1.15
Found = dict[tuple[int, int], dict[str, list[Slice]]]
"""By calls in a message and clients: one slice of each way per round."""


def requests(calls: int) -> dict[str, Request]:
    """The same calls in both forms. wrk puts another number into the ids of each request, so none is a repeat."""
    arguments = {"text": TEXT}
    batch = {"calls": [_item(number, arguments) for number in range(calls)]}
    message = {"role": "assistant", "content": None, "tool_calls": [_call(n, arguments) for n in range(calls)]}
    return {
        BATCH: Request("/v1/calls/batch", batch, mark='"completed"'),
        RUN: Request("/v1/run/openai-chat", message, mark='"role":"tool"'),
    }


def _item(number: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"tool": "echo", "arguments": arguments, "call_id": f"call_@N@x{number}", "message_id": "msg_@N@"}


def _call(number: int, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": "echo", "arguments": json.dumps(arguments)}
    return {"id": f"call_@N@x{number}", "type": "function", "function": function}


def measure(server: Server, rounds: int, seconds: float) -> Found:
    """Within a round both take turns, and who begins changes from round to round. The first round warms up."""
    found: Found = {}
    for number in range(rounds + 1):
        for calls in CALLS:
            asked = requests(calls)
            for clients in CLIENTS:
                for way in (BATCH, RUN) if number % 2 else (RUN, BATCH):
                    took = load(server, clients, seconds if number else 1, asked[way])
                    print(f"{calls:3} calls {clients:3} clients {way:6} {took.rps:7.0f}/s p50 {took.p50_ms:6.2f} ms")
                    if number:
                        found.setdefault((calls, clients), {}).setdefault(way, []).append(took)
    return found


def ratios(by_way: dict[str, list[Slice]], of: str) -> list[float]:
    return [getattr(one, of) / getattr(other, of) for one, other in zip(by_way[RUN], by_way[BATCH], strict=True)]


def table(found: Found) -> Iterator[str]:
    yield "| calls | clients | way | messages/s | p50 ms | CPU µs each | p50, run : batch | CPU, same |"
    yield "|---|---|---|---|---|---|---|---|"
    for (calls, clients), by_way in found.items():
        for way, slices in by_way.items():
            cells = [spread([one.rps for one in slices], 0), spread([one.p50_ms for one in slices], 2)]
            cells += [spread([one.cpu_us for one in slices], 0)]
            cells += [spread(ratios(by_way, of), 2) for of in ("p50_ms", "cpu_us")] if way == RUN else ["", ""]
            yield f"| {calls} | {clients} | {way} | {' | '.join(cells)} |"


def goals(found: Found) -> Iterator[str]:
    yield "| goal | floor | aim | measured | |"
    yield "|---|---|---|---|---|"
    for (calls, clients), by_way in found.items():
        seen = median(ratios(by_way, "p50_ms"))
        said = "aim reached" if seen <= AIM else "floor reached" if seen <= FLOOR else "**missed**"
        what = f"p50 of a run vs the batch, calls: {calls}, clients: {clients}"
        yield f"| {what} | ≤ {FLOOR:g} | ≤ {AIM:g} | {seen:.2f} | {said} |"


def render(found: Found, machine: Machine, rounds: int, seconds: float) -> str:
    lines = [
        "## Runs",
        "",
        f"`python -m bench.runs`, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC: {rounds} rounds of",
        f"{seconds:g} s, alternating. A run parses a message in openai-chat, runs its calls, stores the run",
        "and renders",
        "what to append. A batch has the same calls only. Every message has its own ids. Load average before",
        f"{loads(machine.load_before)}, after {loads(os.getloadavg())}; fdatasync takes {machine.fsync_ms:.2f} ms.",
        "",
        *table(found),
        "",
        *goals(found),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="where the data directory is made")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="toolcrib-bench-", dir=given.disk) as made:
        machine = Machine.look(Path(made))
        with serving("toolcrib", Path(made) / "data") as server:
            found = measure(server, given.rounds, given.seconds)
    text = render(found, machine, given.rounds, given.seconds)
    write(given.results, "runs", text)
    print(text)


if __name__ == "__main__":
    main()
