"""The wall clock jumps by an hour while calls run: time limits, durations, ids and the sequence do not care."""

import pytest

from app.core.util.clocks import SystemClock
from app.core.util.ids import time_of
from tests.support.services import Crib, until
from tests.support.toy_tools import Toys

pytestmark = pytest.mark.faults

HOUR = 3_600_000_000


class JumpingClock(SystemClock):
    """The machine's clocks; the one on the wall can be set, as an operator or a time server does it."""

    def __init__(self) -> None:
        self.offset = 0

    def now(self) -> int:
        return super().now() + self.offset


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
async def jumpy(crib: Crib, clock: JumpingClock) -> Crib:
    crib.clock = clock
    return await crib.open()


jumps = pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["an hour on", "an hour back"])


@jumps
async def test_a_call_that_runs_over_a_jump_has_the_duration_it_had(
    jumpy: Crib, clock: JumpingClock, toys: Toys, jump: int
) -> None:
    live = jumpy.submit("wait")
    await jumpy.started("wait")

    clock.offset += jump
    toys.go["wait"].set()
    view = await jumpy.ended(live)

    assert jumpy.end(live.call.id) == ("completed", None)
    assert 0 <= view["duration_ms"] < 60_000
    assert view["created_at"] <= view["started_at"] <= view["ended_at"]


@jumps
async def test_a_time_limit_neither_comes_early_nor_stays_away(
    jumpy: Crib, clock: JumpingClock, toys: Toys, jump: int
) -> None:
    patient = jumpy.submit("wait", {"name": "patient"}, timeout=1800)
    limited = jumpy.submit("wait_free", {"name": "limited"}, timeout=0.2)
    for name in ("patient", "limited"):
        await jumpy.started(name)

    clock.offset += jump
    await jumpy.ended(limited)
    assert not patient.is_done
    toys.go["patient"].set()
    await jumpy.ended(patient)

    assert jumpy.end(limited.call.id) == ("error", "Timeout")
    assert jumpy.end(patient.call.id) == ("completed", None)


@jumps
async def test_a_call_that_waits_for_its_turn_over_a_jump_starts_after_it_was_made(
    jumpy: Crib, clock: JumpingClock, toys: Toys, jump: int
) -> None:
    first = jumpy.submit("wait", {"name": "first", "effect": "write"})
    await jumpy.started("first")
    second = jumpy.submit("note", {"text": "second"})
    await jumpy.at_the_gate(second)

    clock.offset += jump
    toys.go["first"].set()
    await jumpy.ended(first)
    view = await jumpy.ended(second)

    assert view["created_at"] <= view["started_at"] <= view["ended_at"]
    assert view["duration_ms"] >= 0


async def test_ids_and_the_sequence_go_up_through_jumps_in_both_directions(jumpy: Crib, clock: JumpingClock) -> None:
    ids = []
    for jump in (0, HOUR, -HOUR, -HOUR, 2 * HOUR, -HOUR):
        clock.offset += jump
        for _ in range(5):
            ids.append((await jumpy.run("echo", {"text": "x"}))["id"])

    assert ids == sorted(set(ids))
    assert [row["id"] for row in jumpy.rows("SELECT id FROM calls ORDER BY id")] == ids
    told = [event["call"] for event in jumpy.events() if event["type"] == "call.pending"]
    assert told == ids
    assert [event["seq"] for event in jumpy.events()] == list(range(1, 3 * len(ids) + 1))
    assert all(row["duration_us"] >= 0 for row in jumpy.rows("SELECT duration_us FROM calls"))


async def test_a_start_with_a_clock_an_hour_back_gives_ids_behind_the_old_ones(
    jumpy: Crib, clock: JumpingClock, toys: Toys
) -> None:
    before = await jumpy.run("echo", {"text": "x"})
    runs = jumpy.submit("wait")
    await jumpy.started("wait")
    await jumpy.crash()

    clock.offset -= HOUR
    await jumpy.open()
    after = await jumpy.run("echo", {"text": "y"})

    assert before["id"] < runs.call.id < after["id"]
    assert time_of(after["id"]) > time_of(runs.call.id)
    assert jumpy.end(runs.call.id) == ("error", "Interrupted")
    row = jumpy.row(runs.call.id)
    assert row["created_at"] <= row["started_at"] <= row["ended_at"]
    listed = jumpy.rows("SELECT id FROM calls ORDER BY id DESC")
    assert listed[0]["id"] == after["id"]


async def test_a_pending_call_resumed_by_a_clock_an_hour_back_starts_after_it_was_made(
    jumpy: Crib, clock: JumpingClock, toys: Toys
) -> None:
    jumpy.submit("wait", {"name": "first", "effect": "write"})
    await jumpy.started("first")
    waits = jumpy.submit("note", {"text": "waits"})
    await jumpy.at_the_gate(waits)
    await jumpy.crash()

    clock.offset -= HOUR
    await jumpy.open()
    await until(lambda: jumpy.row(waits.call.id)["status"] == "completed")

    row = jumpy.row(waits.call.id)
    assert row["created_at"] <= row["started_at"] <= row["ended_at"]
    assert toys.notes == ["waits"]
