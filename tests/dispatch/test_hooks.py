"""Hooks on the line: what they are told, what they may change, what their failure means, and what is told of them."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from app.core.calls import Call
from app.core.errors import Canceled, HookDenied
from app.core.hooks import Hook, HookFailed, OnFailure, Point
from app.core.rules import Action, Need
from app.core.sessions import Session
from app.core.tools import Tool
from app.core.util.clocks import SystemClock
from app.dispatch.hooks import Hooks
from tests.support.services import HANG, Crib, until
from tests.support.toy_tools import ToyHook, Toys

CALL = Call("call_1", "admin", "echo", 0)
SESSION = Session("admin", "s", agent="build")
BEFORE, AFTER, ASK, ENV, DEFINITION = Point.BEFORE, Point.AFTER, Point.ASK, Point.SHELL_ENV, Point.DEFINITION


class Recorder:
    """A hook that gives one answer to everything, and keeps what it was asked."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, point: Point, about: dict[str, Any]) -> dict[str, Any] | None:
        self.asked.append(about)
        answer = self.answer(about) if callable(self.answer) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]


def hook(point: Point, answer: Any = None, *, name: str = "h", **more: Any) -> Hook:
    run = answer if isinstance(answer, Recorder) else Recorder(answer)
    return Hook(name=name, points=frozenset({point}), run=run, **more)


def said(verdict: str, point: Point = BEFORE, *, name: str = "h", **more: Any) -> dict[str, Any]:
    return {"name": name, "point": point.value, "verdict": verdict} | more


def never(about: dict[str, Any]) -> None:
    raise AssertionError("it must not be asked")


async def open_with(crib: Crib, *hooks: Hook) -> Crib:
    crib.hooks = list(hooks)
    return await crib.open()


# What goes in.


async def test_a_before_hook_is_told_all_about_the_call(crib: Crib) -> None:
    seen = Recorder()
    await open_with(crib, hook(BEFORE, seen))

    view = await crib.run("wait", {"name": "w", "effect": "bad"})
    await crib.run("shout", None, input="hi")
    live = crib.submit("note", {"text": "x"})
    await crib.ended(live)

    common = {"session": "default", "agent": None, "attempt": 1}
    first = common | {"call": view["id"], "tool": "wait", "kind": "builtin", "effect": "write"}
    assert seen.asked[0] == first | {"arguments": {"name": "w", "effect": "bad"}}
    assert seen.asked[1] | {"call": ""} == common | {
        "call": "",
        "tool": "shout",
        "kind": "toys",
        "effect": "read",
        "input": "hi",
    }
    assert (seen.asked[2]["call"], seen.asked[2]["effect"]) == (live.call.id, "write")


async def test_an_effect_that_depends_on_the_arguments_is_told_as_it_is(crib: Crib, toys: Toys) -> None:
    seen = Recorder()
    toys.go["wait"].set()
    await open_with(crib, hook(BEFORE, seen))

    await crib.run("wait", {"effect": "read"})
    await crib.run("wait", {"effect": "write"})

    assert [about["effect"] for about in seen.asked] == ["read", "write"]


async def test_each_before_hook_is_told_in_order(crib: Crib) -> None:
    await open_with(
        crib,
        hook(BEFORE, {"arguments": {"text": "b"}}, name="one"),
        hook(BEFORE, lambda about: {"arguments": {"text": about["arguments"]["text"] + "c"}}, name="two"),
        hook(BEFORE, {}, name="three"),
        hook(BEFORE, lambda about: {"arguments": about["arguments"]}, name="four"),
    )

    view = await crib.run("note", {"text": "a"})

    assert view["result"]["output"] == "bc"
    assert crib.hooked(view["id"]) == [
        said("changed", name="one"),
        said("changed", name="two"),
        said("ok", name="three"),
        said("ok", name="four"),
    ]
    types = [event["type"] for event in crib.events(view["id"])]
    assert types == ["call.pending", *["call.hook"] * 4, "call.running", "call.completed"]
    durations = [json.loads(event["data"])["duration_ms"] for event in crib.events(view["id"])[1:5]]
    assert all(isinstance(duration, float) and duration >= 0 for duration in durations)


