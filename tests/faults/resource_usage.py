"""What a service holds of the machine, asked of itself and of the kernel."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.faults.raw_sockets import Body, wired
from tests.faults.sandboxed_service import tree_of
from tests.faults.service_processes import HANG


class Memory:
    """The resident memory of a process, in MB over what it was."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self.start = self._read("VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak starts anew

    def grown(self) -> float:
        return round(self._read("VmRSS") - self.start, 1)

    def peak(self) -> float:
        return round(self._read("VmHWM") - self.start, 1)

    def _read(self, name: str) -> float:
        line = next(line for line in self._status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) / 1024


async def settled(pid: int) -> Body:
    """What they hold when nothing changes any more: processes for the next calls are started behind the last ones."""
    seen = list[Body]()
    while len(seen) < 4 or seen[-4:] != seen[-1:] * 4:
        await asyncio.sleep(0.2)
        with suppress(FileNotFoundError, ProcessLookupError):  # one of them has just ended
            seen.append(holdings(pid))
    return seen[-1]


def holdings(pid: int) -> Body:
    """What a service and its spawner hold, and how many processes wait for their call: as many as were lately needed
    at once. Of those pairs the service has one descriptor each."""
    family = tree_of(pid)
    states = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in family]
    residents = [one for one, state in zip(family, states, strict=True) if one == pid or int(state[1]) == pid]
    spares = (len(family) - len(residents)) / 2
    return {
        "descriptors": sum(len(os.listdir(f"/proc/{one}/fd")) for one in residents) - spares,
        "threads": sum(len(os.listdir(f"/proc/{one}/task")) for one in residents),
        "spares": spares,
        "zombies": [state[0] for state in states].count("Z"),
    }


async def inside(port: int) -> Body:
    """Tasks, threads, files and subscribers of a service."""
    async with wired(port) as wire:
        held: Body = (await wire.call({"tool": "inside", "arguments": {}})).body["result"]["structured"]
        return held


async def holds(port: int, subscribers: int) -> None:
    """Wait until the service has so many subscribers."""
    await wait_inside(port, lambda held: bool(held["subscribers"] == subscribers))


async def holds_at_most(port: int, before: Body) -> None:
    """Wait until all is given back."""
    await wait_inside(port, lambda held: all(held[name] <= before[name] for name in before))


async def wait_inside(port: int, is_right: Callable[[Body], bool]) -> None:
    held = await inside(port)
    try:
        async with asyncio.timeout(HANG):
            while not is_right(held):
                await asyncio.sleep(0.02)
                held = await inside(port)
    except TimeoutError:
        raise AssertionError(f"it still holds {held}") from None
