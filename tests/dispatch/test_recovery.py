"""Stopping and starting: what runs gets its time, what waits goes on, nothing is run twice."""

import asyncio
import logging
from typing import Any

import pytest

from app.core.calls import Status
from app.core.errors import Interrupted
from app.core.events import EventType
from app.core.tools import Effect
from app.dispatch.gate import BatchOrder
from tests.support.services import ADMIN, HANG, Crib, until, viewed
from tests.support.toy_tools import ToyHook, Toys

COMPLETED = ("completed", None)
INTERRUPTED = ("error", "Interrupted")


async def reopen(crib: Crib) -> None:
    await crib.close()
    await crib.open()


async def all_ended(crib: Crib) -> None:
    await until(lambda: len(crib.services.dispatcher.live_calls) == 0)


async def test_what_runs_may_finish_within_the_grace_period(crib: Crib, toys: Toys) -> None:
    crib.settings["grace"] = 60
    await crib.open()
    live = crib.submit("wait")
    await crib.started("wait")

    draining = asyncio.create_task(crib.house.drain())
    await until(lambda: crib.services.dispatcher.live_calls.is_draining)
    toys.go["wait"].set()
    async with asyncio.timeout(HANG):
        await draining

    assert crib.end(live.call.id) == COMPLETED


async def test_what_does_not_finish_is_interrupted_and_recorded_with_its_output(crib: Crib, toys: Toys) -> None:
    await crib.open()
    live = crib.submit("wait", {"say": "so far"})
    await crib.started("wait")

    await crib.house.drain()

    view = viewed(live)
    assert crib.end(live.call.id) == INTERRUPTED
    assert view["error"] == {
        "code": "Interrupted",
        "message": "The service was stopped while the call was running; it is not run again.",
        "retryable": False,
    }
    assert view["result"]["output"] == "so far"
    assert toys.log == ["wait in", "wait out"]


async def test_draining_twice_is_draining_once(crib: Crib) -> None:
    await crib.open()
    live = crib.submit("wait")
    await crib.started("wait")

    await crib.house.drain()
    await crib.house.drain()
    await crib.close()

    assert crib.end(live.call.id) == INTERRUPTED