async def test_what_a_hook_changed_is_judged_by_the_rules_too(crib: Crib) -> None:
    crib.settings["rules"] = [{"permission": "read", "pattern": "secret", "action": "deny"}]
    await open_with(crib, hook(BEFORE, {"arguments": {"path": "secret"}}))

    view = await crib.run("need", {"path": "open"})

    assert view["error"]["code"] == "PermissionDenied"


async def test_a_hook_cannot_change_what_it_was_shown_by_hand(crib: Crib) -> None:
    def reach_in(about: dict[str, Any]) -> None:
        about["arguments"]["text"] = "changed by hand"

    await open_with(crib, hook(BEFORE, reach_in))

    view = await crib.run("note", {"text": "a"})

    assert view["result"]["output"] == "a"


async def test_a_no_ends_the_call_and_the_next_hook_is_not_asked(crib: Crib, toys: Toys) -> None:
    await open_with(crib, hook(BEFORE, {"deny": "Not today."}), hook(BEFORE, never, name="later"))

    view = await crib.run("note", {"text": "a"})

    assert view["error"] == {"code": "HookDenied", "message": "Not today.", "retryable": False}
    assert crib.hooked(view["id"]) == [said("deny", message="Not today.")]
    assert toys.notes == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (HookFailed("it has a cold"), "it has a cold"),
        (ValueError("with /a/path and a secret"), "it raised ValueError"),
        (SystemExit(3), "it raised SystemExit"),
        (["a"], "its answer is not an object"),
        ("no", "its answer is not an object"),
        ({"denied": "x"}, "its answer has `denied`, which means nothing at tool.execute.before"),
        ({"output": "x"}, "its answer has `output`, which means nothing at tool.execute.before"),
        ({"deny": True}, "its `deny` is not text"),
        ({"deny": ""}, "its `deny` is not text"),
        ({"arguments": "x"}, "its `arguments` is not an object"),
        ({"arguments": {"text": object()}}, "its answer cannot be written as JSON"),
        ({"input": "x"}, "its answer has `input`, not `arguments`"),
        ({"input": "x", "arguments": {}}, "its answer has `input`, not `arguments`"),
    ],
)
async def test_a_before_hook_that_fails_is_a_no_unless_it_may_be_passed(
    crib: Crib, toys: Toys, answer: Any, why: str
) -> None:
    await open_with(
        crib,
        hook(BEFORE, answer, name="polite", on_failure="continue"),
        hook(BEFORE, answer, name="strict", tools=("note",)),
    )

    passed = await crib.run("echo", {"text": "a"})
    blocked = await crib.run("note", {"text": "b"})

    assert (passed["status"], passed["result"]["output"]) == ("completed", "a")
    assert crib.hooked(passed["id"]) == [said("failed", name="polite", message=why)]
    message = f"The hook strict failed ({why}), and it is required."
    assert blocked["error"] == {"code": "HookDenied", "message": message, "retryable": False}
    assert crib.hooked(blocked["id"]) == [
        said("failed", name="polite", message=why),
        said("failed", name="strict", message=why),
    ]
    assert toys.notes == []


async def test_a_hook_that_does_not_answer_in_its_time_has_failed(crib: Crib, toys: Toys) -> None:
    slow = ToyHook("slow", points=frozenset({BEFORE}), timeout=0.05)
    slow.go.clear()
    await open_with(crib, slow.hook)

    view = await crib.run("note", {"text": "a"})

    why = "it did not answer within 0.05 s"
    assert view["error"]["message"] == f"The hook slow failed ({why}), and it is required."
    assert crib.hooked(view["id"]) == [said("failed", name="slow", message=why)]
    assert toys.notes == []


@pytest.mark.parametrize("answer", [None, {}, {"arguments": None, "deny": None}])
async def test_nothing_to_say_is_an_answer(crib: Crib, answer: Any) -> None:
    await open_with(crib, hook(BEFORE, answer))

    view = await crib.run("echo", {"text": "a"})

    assert view["result"]["output"] == "a"
    assert crib.hooked(view["id"]) == [said("ok")]


