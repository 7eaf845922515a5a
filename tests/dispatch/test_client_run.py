"""Calls that the caller's client runs: started durably, waited for until the deadline, ended once."""

import asyncio
import json
from typing import Any

import pytest

from app.core.calls import CallRequest, Status
from app.core.errors import CallError, Canceled, TimedOut
from app.core.events import EventType
from app.core.principals import Key
from app.core.results import Attachment, Result
from app.core.util.clocks import SystemClock, rfc3339
from app.core.util.json_codec import dumps
from app.dispatch.client_run import resume_client_run
from app.dispatch.live_calls import LiveCall
from app.store import principals
from app.store.events import EventFilter, page
from tests.support.client_tools import OSLO, ClientToys
from tests.support.services import ADMIN, HANG, Crib, until, viewed
from tests.support.toy_tools import ToyHook, Toys

COMPLETED = ("completed", None)
CANCELED = ("error", "Canceled")
INTERRUPTED = ("error", "Interrupted")
TIMEOUT = ("error", "Timeout")
LIFE = ["call.pending", "call.running"]
SECOND = 1_000_000


@pytest.fixture
def toys() -> Toys:
    return ClientToys()


class SetClock(SystemClock):
    """The machine's clocks; the one on the wall can be set."""

    def __init__(self) -> None:
        self.offset = 0

    def now(self) -> int:
        return super().now() + self.offset


async def given_out(crib: Crib, tool: str = "get_weather", **more: Any) -> LiveCall:
    """A call that its client has been told to run."""
    live = crib.submit(tool, OSLO, **more)
    await until(lambda: live.is_open and crib.row(live.call.id)["status"] == "running" and live._is_interruptible)
    return live


def adopted(crib: Crib, live: LiveCall) -> LiveCall:
    """The same call in a service that was started anew."""
    found = crib.services.dispatcher.live_calls.get(live.call.id)
    assert found is not None
    return found


async def shown(crib: Crib, id: str) -> list[dict[str, Any]]:
    """The data of a call's events, as a replay shows it."""
    told = await page(crib.services.engine, EventFilter(principal=None, call=id), 0, None, 100)
    hooked = EventType.CALL_HOOK
    return [json.loads(dumps(event.view(call)))["data"] for event, call in told if event.type is not hooked]


def refuse_a_start_without_deadline(crib: Crib) -> None:
    for what in ("INSERT ON calls", "UPDATE OF status ON calls"):
        name = what.split()[0].lower()
        crib.change(
            f"CREATE TRIGGER no_{name} BEFORE {what} WHEN NEW.status = 'running' AND NEW.deadline IS NULL "
            "BEGIN SELECT RAISE(ABORT, 'started without a deadline'); END"
        )


@pytest.mark.parametrize("is_ahead", [True, False], ids=["in one commit", "stage by stage"])
async def test_the_deadline_is_stored_with_the_start(crib: Crib, is_ahead: bool) -> None:
    crib.hooks = [] if is_ahead else [ToyHook("h")]
    refuse_a_start_without_deadline(crib)
    await crib.open()

    live = await given_out(crib)

    row = crib.row(live.call.id)
    assert row["deadline"] == row["started_at"] + 300 * SECOND
    assert crib.story(live.call.id) == LIFE
    assert live.answer(Result(output="rain"))
    assert (await crib.ended(live))["result"]["output"] == "rain"
    assert crib.end(live.call.id) == COMPLETED
    assert crib.row(live.call.id)["deadline"] == row["deadline"]