async def test_a_call_at_a_hook_stays_pending_and_meets_it_again_as_a_second_attempt(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    crib.hooks = [hook]
    await crib.open()
    live = crib.submit("note", {"text": "once"}, timeout=77, call_id="c", message_id="m")
    await until(hook.met.is_set)

    await crib.close()
    assert crib.row(live.call.id)["status"] == "pending"
    assert crib.story(live.call.id) == ["call.pending"]
    hook.go.set()
    await crib.open()
    await all_ended(crib)

    assert crib.end(live.call.id) == COMPLETED
    assert crib.story(live.call.id) == ["call.pending", "call.running", "call.completed"]
    assert (hook.attempts, toys.notes) == ([1, 2], ["once"])
    row = crib.row(live.call.id)
    assert (row["attempt"], row["call_id"], row["message_id"]) == (2, "c", "m")


async def test_a_call_at_the_gate_stays_pending_and_does_not_meet_its_hooks_again(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h", {"note"})
    hook.change = lambda payload: {"text": payload["text"] + "!"}
    crib.hooks = [hook]
    await crib.open()
    first = crib.submit("wait", {"effect": "write"})
    await crib.started("wait")
    second = crib.submit("note", {"text": "second"})
    third = crib.submit("note", {"text": "third"})
    await crib.at_the_gate(third)

    await crib.close()
    assert [crib.row(live.call.id)["status"] for live in (first, second, third)] == ["error", "pending", "pending"]
    await crib.open()
    await all_ended(crib)

    assert crib.end(first.call.id) == INTERRUPTED
    assert crib.end(second.call.id) == crib.end(third.call.id) == COMPLETED
    assert toys.notes == ["second!", "third!"]
    assert hook.attempts == [1, 1]
    assert crib.row(second.call.id)["attempt"] == 2


async def test_calls_are_resumed_in_the_order_they_came(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    crib.hooks = [hook]
    await crib.open()
    for number in range(10):
        crib.submit("note", {"text": str(number)})
    await until(lambda: len(hook.log) == 10)

    await crib.close()
    hook.go.set()
    await crib.open()
    await all_ended(crib)

    assert toys.notes == [str(number) for number in range(10)]


async def test_a_call_just_submitted_when_the_service_stops_is_kept_for_the_next_start(crib: Crib, toys: Toys) -> None:
    await crib.open()

    live = crib.submit("note", {"text": "x"})
    await crib.close()
    assert (crib.row(live.call.id)["status"], toys.notes) == ("pending", [])
    await crib.open()
    await all_ended(crib)

    assert (crib.end(live.call.id), toys.notes) == (COMPLETED, ["x"])


async def test_a_stop_while_running_is_committed_ends_interrupted_and_nothing_was_done(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    crib.hooks = [hook]
    await crib.open()
    live = crib.submit("note", {"text": "x"})
    await until(hook.met.is_set)
    hook.go.set()
    await until(lambda: live.call.effective is not None)
    await until(lambda: not live._is_interruptible)

    await crib.close()

    assert crib.end(live.call.id) == INTERRUPTED
    assert viewed(live)["error"]["message"] == "The service was stopped before the tool could run; nothing was done."
    assert toys.notes == []


async def test_a_child_that_waits_ends_with_its_parent_and_is_not_kept_for_later(crib: Crib, toys: Toys) -> None:
    await crib.open()
    other = crib.submit("wait", {"name": "other"})
    await crib.started("other")
    parent = crib.submit("relay", {"tool": "note", "arguments": {"text": "orphan"}})
    await until(lambda: len(crib.services.dispatcher.live_calls) == 3)
    child = next(live for live in crib.services.dispatcher.live_calls._calls.values() if live.parent is parent)
    await crib.at_the_gate(child)

    await crib.close()
    assert crib.end(parent.call.id) == crib.end(child.call.id) == crib.end(other.call.id) == INTERRUPTED
    await crib.open()
    await all_ended(crib)

    assert toys.notes == []


async def test_a_call_that_ran_at_a_crash_is_interrupted_with_its_output_and_not_run_again(
    crib: Crib, toys: Toys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await crib.open()
    live = crib.submit("wait", {"name": "w", "say": "stored before the end\n"})
    await crib.started("w")
    await until(lambda: crib.rows("SELECT * FROM outputs"))
    await crib.crash()
    assert crib.row(live.call.id)["status"] == "running"

    await crib.open()

    row = crib.row(live.call.id)
    assert crib.end(live.call.id) == INTERRUPTED
    assert crib.story(live.call.id) == ["call.pending", "call.running", "call.error"]
    assert row["error"] == (
        '{"code":"Interrupted","message":"The service ended while this call was running: outcome unknown, '
        'not run again.","retryable":false}'
    )
    assert '"output":"stored before the end\\n"' in row["result"]
    assert row["ended_at"] >= row["started_at"]
    assert toys.log == ["w in", "w out"]
    assert "after the last stop: 1 calls interrupted, 0 resumed" in caplog.text


async def test_a_call_of_a_tool_that_is_gone_is_interrupted_too(crib: Crib) -> None:
    await crib.open()
    live = crib.submit("wait", {"say": "text"})
    await crib.started("wait")
    await until(lambda: crib.rows("SELECT * FROM outputs"))
    await crib.crash()
    crib.change("UPDATE calls SET tool = 'gone'")

    await crib.open()

    assert crib.end(live.call.id) == INTERRUPTED


async def test_a_pending_call_of_a_tool_that_is_gone_ends_unknown(crib: Crib) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    crib.hooks = [hook]
    await crib.open()
    live = crib.submit("note", {"text": "x"})
    await until(hook.met.is_set)
    await crib.close()
    crib.change("UPDATE calls SET tool = 'gone'")

    await crib.open()
    await all_ended(crib)

    assert crib.end(live.call.id) == ("error", "UnknownTool")


async def test_a_call_pending_at_a_crash_goes_on_and_runs_once(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    crib.hooks = [hook]
    await crib.open()
    live = crib.submit("note", {"text": "x"})
    await until(hook.met.is_set)
    await crib.crash()
    hook.go.set()

    await crib.open()
    await all_ended(crib)
    await reopen(crib)
    await all_ended(crib)

    assert (crib.end(live.call.id), toys.notes, hook.attempts) == (COMPLETED, ["x"], [1, 2])


async def test_after_a_crash_a_waiting_child_of_a_lost_parent_is_interrupted_and_not_run(
    crib: Crib, toys: Toys
) -> None:
    await crib.open()
    crib.submit("wait", {"name": "other"})
    await crib.started("other")
    parent = crib.submit("relay", {"tool": "note", "arguments": {"text": "orphan"}})
    await until(lambda: len(crib.services.dispatcher.live_calls) == 3)
    child = next(live for live in crib.services.dispatcher.live_calls._calls.values() if live.parent is parent)
    await crib.at_the_gate(child)
    await crib.crash()

    await crib.open()
    await all_ended(crib)

    assert crib.end(parent.call.id) == crib.end(child.call.id) == INTERRUPTED
    assert toys.notes == []


async def test_an_ended_call_is_left_alone_by_a_start(crib: Crib, toys: Toys) -> None:
    await crib.open()
    view = await crib.run("note", {"text": "x"})
    before, told = crib.row(view["id"]), crib.events()

    await reopen(crib)

    assert (crib.row(view["id"]), crib.events(), toys.notes) == (before, told, ["x"])


async def test_the_sequence_goes_on_without_a_hole_over_stops_and_crashes(crib: Crib) -> None:
    for turn in range(4):
        await crib.open()
        crib.submit("wait", {"name": f"{turn}"})
        await crib.run("echo", {"text": "x"})
        await crib.started(f"{turn}")
        await (crib.crash() if turn % 2 else crib.close())
    await crib.open()

    events = crib.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    ids = [event["call"] for event in events if event["type"] == EventType.CALL_PENDING]
    assert ids == sorted(ids)


async def test_another_owner_of_a_call_is_not_overwritten(crib: Crib, toys: Toys) -> None:
    await crib.open()
    live = crib.submit("wait")
    await crib.started("wait")
    crib.change("UPDATE calls SET owner = 'somebody else'")

    toys.go["wait"].set()
    async with asyncio.timeout(HANG):
        await live.wait()

    assert live.record.failure is not None
    assert crib.row(live.call.id)["status"] == "running"
    assert crib.story(live.call.id) == ["call.pending", "call.running"]


async def test_a_child_that_was_lost_does_not_take_its_parents_end(crib: Crib, toys: Toys) -> None:
    await crib.open()
    parent = crib.submit("relay", {"tool": "wait", "arguments": {"name": "child"}})
    await crib.started("child")
    crib.change("UPDATE calls SET owner = 'somebody else' WHERE parent IS NOT NULL")

    toys.go["child"].set()
    await crib.ended(parent)

    assert crib.end(parent.call.id) == ("error", "ToolUnavailable")


async def test_those_who_wait_for_a_call_are_woken_when_it_is_kept_for_later(crib: Crib) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    crib.hooks = [hook]
    await crib.open()
    live = crib.submit("note", {"text": "x"})
    waiting = asyncio.create_task(live.wait())
    await until(hook.met.is_set)

    await crib.house.drain()

    async with asyncio.timeout(HANG):
        assert await waiting
    assert (live.record.failure, live.call.status) == (None, Status.PENDING)


async def test_a_reason_given_first_stays(crib: Crib) -> None:
    await crib.open()
    live = crib.submit("wait")
    await crib.started("wait")

    live.interrupt(Interrupted("first"))
    await crib.cancel(live)

    assert viewed(live)["error"]["message"] == "first"


async def test_a_batch_resumed_needs_no_order_any_more(crib: Crib, toys: Toys) -> None:
    await crib.open()
    order = BatchOrder()
    requests: list[tuple[str, dict[str, Any]]] = [("wait", {"effect": Effect.WRITE}), ("note", {"text": "after"})]
    first, second = (
        crib.services.dispatcher.submit(crib.request(tool, arguments), ADMIN, batch_slot=order.next())
        for tool, arguments in requests
    )
    await crib.started("wait")
    await crib.at_the_gate(second)

    await reopen(crib)
    await all_ended(crib)

    assert (crib.end(first.call.id), crib.end(second.call.id)) == (INTERRUPTED, COMPLETED)
    assert toys.notes == ["after"]