async def test_a_secret_in_what_a_hook_says_is_not_told(crib: Crib) -> None:
    crib.settings["secrets"] = {"token": {"env": "TOOLCRIB_TEST_TOKEN"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLCRIB_TEST_TOKEN", "hunter2hunter2")
        await open_with(crib, hook(BEFORE, {"deny": "The token hunter2hunter2 is not yours."}))

    view = await crib.run("note", {"text": "a"})

    [told] = crib.hooked(view["id"])
    assert "hunter2" not in view["error"]["message"] + told["message"]


async def test_a_refused_telling_costs_only_itself(crib: Crib, caplog: pytest.LogCaptureFixture) -> None:
    await crib.open()
    live = crib.submit("echo", {"text": "a"})
    await crib.ended(live)
    await crib.close()

    with caplog.at_level(logging.WARNING):
        crib.house._dispatcher._journal.publish_hook(live, said("ok"))
        await until(lambda: "the answer of a hook of" in caplog.text)

    assert crib.hooked(live.call.id) == []


# What comes out.


def outcome(about: dict[str, Any]) -> dict[str, Any]:
    return {name: about[name] for name in ("executed", "success", "output", "error")}


async def test_an_after_hook_is_told_how_it_went(crib: Crib) -> None:
    seen = Recorder()
    await open_with(crib, hook(AFTER, seen))

    view = await crib.run("flood", {"text": "é", "times": 5000})

    [about] = seen.asked
    duration = about.pop("duration_ms")
    assert isinstance(duration, float)
    assert 0 <= duration <= view["duration_ms"]
    assert about == {
        "call": view["id"],
        "tool": "flood",
        "kind": "builtin",
        "effect": "read",
        "session": "default",
        "agent": None,
        "attempt": 1,
        "arguments": {"text": "é", "times": 5000},
        "executed": True,
        "success": True,
        "output": "é" * 100 + "\n[output truncated, 4900 characters omitted]",
        "error": None,
    }
    assert crib.hooked(view["id"]) == [said("ok", AFTER)]


async def test_an_after_hook_gets_a_preview_of_a_long_output(crib: Crib) -> None:
    seen = Recorder()
    await open_with(crib, hook(AFTER, seen))

    await crib.run("echo", {"text": "x" * 3000})

    assert seen.asked[0]["output"] == "x" * 2000


async def test_after_hooks_hear_of_every_way_to_fail(crib: Crib, toys: Toys) -> None:
    seen = Recorder()
    crib.settings["rules"] = [{"permission": "read", "pattern": "secret", "action": "deny"}]
    await open_with(crib, hook(BEFORE, {"deny": "No."}, tools=("shout",)), hook(AFTER, seen))

    calls: list[tuple[str, dict[str, Any] | None, dict[str, Any]]] = [
        ("fail", {}, {}),
        ("bug", {"text": "x"}, {}),
        ("wait_briefly", {"say": "so far"}, {}),
        ("note", {"words": 3}, {}),
        ("echo", None, {"input": "x"}),
        ("need", {"path": "secret"}, {}),
        ("shout", None, {"input": "x"}),
        ("bad_needs", {}, {}),
    ]
    views = [await crib.run(tool, arguments, **more) for tool, arguments, more in calls]
    await crib.run("no_such_tool")

    ends = [(about["error"]["code"], about["executed"], about["output"]) for about in seen.asked]
    assert ends == [
        ("ExitCode:3", True, "what it printed"),
        ("Internal", True, None),
        ("Timeout", True, "so far"),
        ("InvalidArgs", False, None),
        ("InvalidArgs", False, None),
        ("PermissionDenied", False, None),
        ("HookDenied", False, None),
        ("Internal", False, None),
    ]
    assert [view["error"]["code"] for view in views] == [code for code, _, _ in ends]
    assert [about["error"]["message"] for about in seen.asked] == [view["error"]["message"] for view in views]
    assert all(about["success"] is False for about in seen.asked)
    assert [about["duration_ms"] is not None for about in seen.asked] == [executed for _, executed, _ in ends]
    assert seen.asked[4]["input"] == "x"
    assert toys.notes == []


async def test_an_unknown_tool_has_no_hooks_and_one_commit(crib: Crib) -> None:
    await open_with(crib, hook(AFTER, never), hook(BEFORE, never))
    before = crib.services.writer.batch_sizes.count

    view = await crib.run("no_such_tool")

    assert view["error"]["code"] == "UnknownTool"
    assert (crib.hooked(view["id"]), crib.services.writer.batch_sizes.count - before) == ([], 1)


async def test_after_hooks_of_other_tools_leave_the_look_ahead_alone(crib: Crib) -> None:
    await open_with(crib, hook(AFTER, tools=("echo",)))
    commits = crib.services.writer.batch_sizes

    before = commits.count
    view = await crib.run("note", {"words": 3})
    alone = commits.count - before
    await crib.run("echo", {"words": 3})

    assert view["error"]["code"] == "InvalidArgs"
    assert (alone, commits.count - before - alone) == (1, 2)


async def test_an_after_hook_sees_the_arguments_that_ran(crib: Crib) -> None:
    seen = Recorder()
    await open_with(crib, hook(BEFORE, {"arguments": {"text": "b"}}), hook(AFTER, seen))

    await crib.run("note", {"text": "a"})

    assert seen.asked[0]["arguments"] == {"text": "b"}


async def test_an_after_hook_may_replace_the_output(crib: Crib) -> None:
    await open_with(crib, hook(AFTER, lambda about: {"output": about["output"].upper()}))

    fine = await crib.run("echo", {"text": "a"})
    failed = await crib.run("fail")

    assert (fine["status"], fine["result"]["output"], fine["result"]["structured"]) == ("completed", "A", {"text": "a"})
    assert (failed["status"], failed["error"]["code"]) == ("error", "ExitCode:3")
    assert failed["result"]["output"] == "WHAT IT PRINTED"
    assert crib.hooked(fine["id"]) == [said("changed", AFTER)]


async def test_a_replaced_output_is_cut_like_any_and_the_original_is_kept_nowhere(crib: Crib) -> None:
    await open_with(crib, hook(AFTER, {"output": "y" * 150}))

    view = await crib.run("flood", {"text": "x", "times": 300})

    assert view["result"]["output"] == "y" * 100 + "\n[output truncated, 50 characters omitted]"
    assert view["result"]["metadata"] == {"truncated": True, "original_size": 150, "truncated_size": 142}
    assert [row["data"] for row in crib.rows("SELECT data FROM outputs WHERE call = ?", view["id"])] == [b"y" * 150]


async def test_a_call_without_output_can_be_given_one(crib: Crib) -> None:
    await open_with(crib, hook(AFTER, {"output": "Try `text`."}))

    view = await crib.run("note", {"words": 3})

    assert (view["error"]["code"], view["result"]["output"]) == ("InvalidArgs", "Try `text`.")


async def test_an_after_hook_may_end_the_call_and_its_result_stays(crib: Crib, toys: Toys) -> None:
    heard = Recorder()
    await open_with(
        crib,
        hook(AFTER, {"deny": "That was not for you."}),
        hook(AFTER, {"deny": "Nor for me."}, name="second"),
        hook(AFTER, heard, name="last"),
    )

    view = await crib.run("note", {"text": "a"})

    assert view["error"] == {"code": "HookDenied", "message": "That was not for you.", "retryable": False}
    assert view["result"]["output"] == "a"
    assert crib.end(view["id"]) == ("error", "HookDenied")
    assert crib.hooked(view["id"]) == [
        said("deny", AFTER, message="That was not for you."),
        said("deny", AFTER, name="second", message="Nor for me."),
        said("ok", AFTER, name="last"),
    ]
    error = {"code": "HookDenied", "message": "That was not for you."}
    assert outcome(heard.asked[0]) == {"executed": True, "success": False, "output": "a", "error": error}
    assert toys.notes == ["a"]


@pytest.mark.parametrize(
    ("on_failure", "end"),
    [(None, ("completed", None)), ("continue", ("completed", None)), ("block", ("error", "HookDenied"))],
)
async def test_an_after_hook_that_fails_is_passed_unless_it_must_not_be(
    crib: Crib, on_failure: OnFailure | None, end: tuple[str, str | None]
) -> None:
    await open_with(crib, hook(AFTER, ValueError(), on_failure=on_failure))

    view = await crib.run("note", {"text": "a"})

    assert crib.end(view["id"]) == end
    assert view["result"]["output"] == "a"
    assert crib.hooked(view["id"]) == [said("failed", AFTER, message="it raised ValueError")]


class Holding:
    """An after-hook that thinks until it is let go."""

    def __init__(self) -> None:
        self.met = asyncio.Event()
        self.go = asyncio.Event()
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, point: Point, about: dict[str, Any]) -> dict[str, Any] | None:
        self.asked.append(about)
        self.met.set()
        await self.go.wait()
        return {"output": "held"}

    def hook(self, **more: Any) -> Hook:
        return Hook(name="holding", points=frozenset({AFTER}), run=self, **more)


async def test_a_cancel_while_an_after_hook_thinks_ends_the_call_and_keeps_its_result(crib: Crib) -> None:
    holding = Holding()
    await open_with(crib, holding.hook(), hook(AFTER, never, name="later"))
    live = crib.submit("note", {"text": "a"})
    await until(holding.met.is_set)

    await crib.cancel(live)

    view = await crib.ended(live)
    assert crib.end(live.call.id) == ("error", "Canceled")
    assert view["result"]["output"] == "a"
    assert crib.hooked(live.call.id) == []


async def test_a_cancel_while_an_after_hook_looks_at_a_failure_leaves_the_failure(crib: Crib) -> None:
    holding = Holding()
    await open_with(crib, holding.hook())
    live = crib.submit("fail")
    await until(holding.met.is_set)

    await crib.cancel(live)

    view = await crib.ended(live)
    assert crib.end(live.call.id) == ("error", "ExitCode:3")
    assert view["result"]["output"] == "what it printed"


async def test_after_hooks_hear_of_a_cancel_and_are_not_disturbed(crib: Crib, toys: Toys) -> None:
    holding = Holding()
    await open_with(crib, holding.hook())
    live = crib.submit("wait", {"say": "so far"})
    await crib.started("wait")
    live.interrupt(Canceled("Stop."))
    await until(holding.met.is_set)

    live.interrupt(Canceled("Stop again."))
    holding.go.set()
    view = await crib.ended(live)

    error = {"code": "Canceled", "message": "Stop."}
    assert outcome(holding.asked[0]) == {"executed": True, "success": False, "output": "so far", "error": error}
    assert crib.end(live.call.id) == ("error", "Canceled")
    assert view["result"]["output"] == "held"


async def test_an_after_hook_that_hangs_holds_the_end_no_longer_than_its_time(crib: Crib) -> None:
    holding = Holding()
    await open_with(crib, holding.hook(timeout=0.05))
    live = crib.submit("wait")
    await crib.started("wait")

    await crib.cancel(live)

    assert crib.end(live.call.id) == ("error", "Canceled")
    assert crib.hooked(live.call.id) == [
        said("failed", AFTER, name="holding", message="it did not answer within 0.05 s")
    ]


async def test_a_call_canceled_before_it_ran_was_not_executed(crib: Crib, toys: Toys) -> None:
    first, seen = ToyHook("h", points=frozenset({BEFORE})), Recorder()
    first.go.clear()
    await open_with(crib, first.hook, hook(AFTER, seen))
    live = crib.submit("note", {"text": "a"})
    await until(first.met.is_set)

    await crib.cancel(live)

    error = {"code": "Canceled", "message": "The call was canceled."}
    assert outcome(seen.asked[0]) == {"executed": False, "success": False, "output": None, "error": error}


async def test_a_pending_call_that_waits_for_the_next_start_meets_no_after_hook(crib: Crib, toys: Toys) -> None:
    first, seen = ToyHook("h", points=frozenset({BEFORE})), Recorder()
    first.go.clear()
    await open_with(crib, first.hook, hook(AFTER, seen))
    live = crib.submit("note", {"text": "a"})
    await until(first.met.is_set)

    await crib.close()
    assert (crib.row(live.call.id)["status"], seen.asked) == ("pending", [])
    first.go.set()
    await crib.open()
    await until(lambda: len(crib.services.dispatcher.live_calls) == 0)

    assert crib.end(live.call.id) == ("completed", None)
    assert [about["attempt"] for about in seen.asked] == [2]


async def test_a_stop_of_the_service_while_an_after_hook_looks_at_a_failure_lets_it_end(crib: Crib) -> None:
    holding = Holding()
    await open_with(crib, holding.hook())
    live = crib.submit("note", {"words": 3})
    await until(holding.met.is_set)

    async with asyncio.timeout(HANG):
        await crib.close()

    assert crib.end(live.call.id) == ("error", "InvalidArgs")


async def test_a_running_call_that_the_service_stops_is_heard_of(crib: Crib) -> None:
    seen = Recorder()
    await open_with(crib, hook(AFTER, seen))
    live = crib.submit("wait", {"say": "so far"})
    await crib.started("wait")

    await crib.close()

    assert crib.end(live.call.id) == ("error", "Interrupted")
    assert [(about["error"]["code"], about["executed"]) for about in seen.asked] == [("Interrupted", True)]


async def test_calls_of_tools_meet_hooks_like_any(crib: Crib) -> None:
    seen = Recorder()
    await open_with(crib, hook(BEFORE, {"deny": "Not from a tool."}, tools=("echo",)), hook(AFTER, seen))

    view = await crib.run("relay", {"tool": "echo"})

    assert view["error"] == {"code": "HookDenied", "message": "Not from a tool.", "retryable": False}
    assert [about["tool"] for about in seen.asked] == ["echo", "relay"]


# The other points, asked by themselves.


class Alone:
    """Hooks without a house."""

    def __init__(self, *hooks: Hook) -> None:
        self.told: list[dict[str, Any]] = []
        self.hooks = Hooks(hooks, SystemClock())
        self.tool: Tool = Toys().tools[0]

    def tell(self, data: dict[str, Any]) -> None:
        assert data.pop("duration_ms") >= 0
        self.told.append(data)

    async def asked(self) -> tuple[Action, str | None, str] | None:
        needs = [Need("read", "a"), Need("edit", "b")]
        return await self.hooks.decide(CALL, self.tool, SESSION, {"text": "x"}, needs, self.tell)

    async def environment(self, env: dict[str, str]) -> dict[str, str]:
        return await self.hooks.environment(CALL, self.tool, SESSION, "/w", env, self.tell)


async def test_the_first_hook_that_decides_answers_in_a_persons_place() -> None:
    silent = Recorder()
    alone = Alone(
        hook(ASK, silent, name="silent"),
        hook(ASK, {"decision": "allow", "message": "Known."}, name="yes"),
        hook(ASK, never, name="later"),
    )

    assert await alone.asked() == (Action.ALLOW, "Known.", "yes")
    assert alone.told == [said("ok", ASK, name="silent"), said("allow", ASK, name="yes", message="Known.")]
    assert silent.asked == [
        {
            "call": "call_1",
            "tool": "echo",
            "kind": "builtin",
            "effect": "read",
            "session": "s",
            "agent": "build",
            "attempt": 1,
            "arguments": {"text": "x"},
            "needs": [{"permission": "read", "pattern": "a"}, {"permission": "edit", "pattern": "b"}],
        }
    ]


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        (None, None),
        ({"decision": "allow"}, (Action.ALLOW, None, "h")),
        ({"decision": "deny", "message": "No."}, (Action.DENY, "No.", "h")),
        ({"decision": "deny"}, (Action.DENY, "The hook h denied it.", "h")),
        ({"deny": "Never."}, (Action.DENY, "Never.", "h")),
    ],
)
async def test_a_hook_may_allow_or_deny_or_leave_it_to_a_person(
    answer: Any, decision: tuple[Action, str | None, str] | None
) -> None:
    assert await Alone(hook(ASK, answer)).asked() == decision


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ValueError(), "it raised ValueError"),
        ({"decision": "perhaps"}, "its decision is neither `allow` nor `deny`"),
        ({"decision": True}, "its decision is neither `allow` nor `deny`"),
        ({"message": "Hm."}, "its answer has a message and no decision"),
        ({"decision": "allow", "message": 3}, "its `message` is not text"),
    ],
)
async def test_a_hook_that_fails_to_decide_has_denied_unless_it_may_be_passed(answer: Any, why: str) -> None:
    strict = Alone(hook(ASK, answer))
    polite = Alone(hook(ASK, answer, on_failure="continue"))

    assert await strict.asked() == (Action.DENY, f"The hook h failed ({why}), and it is required.", "h")
    assert await polite.asked() is None
    assert strict.told == polite.told == [said("failed", ASK, message=why)]