async def test_the_start_tells_the_client_what_to_run_until_when_and_says_so_again_after_the_end(crib: Crib) -> None:
    hook = ToyHook("h")
    hook.change = lambda payload: {"city": payload["city"].upper()}
    crib.hooks = [hook]
    await crib.open()
    subscription = crib.services.hub.subscribe(EventFilter(principal=None), with_output=False)

    live = await given_out(crib, call_id="c", message_id="m")
    at_first = (await shown(crib, live.call.id))[1]
    live.answer(Result())
    await crib.ended(live)

    deadline = rfc3339(crib.row(live.call.id)["deadline"])
    assert at_first == {
        "tool": "get_weather",
        "call_id": "c",
        "message_id": "m",
        "client": True,
        "deadline": deadline,
        "arguments": {"city": "OSLO"},
    }
    assert (await shown(crib, live.call.id))[1] == at_first
    told = await subscription.take(HANG)
    assert b'"client":true,"deadline":"%b","arguments":{"city":"OSLO"}' % deadline.encode() in told
    crib.services.hub.unsubscribe(subscription)


async def test_a_call_that_the_service_runs_does_not_speak_of_clients(crib: Crib) -> None:
    await crib.open()
    view = await crib.run("echo", {"text": "x"})

    assert (await shown(crib, view["id"]))[1] == {"tool": "echo", "call_id": None, "message_id": None}
    assert crib.row(view["id"])["deadline"] is None


async def test_arguments_that_do_not_fit_never_reach_the_client(crib: Crib) -> None:
    await crib.open()

    view = await crib.run("get_weather", {"city": 7})

    assert view["error"]["code"] == "InvalidArgs"
    assert crib.story(view["id"]) == ["call.pending", "call.error"]


async def test_a_result_is_kept_whole(crib: Crib) -> None:
    await crib.open()
    live = await given_out(crib)

    live.answer(Result("12 °C", "Oslo", {"station": 3}, (Attachment("image/png", "data:,x", "sky.png"),), {"c": 12}))
    view = await crib.ended(live)

    assert view["result"] == {
        "output": "12 °C",
        "title": "Oslo",
        "metadata": {"station": 3, "truncated": False, "original_size": 5, "truncated_size": 5},
        "attachments": [{"mime": "image/png", "url": "data:,x", "filename": "sky.png", "type": "file"}],
        "structured": {"c": 12},
    }
    assert view["duration_ms"] >= 0


@pytest.mark.parametrize("is_error", [False, True])
async def test_a_long_output_is_cut_for_the_model_and_kept_whole_for_all(crib: Crib, is_error: bool) -> None:
    await crib.open()
    live = await given_out(crib)
    result = Result(output="x" * 300_000)

    live.answer(CallError("broken", result=result) if is_error else result)
    view = await crib.ended(live)

    assert view["result"]["metadata"] == {"truncated": True, "original_size": 300_000, "truncated_size": 100_046}
    assert sum(len(row["data"]) for row in crib.rows("SELECT data FROM outputs")) == 300_000


async def test_after_hooks_have_their_say(crib: Crib) -> None:
    hook = ToyHook("h")
    hook.change_output = lambda output: f"[{output}]"
    crib.hooks = [hook]
    await crib.open()
    live = await given_out(crib)

    live.answer(Result(output="rain"))

    assert (await crib.ended(live))["result"]["output"] == "[rain]"


async def test_an_error_of_the_client_is_the_calls_end_and_keeps_the_output(crib: Crib) -> None:
    await crib.open()
    live = await given_out(crib)
    failed = CallError("No station there.", result=Result(output="tried three"))
    failed.code = "ENOENT"

    live.answer(failed)
    view = await crib.ended(live)

    assert view["error"] == {"code": "ENOENT", "message": "No station there.", "retryable": False}
    assert view["result"]["output"] == "tried three"
    assert crib.end(live.call.id) == ("error", "ENOENT")


@pytest.mark.parametrize(
    ("tool", "options", "seconds"), [("get_soon", {}, "0.05"), ("get_weather", {"timeout": 0.04}, "0.04")]
)
async def test_without_a_result_it_times_out(crib: Crib, tool: str, options: dict[str, Any], seconds: str) -> None:
    await crib.open()
    live = crib.submit(tool, OSLO, **options)

    view = await crib.ended(live)

    assert view["error"] == {
        "code": "Timeout",
        "message": f"The client that runs {tool} posted no result within {seconds} s.",
        "retryable": True,
    }
    assert crib.end(live.call.id) == TIMEOUT
    assert not live.answer(Result(output="late"))


