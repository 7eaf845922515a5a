"""A call ends exactly once, wherever it stands when somebody stops it."""

import asyncio
from typing import Any

import pytest

from app.core.calls import Status
from app.core.errors import CallError, Canceled, ToolUnavailable
from app.dispatch.live_calls import LiveCall
from tests.support.services import HANG, Crib, until
from tests.support.toy_tools import ToyHook, Toys

CANCELED = ("error", "Canceled")
COMPLETED = ("completed", None)


async def test_a_cancel_before_the_first_step_lets_nothing_start(crib: Crib, toys: Toys) -> None:
    await crib.open()

    live = crib.submit("note", {"text": "done"})
    await crib.cancel(live)

    assert crib.end(live.call.id) == CANCELED
    assert toys.notes == []


async def test_a_cancel_while_the_opening_commit_is_under_way_lets_nothing_start(crib: Crib, toys: Toys) -> None:
    await crib.open()

    with crib.stalled_writer():
        live = crib.submit("note", {"text": "done"})
        await until(lambda: live.call.status is Status.RUNNING)
        live.interrupt(Canceled("stop"))
    await crib.ended(live)

    assert crib.end(live.call.id) == CANCELED
    assert crib.story(live.call.id) == ["call.pending", "call.running", "call.error"]
    assert toys.notes == []