async def test_hooks_add_to_the_environment_in_order() -> None:
    first = Recorder({"env": {"A": "1", "B": "1"}})
    alone = Alone(hook(ENV, first, name="one"), hook(ENV, {"env": {"B": "2"}}, name="two"), hook(ENV, name="three"))
    given = {"PATH": "/bin", "A": "0"}

    assert await alone.environment(given) == {"PATH": "/bin", "A": "1", "B": "2"}
    assert given == {"PATH": "/bin", "A": "0"}
    assert first.asked == [{"call": "call_1", "tool": "echo", "session": "s", "agent": "build", "cwd": "/w"}]
    assert [data["verdict"] for data in alone.told] == ["changed", "changed", "ok"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"env": {"A": 1}}, "the variable `A` is not text"),
        ({"env": {"A=B": "1"}}, "`A=B` cannot be a variable"),
        ({"env": {"": "1"}}, "`` cannot be a variable"),
        ({"env": {"A": "a\0b"}}, "`A` cannot be a variable"),
        ({"env": ["A"]}, "its `env` is not an object"),
    ],
)
async def test_what_is_no_environment_is_a_failure(answer: Any, why: str) -> None:
    with pytest.raises(HookDenied) as denied:
        await Alone(hook(ENV, answer)).environment({})
    assert denied.value.message == f"The hook h failed ({why}), and it is required."
    assert await Alone(hook(ENV, answer, on_failure="continue")).environment({"A": "0"}) == {"A": "0"}