async def test_the_calls_own_time_limit_may_be_longer_than_the_tools(crib: Crib) -> None:
    await crib.open()

    live = await given_out(crib, "get_soon", timeout=600)

    row = crib.row(live.call.id)
    assert row["deadline"] == row["started_at"] + 600 * SECOND


async def test_a_cancel_ends_it_and_a_result_comes_too_late(crib: Crib) -> None:
    await crib.open()
    live = await given_out(crib)

    await crib.cancel(live)

    assert crib.end(live.call.id) == CANCELED
    assert crib.row(live.call.id)["cancel_requested"] is not None
    assert not live.answer(Result(output="late"))


async def test_the_first_result_wins(crib: Crib) -> None:
    await crib.open()
    live = await given_out(crib)

    assert [live.answer(Result(output=text)) for text in ("first", "second", "first")] == [True, False, False]

    assert (await crib.ended(live))["result"]["output"] == "first"
    assert crib.end(live.call.id) == COMPLETED


@pytest.mark.parametrize("reason", [Canceled("stop"), TimedOut("late")])
async def test_of_a_result_and_a_stop_in_the_same_moment_the_first_wins(crib: Crib, reason: CallError) -> None:
    await crib.open()
    answered, stopped = await given_out(crib), await given_out(crib)

    assert answered.answer(Result(output="rain"))
    answered.interrupt(reason)
    stopped.interrupt(reason)
    assert not stopped.answer(Result(output="rain"))
    await crib.ended(answered)
    await crib.ended(stopped)

    assert crib.end(answered.call.id) == COMPLETED
    assert crib.end(stopped.call.id) == ("error", reason.code)


async def test_a_result_that_is_taken_is_not_lost_to_a_cancel_while_a_hook_looks_at_it(crib: Crib) -> None:
    thinking, go = asyncio.Event(), asyncio.Event()

    class Slow(ToyHook):
        async def _after(self, about: dict[str, Any]) -> None:
            thinking.set()
            await go.wait()

    crib.hooks = [Slow("h")]
    await crib.open()
    live = await given_out(crib)
    live.answer(Result(output="rain"))
    async with asyncio.timeout(HANG):
        await thinking.wait()

    live.interrupt(Canceled("stop"))
    go.set()
    await crib.ended(live)

    assert crib.end(live.call.id) == COMPLETED


async def test_it_holds_nobody_at_the_gate_and_no_order_of_a_batch(crib: Crib, toys: Toys) -> None:
    await crib.open()
    asked = [("get_weather", OSLO), ("note", {"text": "1"}), ("get_weather", OSLO), ("note", {"text": "2"})]

    lives = crib.services.dispatcher.submit_all([(crib.request(tool, given), ADMIN) for tool, given in asked])
    await crib.ended(lives[1])
    await crib.ended(lives[3])

    assert (toys.notes, [live.is_done for live in lives]) == (["1", "2"], [False, True, False, True])


async def stop(crib: Crib, how: str) -> None:
    await (crib.close() if how == "closed" else crib.crash())


ways = pytest.mark.parametrize("how", ["closed", "crashed"])


@ways
async def test_it_stays_running_over_a_restart_and_its_result_ends_it(crib: Crib, how: str) -> None:
    await crib.open()
    live = await given_out(crib, timeout=600)
    before, told = crib.row(live.call.id), crib.events()

    await stop(crib, how)
    assert (crib.row(live.call.id), crib.events()) == (before, told)
    await crib.open()
    assert crib.row(live.call.id) | {"owner": before["owner"]} == before
    again = adopted(crib, live)
    assert again.answer(Result(output="rain"))
    view = await crib.ended(again)

    assert crib.end(live.call.id) == COMPLETED
    assert crib.story(live.call.id) == [*LIFE, "call.completed"]
    assert (view["result"]["output"], view["started_at"]) == ("rain", rfc3339(before["started_at"]))
    assert again.call.ended_at is not None
    assert view["duration_ms"] == pytest.approx((again.call.ended_at - before["started_at"]) / 1000, abs=1000)


