"""A disk of two megabytes that fills up: a clean refusal, everything else goes on, and it recovers by itself."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import random

import pytest

from tests.faults.data_checks import CHUNK, FINAL, Acknowledged, broken_promises
from tests.faults.disks import NoNamespace, SmallDisk
from tests.faults.fault_service import EFFECTS
from tests.faults.raw_sockets import Body, Wire, wired
from tests.faults.service_processes import HANG, Started, runner

pytestmark = pytest.mark.faults

CHUNKS = 40


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        disk = SmallDisk(tmp_path / "disk", "2m")
    except NoNamespace as reason:
        pytest.skip(str(reason))
    for name, size in (("ballast", 1024), ("reserve", 256)):
        (disk.seen / name).write_bytes(b"x" * 1024 * size)
    yield disk
    disk.close()


@pytest.fixture
def service(disk: SmallDisk) -> Iterator[Started]:
    service = start(disk)
    yield service
    service.close()


def start(disk: SmallDisk) -> Started:
    return Started(disk.inside(runner(disk.path / "data")), TOOLCRIB_GRACE="0.2")


async def test_a_full_disk_is_said_everything_else_goes_on_and_it_recovers_without_a_restart(
    disk: SmallDisk, service: Started, tmp_path: Path
) -> None:
    told, refused = Acknowledged(), {"tool": "append", "arguments": {"token": "refused"}}
    async with wired(service.port) as wire:
        await fill_with_calls(wire, told)
        await check_refused(wire, refused)
        disk.free("reserve")
        ids = {
            "streams": await accept(wire, slow_call("streams", CHUNKS)),
            "stopped": await accept(wire, slow_call("stopped", 10_000)),
            "holds": await accept(wire, turn_call("holds", 2)),
            "waits": await accept(wire, turn_call("waits", 0)),
        }

        await fill_up(disk, wire)
        await check_refused(wire, refused)
        await check_reading(wire, ids)
        stopped = await wire.ask("POST", f"/v1/calls/{ids['stopped']}/cancel", None, {})
        assert (stopped.status, stopped.body["id"]) == (200, ids["stopped"])
        await streamed_out(wire, ids["stopped"])
        await check_refused(wire, refused)
        assert [await status(wire, ids[token]) for token in ("holds", "waits")] == ["running", "pending"]

        disk.free("ballast", "stuffing")
        ends = {token: await ended(wire, id) for token, id in ids.items()}
        again = await wire.call(refused, 10, "key")
        repeated = await wire.call(refused, 10, "key")

    assert {token: state(call) for token, call in ends.items()} == {
        "streams": ("completed", None),
        "stopped": ("error", "Canceled"),
        "holds": ("completed", None),
        "waits": ("completed", None),
    }
    assert ends["streams"]["result"]["output"] == "".join(CHUNK.format(number) for number in range(CHUNKS))
    assert state(again.body) == ("completed", None)
    assert repeated.body == again.body
    for token, call in ends.items():
        told.note(call, token)
    code, said = service.end()
    assert code == 0, said
    assert "Traceback" not in said
    effects = (disk.seen / "data" / EFFECTS).read_text().splitlines()
    assert broken_promises(disk.copy("data", tmp_path / "copy"), effects, told) == []


async def test_a_service_can_be_stopped_on_a_full_disk_and_the_next_start_ends_what_ran(
    disk: SmallDisk, service: Started, tmp_path: Path
) -> None:
    async with wired(service.port) as wire:
        ids = {"holds": await accept(wire, turn_call("holds", 2)), "waits": await accept(wire, turn_call("waits", 0))}
        await fill_up(disk, wire)
    code, said = service.end()
    assert code == 0, said
    before = (disk.seen / "data" / EFFECTS).read_text().splitlines()

    disk.free("ballast", "stuffing")
    after = start(disk)
    try:
        async with wired(after.port) as wire:
            ends = {token: await ended(wire, id) for token, id in ids.items()}
        assert after.end()[0] == 0
    finally:
        after.close()

    assert before == ["holds"]
    assert {token: state(call) for token, call in ends.items()} == {
        "holds": ("error", "Interrupted"),
        "waits": ("completed", None),
    }
    effects = (disk.seen / "data" / EFFECTS).read_text().splitlines()
    assert broken_promises(disk.copy("data", tmp_path / "copy"), effects, Acknowledged()) == []


async def fill_with_calls(wire: Wire, told: Acknowledged) -> None:
    """Calls until no more are taken."""
    for number in range(1000):
        token = f"{number}-{'x' * 10_000}"
        answer = await wire.call({"tool": "echo", "arguments": {"token": token}}, 0)
        if answer.status == 503:
            return
        told.note(answer.body, token)
    raise AssertionError("a disk of two megabytes took ten")


async def fill_up(disk: SmallDisk, wire: Wire) -> None:
    """Until nothing is left of the disk, and the store has noticed: it may still give up some of what it had."""
    async with asyncio.timeout(HANG):
        while True:
            disk.fill("stuffing")
            if (await wire.call({"tool": "nobody", "arguments": {"token": f"{random()}"}}, 0)).status == 503:
                return


async def check_refused(wire: Wire, asked: Body) -> None:
    answer = await wire.call(asked, 1, "key")
    assert (answer.status, answer.headers["content-type"]) == (503, "application/problem+json")
    assert answer.body["code"] == "StoreUnavailable"
    assert "full" in answer.body["detail"]
    assert answer.headers["retry-after"] == "5"


async def check_reading(wire: Wire, ids: dict[str, str]) -> None:
    assert len((await wire.get("/v1/calls?limit=3")).body["data"]) == 3
    assert (await wire.get(f"/v1/calls/{ids['streams']}")).body["id"] == ids["streams"]
    assert (await wire.get("/v1/events?after=0", Accept="application/json")).body["data"][0]["seq"] == 1
    assert (await wire.get(f"/v1/calls/{ids['streams']}/output")).status == 200


async def streamed_out(wire: Wire, id: str) -> None:
    """A tool that was stopped says nothing more, though its end is not written yet."""
    total = (await wire.get(f"/v1/calls/{id}/output")).headers["toolcrib-output-total"]
    assert await status(wire, id) == "running"
    assert (await wire.get(f"/v1/calls/{id}/output")).headers["toolcrib-output-total"] == total


async def accept(wire: Wire, asked: Body) -> str:
    answer = await wire.call(asked, 0)
    assert answer.status == 202, answer.content
    return str(answer.body["id"])


async def ended(wire: Wire, id: str) -> Body:
    async with asyncio.timeout(HANG):
        while (answer := await wire.get(f"/v1/calls/{id}?wait=5")).body["status"] not in FINAL:
            pass
    return answer.body


async def status(wire: Wire, id: str) -> str:
    return str((await wire.get(f"/v1/calls/{id}")).body["status"])


def slow_call(token: str, chunks: int) -> Body:
    return {"tool": "slow", "arguments": {"token": token, "chunks": chunks, "seconds": 0.05}}


def turn_call(token: str, seconds: float) -> Body:
    return {"tool": "turn", "arguments": {"token": token, "seconds": seconds}}


def state(call: Body) -> tuple[str, str | None]:
    return call["status"], call["error"] and call["error"]["code"]
