"""A store that refuses for a while: what was accepted waits for it, nothing is lost, and nothing runs unrecorded."""

import asyncio
import json

import pytest

from app.core.errors import Canceled, StoreUnavailable
from app.core.tools import Effect
from app.dispatch.events.output_spool import CHUNK_BYTES
from app.dispatch.gate import BatchOrder
from app.dispatch.live_calls import LiveCall
from app.store import db
from tests.support.services import HANG, Crib, until
from tests.support.toy_tools import ToyHook, Toys

COMPLETED = ("completed", None)


@pytest.fixture
def impatient(crib: Crib, monkeypatch: pytest.MonkeyPatch) -> Crib:
    """A house, not yet open, whose store gives up on a locked database at once and is soon asked again."""
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.01)
    monkeypatch.setattr("app.dispatch.retries.FIRST_PAUSE_SECONDS", 0.005)
    monkeypatch.setattr("app.dispatch.retries.MAX_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("app.dispatch.live_calls.CANCEL_SECONDS", 0.05)
    return crib


@pytest.fixture
def refused(caplog: pytest.LogCaptureFixture) -> "Refused":
    return Refused(caplog)


class Refused:
    """How often the store has said no, as its log tells."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def count(self) -> int:
        return sum("refused a batch" in record.message for record in self._caplog.records)

    async def again(self, times: int = 3) -> None:
        """Wait until it has said no so many times more."""
        goal = self.count + times
        await until(lambda: self.count >= goal)


async def ended_well(crib: Crib, live: LiveCall) -> None:
    await crib.ended(live)
    assert crib.end(live.call.id) == COMPLETED


async def test_a_call_whose_first_commit_is_refused_was_never_accepted(impatient: Crib, toys: Toys) -> None:
    crib = await impatient.open()

    with crib.stalled_writer():
        live = crib.submit("note", {"text": "x"})
        async with asyncio.timeout(HANG):
            await live.wait()
    await crib.run("note", {"text": "y"})

    assert isinstance(live.record.failure, StoreUnavailable)
    assert toys.notes == ["y"]
    assert crib.events(live.call.id) == []
    assert crib.rows("SELECT id FROM calls WHERE id = ?", live.call.id) == []


async def test_an_end_waits_for_the_store_and_a_cancel_meanwhile_changes_nothing(
    impatient: Crib, toys: Toys, refused: Refused
) -> None:
    crib = await impatient.open()
    live = crib.submit("wait", {"effect": "write"})
    await crib.started("wait")

    with crib.stalled_writer():
        toys.go["wait"].set()
        await refused.again()
        assert live.execution.hold is not None
        assert live.execution.hold.is_over
        await crib.cancel(live)
        assert (live.is_done, crib.row(live.call.id)["status"]) == (False, "running")

    view = await crib.ended(live)
    assert crib.end(live.call.id) == COMPLETED
    assert view["result"]["output"] == "wait"
    assert crib.row(live.call.id)["result"] == live.call.result
    assert len(crib.services.dispatcher.live_calls) == 0


async def test_output_that_the_store_refuses_is_tried_again_and_none_is_lost(
    impatient: Crib, toys: Toys, refused: Refused
) -> None:
    crib = await impatient.open()

    live = crib.submit("wait", {"say": "first "})
    await crib.started("wait")
    await until(lambda: crib.rows("SELECT * FROM outputs"))
    with crib.stalled_writer():
        await toys.contexts[-1].output("second ")
        await refused.again()
        await toys.contexts[-1].output("third")
        toys.go["wait"].set()
        await refused.again()
    await ended_well(crib, live)

    rows = crib.rows("SELECT start, data FROM outputs ORDER BY start")
    assert b"".join(row["data"] for row in rows) == b"first second third"
    assert crib.row(live.call.id)["output_dropped"] == 0


async def test_a_tool_waits_while_its_output_is_refused(impatient: Crib, toys: Toys, refused: Refused) -> None:
    crib = await impatient.open()
    live = crib.submit("wait")
    await crib.started("wait")
    written: list[int] = []

    async def write_much() -> None:
        for number in range(8):
            await toys.contexts[-1].output("x" * (CHUNK_BYTES // 2))
            written.append(number)

    with crib.stalled_writer():
        writing = asyncio.create_task(write_much())
        await refused.again(5)
        assert len(written) <= 3
    async with asyncio.timeout(HANG):
        await writing
    toys.go["wait"].set()
    await ended_well(crib, live)

    assert crib.rows("SELECT max(stop) AS size FROM outputs")[0]["size"] == 4 * CHUNK_BYTES


async def test_a_call_canceled_while_its_output_is_refused_keeps_it(
    impatient: Crib, toys: Toys, refused: Refused
) -> None:
    crib = await impatient.open()
    live = crib.submit("wait")
    await crib.started("wait")

    with crib.stalled_writer():
        await toys.contexts[-1].output("so far")
        await refused.again()
        await crib.cancel(live)
        assert toys.log == ["wait in", "wait out"]
    view = await crib.ended(live)

    assert crib.end(live.call.id) == ("error", "Canceled")
    assert view["result"]["output"] == "so far"


async def test_an_accepted_call_starts_when_the_store_takes_it_again_and_not_before(
    impatient: Crib, toys: Toys, refused: Refused
) -> None:
    crib = await impatient.open()
    first = crib.submit("wait", {"name": "first", "effect": "write"})
    await crib.started("first")
    second = crib.submit("note", {"text": "second"})
    await crib.at_the_gate(second)

    with crib.stalled_writer():
        toys.go["first"].set()
        await refused.again(5)
        assert toys.notes == []
    await ended_well(crib, first)
    await ended_well(crib, second)

    assert toys.notes == ["second"]
    assert crib.story(second.call.id) == ["call.pending", "call.waiting", "call.running", "call.completed"]


async def test_a_call_that_cannot_be_started_can_be_canceled(impatient: Crib, toys: Toys, refused: Refused) -> None:
    crib = await impatient.open()
    first = crib.submit("wait", {"name": "first", "effect": "write"})
    await crib.started("first")
    second = crib.submit("note", {"text": "second"})
    await crib.at_the_gate(second)

    with crib.stalled_writer():
        toys.go["first"].set()
        await refused.again(5)
        second.interrupt(Canceled("stop"))
        await refused.again()
    await crib.ended(second)
    await crib.ended(first)

    assert crib.end(second.call.id) == ("error", "Canceled")
    assert crib.story(second.call.id) == ["call.pending", "call.waiting", "call.error"]
    assert toys.notes == []


async def test_settled_arguments_wait_for_the_store_and_the_hook_is_met_once(
    impatient: Crib, toys: Toys, refused: Refused
) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    hook.change = lambda payload: {"text": "changed"}
    impatient.hooks = [hook]
    crib = await impatient.open()
    live = crib.submit("note", {"text": "x"})
    await until(hook.met.is_set)

    with crib.stalled_writer():
        hook.go.set()
        await refused.again()
        assert toys.notes == []
    await ended_well(crib, live)

    assert toys.notes == ["changed"]
    assert hook.attempts == [1]
    assert crib.row(live.call.id)["effective"] == '{"text":"changed"}'


async def test_a_place_in_a_batch_is_left_when_the_tool_has_ended_though_its_end_is_not_written(
    impatient: Crib, toys: Toys, refused: Refused
) -> None:
    crib = await impatient.open()
    live = crib.submit("wait", {"effect": "write"})
    await crib.started("wait")
    order = BatchOrder()
    live.batch_slot = order.next()
    live.batch_slot.declare("lane", Effect.WRITE)
    behind = order.next()
    behind.declare("lane", Effect.WRITE)
    assert not behind.is_clear

    with crib.stalled_writer():
        toys.go["wait"].set()
        await refused.again()
        assert behind.is_clear
    await ended_well(crib, live)


async def test_a_plan_waits_for_the_store(impatient: Crib, toys: Toys, refused: Refused) -> None:
    crib = await impatient.open()
    live = crib.submit("wait")
    await crib.started("wait")

    with crib.stalled_writer():
        keeping = asyncio.create_task(toys.contexts[-1].save_plan({"plan": []}))
        await refused.again()
        assert not keeping.done()
    async with asyncio.timeout(HANG):
        await keeping
    toys.go["wait"].set()
    await ended_well(crib, live)

    assert "plan.updated" in crib.story(live.call.id)


async def test_progress_that_was_refused_goes_with_what_is_told_next(
    impatient: Crib, toys: Toys, refused: Refused
) -> None:
    crib = await impatient.open()
    live = crib.submit("wait")
    await crib.started("wait")

    with crib.stalled_writer():
        toys.contexts[-1].metadata(title="one", metadata={"a": 1})
        await refused.again(1)
        await until(lambda: not live.record.is_publishing_progress)
    toys.contexts[-1].metadata(metadata={"b": 2})
    toys.go["wait"].set()
    await ended_well(crib, live)

    told = [json.loads(event["data"]) for event in crib.events(live.call.id) if event["type"] == "call.progress"]
    assert told == [{"title": "one", "metadata": {"a": 1, "b": 2}}]


async def test_a_tool_is_stopped_and_the_cancel_answered_while_the_store_refuses(
    impatient: Crib, toys: Toys, refused: Refused
) -> None:
    crib = await impatient.open()
    live = crib.submit("wait", {"say": "so far"})
    await crib.started("wait")

    with crib.stalled_writer():
        await crib.cancel(live)
        assert toys.log == ["wait in", "wait out"]
        assert crib.row(live.call.id)["status"] == "running"
        await refused.again()
    await crib.ended(live)

    assert crib.end(live.call.id) == ("error", "Canceled")


async def test_at_a_shutdown_an_end_that_cannot_be_written_is_left_to_the_next_start(
    impatient: Crib, toys: Toys, refused: Refused
) -> None:
    crib = await impatient.open()
    ran = crib.submit("wait", {"name": "ran", "effect": "write"})
    await crib.started("ran")
    waits = crib.submit("note", {"text": "waits"})
    await crib.at_the_gate(waits)

    with crib.stalled_writer():
        toys.go["ran"].set()
        await refused.again()
        async with asyncio.timeout(HANG):
            await crib.close()
            await ran.wait()
    assert isinstance(ran.record.failure, StoreUnavailable)
    assert toys.notes == []
    await crib.open()
    await until(lambda: crib.row(waits.call.id)["status"] == "completed")

    assert crib.end(ran.call.id) == ("error", "Interrupted")
    assert crib.end(waits.call.id) == COMPLETED
    assert toys.notes == ["waits"]


async def test_a_result_that_the_database_never_takes_still_gives_an_end(crib: Crib) -> None:
    await crib.open()
    crib.change(
        "CREATE TRIGGER poison BEFORE UPDATE ON calls WHEN NEW.result LIKE '%poison%'"
        " BEGIN SELECT RAISE(ABORT, 'too big'); END"
    )

    view = await crib.run("echo", {"text": "poison"})

    assert crib.end(view["id"]) == ("error", "Internal")
    assert view["result"] is None
    assert (await crib.run("echo", {"text": "fine"}))["status"] == "completed"