@ways
async def test_it_can_be_canceled_after_a_restart(crib: Crib, how: str) -> None:
    await crib.open()
    live = await given_out(crib)
    await stop(crib, how)
    await crib.open()

    await crib.cancel(adopted(crib, live))

    assert crib.end(live.call.id) == CANCELED


@ways
async def test_it_needs_no_tool_to_end_after_a_restart(crib: Crib, toys: ClientToys, how: str) -> None:
    await crib.open()
    first, second = await given_out(crib), await given_out(crib)
    await stop(crib, how)
    toys.clients.clear()
    await crib.open()

    adopted(crib, first).answer(Result(output="x" * 200_000))
    adopted(crib, second).answer(CallError("no", result=Result(output="y" * 200_000)))
    await until(lambda: len(crib.services.dispatcher.live_calls) == 0)

    assert (crib.end(first.call.id), crib.end(second.call.id)) == (COMPLETED, ("error", "Internal"))
    sizes = [json.loads(crib.row(live.call.id)["result"])["metadata"]["truncated_size"] for live in (first, second)]
    assert sizes == [100_046, 100_046]


@ways
async def test_its_deadline_is_the_one_that_was_stored(crib: Crib, how: str) -> None:
    crib.clock = clock = SetClock()
    await crib.open()
    over, soon, later = [await given_out(crib, timeout=seconds) for seconds in (600, 3600.2, 7200)]
    await stop(crib, how)
    clock.offset = 3600 * SECOND
    await crib.open()

    await until(lambda: len(crib.services.dispatcher.live_calls) == 1)

    assert (crib.end(over.call.id), crib.end(soon.call.id)) == (TIMEOUT, TIMEOUT)
    assert json.loads(crib.row(over.call.id)["error"])["message"].endswith("posted no result within 600 s.")
    assert adopted(crib, later).call.status is Status.RUNNING


async def test_a_clock_set_back_over_a_restart_gives_no_more_time_than_there_was() -> None:
    assert resume_client_run(10 * SECOND, 70 * SECOND, 40 * SECOND)._left == 30
    assert resume_client_run(10 * SECOND, 70 * SECOND, -999 * SECOND)._left == 60
    assert resume_client_run(10 * SECOND, 70 * SECOND, 999 * SECOND)._left == 0


async def test_a_wish_to_cancel_that_was_noted_before_a_crash_is_honoured_at_the_start(crib: Crib) -> None:
    await crib.open()
    live, other = await given_out(crib), await given_out(crib)
    crib.services.dispatcher._journal.request_cancel(live)
    await until(lambda: crib.row(live.call.id)["cancel_requested"])
    await crib.crash()

    await crib.open()

    assert crib.end(live.call.id) == CANCELED
    assert adopted(crib, other).call.status is Status.RUNNING


async def test_it_survives_many_restarts_in_a_row(crib: Crib) -> None:
    await crib.open()
    live = await given_out(crib)
    for how in ("closed", "crashed", "crashed", "closed"):
        await stop(crib, how)
        await crib.open()

    adopted(crib, live).answer(Result(output="rain"))
    await until(lambda: len(crib.services.dispatcher.live_calls) == 0)

    assert (crib.end(live.call.id), crib.row(live.call.id)["attempt"]) == (COMPLETED, 1)


@ways
async def test_one_that_another_call_made_ends_with_it(crib: Crib, how: str) -> None:
    await crib.open()
    parent = crib.submit("relay", {"tool": "get_weather", "arguments": OSLO})
    await until(lambda: len(crib.services.dispatcher.live_calls) == 2)
    child = next(live for live in crib.services.dispatcher.live_calls if live.parent is parent)
    await until(lambda: child.is_open and child._is_interruptible)

    await stop(crib, how)
    await crib.open()

    assert crib.end(parent.call.id) == crib.end(child.call.id) == INTERRUPTED
    assert len(crib.services.dispatcher.live_calls) == 0