async def test_a_cancel_while_pending_is_committed_alone_ends_it_before_the_hook(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h")
    crib.hooks = [hook]
    await crib.open()

    with crib.stalled_writer():
        live = crib.submit("note", {"text": "done"})
        await asyncio.sleep(0)
        live.interrupt(Canceled("stop"))
    await crib.ended(live)

    assert crib.end(live.call.id) == CANCELED
    assert crib.story(live.call.id) == ["call.pending", "call.error"]
    assert (toys.notes, hook.log) == ([], ["h after None"])


async def test_a_cancel_while_a_hook_thinks_ends_a_pending_call(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    crib.hooks = [hook]
    await crib.open()
    live = crib.submit("note", {"text": "done"})
    await until(hook.met.is_set)

    await crib.cancel(live)

    assert crib.end(live.call.id) == CANCELED
    assert crib.story(live.call.id) == ["call.pending", "call.error"]
    assert crib.row(live.call.id)["started_at"] is None
    assert toys.notes == []


async def test_a_cancel_while_settled_arguments_are_committed_takes_effect_right_after(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h")
    hook.go.clear()
    crib.hooks = [hook]
    await crib.open()
    live = crib.submit("note", {"text": "done"})
    await until(hook.met.is_set)

    with crib.stalled_writer():
        hook.go.set()
        await until(lambda: not live._is_interruptible)
        live.interrupt(Canceled("stop"))
    await crib.ended(live)

    assert crib.end(live.call.id) == CANCELED
    assert crib.row(live.call.id)["effective"] == '{"text":"done"}'
    assert toys.notes == []


async def test_a_cancel_at_the_gate_ends_a_pending_call_and_frees_its_place(crib: Crib, toys: Toys) -> None:
    await crib.open()
    first = crib.submit("wait", {"name": "first", "effect": "write"})
    await crib.started("first")
    second = crib.submit("note", {"text": "second"})
    third = crib.submit("note", {"text": "third"})
    await crib.at_the_gate(third)

    await crib.cancel(second)
    toys.go["first"].set()
    await crib.ended(third)

    assert crib.end(second.call.id) == CANCELED
    assert crib.story(second.call.id) == ["call.pending", "call.waiting", "call.error"]
    assert crib.end(first.call.id) == COMPLETED
    assert toys.notes == ["third"]


async def test_a_cancel_in_the_tick_the_gate_opens_ends_canceled_and_nothing_leaks(crib: Crib, toys: Toys) -> None:
    await crib.open()
    for turn in range(20):
        first = crib.submit("wait", {"name": f"{turn}", "effect": "write"})
        await crib.started(f"{turn}")
        second = crib.submit("note", {"text": "second"})
        await crib.at_the_gate(second)
        toys.go[f"{turn}"].set()
        for _ in range(turn % 7):
            await asyncio.sleep(0)
        second.interrupt(Canceled("stop"))
        await crib.ended(second)
        await crib.ended(first)
        assert crib.end(second.call.id) in (CANCELED, COMPLETED)

    assert (await crib.run("note", {"text": "free"}))["status"] == "completed"


async def test_a_cancel_while_running_commits_is_followed_before_the_tool_starts(crib: Crib, toys: Toys) -> None:
    crib.hooks = [ToyHook("h")]
    await crib.open()

    live = crib.submit("note", {"text": "done"})
    await until(lambda: live.call.effective is not None)
    live.interrupt(Canceled("stop"))
    await crib.ended(live)

    assert crib.end(live.call.id) == CANCELED
    assert toys.notes == []


async def test_a_cancel_of_a_running_call_is_noted_and_keeps_its_output(crib: Crib, toys: Toys) -> None:
    await crib.open()
    live = crib.submit("wait", {"say": "so far"})
    await crib.started("wait")

    await crib.cancel(live)

    assert crib.end(live.call.id) == CANCELED
    row = crib.row(live.call.id)
    assert row["cancel_requested"] is not None
    view = await crib.ended(live)
    assert view["result"]["output"] == "so far"
    assert view["error"] == {"code": "Canceled", "message": "The call was canceled.", "retryable": False}
    assert toys.log == ["wait in", "wait out"]
    assert toys.contexts[0].abort.is_set()


async def test_a_tool_that_ignores_a_cancel_for_a_moment_still_ends_canceled(crib: Crib, toys: Toys) -> None:
    await crib.open()
    live = crib.submit("stubborn")
    await crib.started("stubborn")

    canceling = asyncio.create_task(crib.cancel(live))
    await crib.started("canceled")
    assert crib.row(live.call.id)["status"] == "running"
    toys.go["stubborn"].set()
    await canceling

    assert crib.end(live.call.id) == CANCELED


async def test_a_tool_that_finishes_in_spite_of_a_cancel_completes(crib: Crib, toys: Toys) -> None:
    await crib.open()
    live = crib.submit("stubborn", {"ending": "return"})
    await crib.started("stubborn")
    toys.go["stubborn"].set()

    await crib.cancel(live)

    assert crib.end(live.call.id) == COMPLETED
    assert (await crib.ended(live))["result"]["output"] == "finished all the same"


async def test_a_cancel_is_answered_while_a_tool_does_not_let_go(
    crib: Crib, toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.live_calls.CANCEL_SECONDS", 0.01)
    await crib.open()
    live = crib.submit("stubborn")
    await crib.started("stubborn")

    await crib.cancel(live)
    assert crib.row(live.call.id)["status"] == "running"

    toys.go["stubborn"].set()
    await crib.ended(live)
    assert crib.end(live.call.id) == CANCELED


async def test_a_result_handed_to_the_writer_beats_a_later_cancel(crib: Crib, toys: Toys) -> None:
    await crib.open()
    live = crib.submit("wait")
    await crib.started("wait")

    with crib.stalled_writer():
        toys.go["wait"].set()
        await until(lambda: live.call.is_final)
        canceling = asyncio.create_task(crib.cancel(live))
        await asyncio.sleep(0)
        assert live.stop is not None
    await canceling

    assert crib.end(live.call.id) == COMPLETED
    assert (await crib.ended(live))["result"]["output"] == "wait"


async def test_a_cancel_after_the_end_changes_nothing(crib: Crib) -> None:
    await crib.open()
    live = crib.submit("echo", {"text": "x"})
    before = await crib.ended(live)

    await crib.cancel(live)
    await crib.cancel(live)

    assert await crib.ended(live) == before
    assert crib.end(live.call.id) == COMPLETED
    assert len(crib.services.dispatcher.live_calls) == 0


async def test_many_cancels_at_once_are_one(crib: Crib) -> None:
    await crib.open()
    live = crib.submit("wait")
    await crib.started("wait")

    async with asyncio.timeout(HANG), asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(crib.cancel(live))

    assert crib.end(live.call.id) == CANCELED


async def test_a_tool_that_returns_as_it_is_canceled_ends_once(crib: Crib, toys: Toys) -> None:
    await crib.open()
    seen = set()
    for turn in range(100):
        name = f"race {turn}"
        live = crib.submit("wait_free", {"name": name, "say": "x" * (turn % 3)})
        await crib.started(name)
        canceling = asyncio.create_task(crib.cancel(live))
        for _ in range(turn % 11):
            await asyncio.sleep(0)
        toys.go[name].set()
        await canceling
        seen.add(crib.end(live.call.id))

    assert seen <= {CANCELED, COMPLETED}


async def test_an_interruption_in_any_tick_of_a_calls_life_gives_one_end(crib: Crib, toys: Toys) -> None:
    crib.hooks = [ToyHook("h", {"echo"})]
    await crib.open()
    lives: list[LiveCall] = []
    for turn in range(120):
        live = crib.submit("echo" if turn % 2 else "say", {"text": "x"} if turn % 2 else {"texts": ["a", "b"]})
        for _ in range(turn // 3):
            await asyncio.sleep(0)
        live.interrupt(Canceled("stop"))
        lives.append(live)
    for live in lives:
        await crib.ended(live)

    assert {crib.end(live.call.id) for live in lives} <= {CANCELED, COMPLETED}


async def test_a_timeout_and_a_cancel_that_meet_give_one_end(crib: Crib, toys: Toys) -> None:
    await crib.open()
    loop = asyncio.get_running_loop()
    lives = []
    for turn in range(100):
        live = crib.submit("wait_free", {"name": f"{turn}"}, timeout=0.004)
        await crib.started(f"{turn}")
        if turn % 2:
            loop.call_later(0.003 + turn % 10 * 0.0002, live.interrupt, Canceled("stop"))
        else:
            loop.call_later(0.003 + turn % 10 * 0.0002, toys.go[f"{turn}"].set)
        lives.append(live)
    for live in lives:
        await crib.ended(live)

    assert {crib.end(live.call.id) for live in lives} <= {CANCELED, COMPLETED, ("error", "Timeout")}


async def test_a_tool_that_cancels_itself_has_a_bug(crib: Crib) -> None:
    await crib.open()

    view = await crib.run("odd", {"text": "cancel"})

    assert view["error"] == {
        "code": "Internal",
        "message": "The tool was canceled from inside; this is a bug of the tool.",
        "retryable": False,
    }
    assert crib.end(view["id"]) == ("error", "Internal")


async def test_canceling_a_parent_cancels_its_children_first(crib: Crib, toys: Toys) -> None:
    await crib.open()
    parent = crib.submit("relay", {"tool": "wait", "arguments": {"name": "child"}})
    await crib.started("child")
    child = toys.contexts[-1].id

    await crib.cancel(parent)

    assert crib.end(parent.call.id) == CANCELED
    assert crib.end(child) == CANCELED
    ends = [event["call"] for event in crib.events() if event["type"] == "call.error"]
    assert ends == [child, parent.call.id]


async def test_a_parent_that_times_out_takes_its_children_along(crib: Crib, toys: Toys) -> None:
    await crib.open()

    parent = await crib.run("relay", {"tool": "wait", "arguments": {"name": "child"}}, timeout=0.05)

    child = toys.contexts[-1].id
    assert crib.end(parent["id"]) == ("error", "Timeout")
    assert crib.end(child) == ("error", "Timeout")


@pytest.mark.parametrize("waits", [True, False], ids=["fails beside it", "does not wait for it"])
async def test_no_child_outlives_its_parent(crib: Crib, toys: Toys, waits: bool) -> None:
    await crib.open()
    calls: list[tuple[str, dict[str, Any]]] = [("wait", {"name": "child", "effect": "write"})]
    if waits:
        calls.append(("fail", {"code": "ENOENT"}))

    parent = await crib.run("fan", {"calls": calls, "wait": waits})

    child = crib.rows("SELECT id FROM calls WHERE tool = 'wait'")[0]["id"]
    assert crib.end(parent["id"]) == (("error", "ENOENT") if waits else COMPLETED)
    assert crib.end(child) == CANCELED
    assert crib.events()[-1]["call"] == parent["id"]
    assert (await crib.run("note", {"text": "free"}))["status"] == "completed"
    await asyncio.wait(toys.tasks, timeout=HANG)
    assert [type(task.exception()) for task in toys.tasks][:1] == [CallError]


async def test_what_a_tool_left_behind_has_nothing_to_say_after_the_end(crib: Crib, toys: Toys) -> None:
    await crib.open()
    view = await crib.run("echo", {"text": "x"})
    (ctx,) = toys.contexts
    before = crib.events()

    ctx.metadata(title="still here")
    await ctx.output("more")
    with pytest.raises(ToolUnavailable, match="This call has ended"):
        await ctx.call("note", {"text": "late"})
    await crib.run("echo", {"text": "y"})

    assert crib.events()[: len(before)] == before
    assert crib.story(view["id"]) == ["call.pending", "call.running", "call.completed"]
    assert crib.rows("SELECT * FROM outputs") == []
    assert toys.notes == []


async def test_a_tool_is_stopped_though_the_store_cannot_note_it(crib: Crib, toys: Toys) -> None:
    await crib.open()
    live = crib.submit("wait")
    await crib.started("wait")
    crib.change("CREATE TRIGGER full BEFORE UPDATE ON calls BEGIN SELECT RAISE(ABORT, 'full'); END")

    await crib.cancel(live)

    assert toys.log == ["wait in", "wait out"]
    assert (live.is_done, crib.row(live.call.id)["status"]) == (True, "running")


async def test_canceling_a_child_is_an_error_its_parent_can_read(crib: Crib, toys: Toys) -> None:
    await crib.open()
    parent = crib.submit("relay", {"tool": "wait", "arguments": {"name": "child"}})
    await crib.started("child")
    child = crib.services.dispatcher.live_calls.get(toys.contexts[-1].id)
    assert child is not None

    await crib.cancel(child)

    view = await crib.ended(parent)
    assert (view["status"], view["error"]["code"]) == ("error", "Canceled")