async def test_a_hook_may_refuse_to_give_an_environment() -> None:
    with pytest.raises(HookDenied, match=r"^No shell here\.$"):
        await Alone(hook(ENV, {"deny": "No shell here."})).environment({})


async def test_a_definition_changes_in_words_and_parameters_only() -> None:
    seen = Recorder(lambda about: {"description": about["description"] + "!"})
    alone = Alone(hook(DEFINITION, seen, tools=("echo",)), hook(DEFINITION, {"parameters": {"type": "object"}}))
    view = alone.tool.view()

    changed = await alone.hooks.definition(view)

    assert changed == view | {"description": "The toy echo.!", "parameters": {"type": "object"}}
    assert view == alone.tool.view()
    assert seen.asked == [{"name": "echo", "description": "The toy echo.", "parameters": view["parameters"]}]


@pytest.mark.parametrize(
    "answer",
    [ValueError(), {"name": "other"}, {"description": ""}, {"description": 3}, {"parameters": []}, {"deny": "x"}],
)
@pytest.mark.parametrize("on_failure", [None, "block"])
async def test_a_hook_that_fails_on_a_definition_changes_nothing(answer: Any, on_failure: OnFailure | None) -> None:
    alone = Alone(hook(DEFINITION, answer, on_failure=on_failure))
    view = alone.tool.view()

    assert await alone.hooks.definition(view) == view


async def test_a_definition_no_hook_is_about_is_the_same_object() -> None:
    alone = Alone(hook(DEFINITION, never, tools=("note",)))
    view = alone.tool.view()

    assert await alone.hooks.definition(view) is view


ASKING: dict[str, Callable[[Alone], Any]] = {
    "before": lambda alone: alone.hooks.before(CALL, alone.tool, SESSION, {"text": "x"}, alone.tell),
    "asked": lambda alone: alone.asked(),
    "environment": lambda alone: alone.environment({}),
    "definition": lambda alone: alone.hooks.definition(alone.tool.view()),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING.keys())
async def test_a_cancel_passes_through(ask: Callable[[Alone], Any]) -> None:
    holding = Holding()
    alone = Alone(Hook(name="h", points=frozenset(Point), run=holding))
    asking = asyncio.ensure_future(ask(alone))
    await until(holding.met.is_set)

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert alone.told == []