async def test_another_tool_can_call_it_and_gets_its_result(crib: Crib) -> None:
    await crib.open()
    parent = crib.submit("relay", {"tool": "get_weather", "arguments": OSLO})
    await until(lambda: len(crib.services.dispatcher.live_calls) == 2)
    child = next(live for live in crib.services.dispatcher.live_calls if live.parent is parent)
    await until(lambda: child.is_open)

    child.answer(Result(output="rain"))

    assert (await crib.ended(parent))["result"]["output"] == "rain"


async def test_a_stop_in_the_moment_of_its_start_leaves_it_running(crib: Crib) -> None:
    await crib.open()
    with crib.stalled_writer():
        live = crib.submit("get_weather", OSLO)
        await until(lambda: live.call.status is Status.RUNNING)
        draining = asyncio.create_task(crib.house.drain())
        await until(lambda: live.stop is not None)
    async with asyncio.timeout(HANG):
        await draining

    assert (crib.row(live.call.id)["status"], crib.story(live.call.id)) == ("running", LIFE)
    await crib.close()
    await crib.open()
    assert adopted(crib, live).answer(Result())


async def test_those_who_wait_are_woken_when_it_is_kept_for_the_next_start(crib: Crib) -> None:
    crib.settings["grace"] = 60
    await crib.open()
    live = await given_out(crib)
    waiting = asyncio.create_task(live.wait())

    async with asyncio.timeout(HANG):  # the grace is not waited for: nothing of it runs here
        await crib.house.drain()
        assert await waiting

    assert (live.record.failure, live.call.status, viewed(live)["result"]) == (None, Status.RUNNING, None)
    assert not live.answer(Result(output="late"))


async def test_it_is_kept_too_when_there_is_no_grace_any_more(crib: Crib) -> None:
    await crib.open()
    live = await given_out(crib)

    crib.house.interrupt_now()
    await until(lambda: live.is_done)

    assert crib.row(live.call.id)["status"] == "running"


async def test_a_result_taken_before_a_stop_is_recorded(crib: Crib) -> None:
    await crib.open()
    live = await given_out(crib)

    live.answer(Result(output="rain"))
    await crib.close()

    assert crib.end(live.call.id) == COMPLETED


async def test_it_counts_for_its_key_as_long_as_it_runs_also_after_a_restart(crib: Crib) -> None:
    key = Key("key_ann", "admin", "", frozenset(), "d", 0)
    await crib.open()
    await crib.services.writer.submit(lambda batch: principals.add_key(batch, key))
    live = crib.services.dispatcher.submit(CallRequest(tool="get_weather", arguments=OSLO), ADMIN, key=key)
    await until(lambda: live.is_open)
    counts = [dict(crib.services.dispatcher.capacity.by_key)]
    await crib.close()
    await crib.open()
    counts.append(dict(crib.services.dispatcher.capacity.by_key))

    adopted(crib, live).answer(Result())
    await until(lambda: len(crib.services.dispatcher.live_calls) == 0)

    assert counts == [{"key_ann": 1}, {"key_ann": 1}]
    assert (crib.services.dispatcher.capacity.under_way, dict(crib.services.dispatcher.capacity.by_key)) == (0, {})
    assert crib.services.call_stats.ends == {("get_weather", "completed", ""): 1}
    assert crib.services.call_stats.durations["get_weather"].count == 1


async def test_what_it_was_sealed_with_need_not_be_readable_any_more(crib: Crib) -> None:
    await crib.open()
    crib.house.redactor.add_own_key("hunter2-the-secret")
    live = crib.submit("get_weather", {"city": "hunter2-the-secret"})
    await until(lambda: live.is_open)
    await crib.crash()
    crib.change("UPDATE calls SET sealed = x'00'")
    await crib.open()

    adopted(crib, live).answer(Result(output="rain"))
    await until(lambda: len(crib.services.dispatcher.live_calls) == 0)

    assert (crib.end(live.call.id), crib.row(live.call.id)["sealed"]) == (COMPLETED, None)
