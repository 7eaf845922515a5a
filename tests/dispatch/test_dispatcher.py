"""The line: what is committed when, what a tool is lent, and what becomes of what it gives back."""

import asyncio
import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.config import RuleSetting
from app.core.calls import CallRequest, Status
from app.core.rules import Action
from app.core.sessions import Session
from app.core.tools import Context
from app.core.util.json_codec import dumps
from app.dispatch.gate import BatchOrder
from app.store import calls
from app.store.calls import Claim
from tests.support.services import ADMIN, HANG, Crib, viewed
from tests.support.toy_tools import ToyHook, Toys


async def test_a_call_that_can_run_now_is_pending_and_running_in_one_commit(crib: Crib) -> None:
    await crib.open()

    view = await crib.run("echo", {"text": "hi"}, call_id="c1", message_id="m1", metadata={"mine": 1})

    pending, running, completed = crib.events(view["id"])
    assert [pending["type"], running["type"], completed["type"]] == ["call.pending", "call.running", "call.completed"]
    assert (running["seq"], completed["seq"]) == (pending["seq"] + 1, pending["seq"] + 2)
    assert view["started_at"] == view["created_at"]
    assert view == view | {
        "tool": "echo",
        "session": "default",
        "principal": "admin",
        "status": "completed",
        "waiting": None,
        "call_id": "c1",
        "message_id": "m1",
        "parent": None,
        "arguments": {"text": "hi"},
        "input": None,
        "result": {
            "title": "echo",
            "output": "hi",
            "metadata": {"truncated": False, "original_size": 2, "truncated_size": 2},
            "attachments": [],
            "structured": {"text": "hi"},
        },
        "error": None,
        "metadata": {"mine": 1},
        "sandbox": None,
    }
    assert crib.row(view["id"])["effective"] is None


async def test_running_is_committed_before_the_tool_starts(crib: Crib, toys: Toys) -> None:
    await crib.open()
    seen: list[tuple[str, int]] = []

    def look(ctx: Context) -> None:
        row = crib.row(ctx.id)
        seen.append((row["status"], row["started_at"]))

    toys.look = look
    view = await crib.run("echo", {"text": "hi"})

    assert seen == [("running", crib.row(view["id"])["created_at"])]


async def test_no_tool_starts_while_the_commit_does_not_come_through(crib: Crib, toys: Toys) -> None:
    await crib.open()

    with crib.stalled_writer():
        live = crib.submit("note", {"text": "early"})
        for _ in range(50):
            await asyncio.sleep(0)
        assert toys.notes == []
        assert crib.rows("SELECT * FROM calls") == []
        assert not live.is_open
    await crib.ended(live)

    assert toys.notes == ["early"]


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("ecko", {}, "UnknownTool"),
        ("note", {"text": 1}, "InvalidArgs"),
        ("note", {"words": "x"}, "InvalidArgs"),
        ("need", {"path": "secret.txt"}, "PermissionDenied"),
    ],
)
async def test_a_certain_failure_is_pending_and_error_in_one_commit_and_never_starts(
    crib: Crib, tool: str, arguments: dict[str, Any], code: str
) -> None:
    crib.settings["rules"] = [
        RuleSetting(action=Action.ALLOW),
        RuleSetting(permission="read", pattern="secret*", action=Action.DENY),
    ]
    await crib.open()

    with crib.stalled_writer():
        live = crib.submit(tool, arguments)
    view = await crib.ended(live)

    pending, error = crib.events(view["id"])
    assert (pending["type"], error["type"], error["seq"]) == ("call.pending", "call.error", pending["seq"] + 1)
    assert (view["status"], view["error"]["code"]) == ("error", code)
    assert (view["started_at"], view["duration_ms"], view["result"]) == (None, None, None)
    assert view["ended_at"] >= view["created_at"]


async def test_pending_is_committed_alone_before_a_hook_runs(crib: Crib) -> None:
    seen = []
    hook = ToyHook("h")
    hook.look = lambda about: seen.append((crib.row(about["call"])["status"], crib.story(about["call"])))
    crib.hooks = [hook]
    await crib.open()

    view = await crib.run("echo", {"text": "hi"})

    assert seen == [("pending", ["call.pending"])]
    assert crib.story(view["id"]) == ["call.pending", "call.running", "call.completed"]
    assert view["started_at"] > view["created_at"]


async def test_a_hook_that_concerns_other_tools_costs_nothing(crib: Crib) -> None:
    hook = ToyHook("h", {"note"})
    crib.hooks = [hook]
    await crib.open()

    view = await crib.run("echo", {"text": "hi"})

    assert view["started_at"] == view["created_at"]
    assert hook.log == []


async def test_a_hook_may_change_what_goes_in_and_that_is_kept_beside_what_was_sent(crib: Crib) -> None:
    hook = ToyHook("h")
    hook.change = lambda payload: {"text": payload["text"] + "!"}
    crib.hooks = [hook]
    await crib.open()

    view = await crib.run("echo", {"text": "hi"})

    assert view["result"]["output"] == "hi!"
    assert view["arguments"] == {"text": "hi"}
    assert json.loads(crib.row(view["id"])["effective"]) == {"text": "hi!"}


async def test_what_a_hook_makes_of_the_arguments_is_checked_like_any(crib: Crib) -> None:
    hook = ToyHook("h")
    hook.change = lambda payload: {"words": 3}
    crib.hooks = [hook]
    await crib.open()

    view = await crib.run("note", {"text": "hi"})

    assert view["error"]["code"] == "InvalidArgs"
    assert crib.row(view["id"])["effective"] is None
    assert crib.story(view["id"]) == ["call.pending", "call.error"]


async def test_hooks_are_met_in_order_and_each_gets_what_the_one_before_left(crib: Crib) -> None:
    log: list[str] = []
    one, two = ToyHook("one", log=log), ToyHook("two", log=log)
    one.change = lambda payload: {"text": payload["text"] + "1"}
    two.change = lambda payload: {"text": payload["text"] + "2"}
    one.change_output = lambda output: output + "-1"
    two.change_output = lambda output: output + "-2"
    crib.hooks = [one, two]
    await crib.open()

    view = await crib.run("note", {"text": "a"})

    assert log == [
        "one before {'text': 'a'}",
        "two before {'text': 'a1'}",
        "one after a12",
        "two after a12-1",
    ]
    assert view["result"] == {
        "title": "",
        "output": "a12-1-2",
        "metadata": {"truncated": False, "original_size": 7, "truncated_size": 7},
        "attachments": [],
        "structured": None,
    }


async def test_a_hook_that_says_no_ends_the_call(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h")
    hook.refusal = "Not on a Friday."
    crib.hooks = [hook]
    await crib.open()

    view = await crib.run("note", {"text": "a"})

    assert view["error"] == {"code": "HookDenied", "message": "Not on a Friday.", "retryable": False}
    assert crib.story(view["id"]) == ["call.pending", "call.error"]
    assert toys.notes == []


async def test_a_hook_that_breaks_is_a_no(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h")
    hook.change = lambda payload: payload["nothing of that name"]
    crib.hooks = [hook]
    await crib.open()

    view = await crib.run("note", {"text": "a"})

    message = "The hook h failed (it raised KeyError), and it is required."
    assert view["error"] == {"code": "HookDenied", "message": message, "retryable": False}
    assert toys.notes == []


async def test_a_free_form_tool_takes_its_input_through_hooks_and_a_store(crib: Crib) -> None:
    hook = ToyHook("h")
    hook.change = lambda payload: payload + "?"
    crib.hooks = [hook]
    await crib.open()

    view = await crib.run("shout", None, input="hi")

    assert (view["result"]["output"], view["input"], view["arguments"]) == ("HI?", "hi", None)
    assert crib.row(view["id"])["effective"] == '"hi?"'


@pytest.mark.parametrize("name", ["input", "patch", "patchText"])
async def test_a_free_form_tool_takes_its_input_as_the_only_argument_too(crib: Crib, name: str) -> None:
    await crib.open()

    view = await crib.run("shout", {name: "hi"})

    assert (view["result"]["output"], view["input"], view["arguments"]) == ("HI", None, {name: "hi"})


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {"tool": "echo", "input": "text"},
            "echo takes `arguments`, not `input`; send what it needs in `arguments`.",
        ),
        (
            {"tool": "shout", "arguments": {"text": "x"}},
            "shout takes `input`, not `arguments`; send what it needs in `input`.",
        ),
        (
            {"tool": "shout", "arguments": {}, "input": "x"},
            "shout takes `input`, not `arguments`; send what it needs in `input`.",
        ),
        (
            {"tool": "shout", "arguments": {"input": "x", "patch": "y"}},
            "shout takes `input`, not `arguments`; send what it needs in `input`.",
        ),
        ({"tool": "shout"}, "shout takes its text in `input`, which is missing or no text."),
        ({"tool": "shout", "arguments": {"patch": 1}}, "shout takes its text in `input`, which is missing or no text."),
    ],
)
async def test_the_wrong_kind_of_payload_is_said(crib: Crib, request_: dict[str, Any], message: str) -> None:
    await crib.open()

    view = await crib.ended(crib.services.dispatcher.submit(CallRequest(**request_), ADMIN))

    assert view["error"] == {"code": "InvalidArgs", "message": message, "retryable": False}


async def test_missing_arguments_are_empty_arguments(crib: Crib) -> None:
    await crib.open()

    view = await crib.run("echo")

    assert (view["status"], view["arguments"]) == ("completed", None)


async def test_a_bug_of_a_tool_is_logged_and_told_without_details(crib: Crib, caplog: pytest.LogCaptureFixture) -> None:
    await crib.open()

    view = await crib.run("bug", {"text": "42"})

    assert view["error"] == {
        "code": "Internal",
        "message": "The service failed to run this call; its log has the details.",
        "retryable": False,
    }
    assert view["result"] is None
    assert crib.end(view["id"]) == ("error", "Internal")
    record = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert view["id"] in record.getMessage()
    assert "secret detail 42" in str(record.exc_info)


async def test_a_bug_before_a_tool_runs_is_an_end_too(crib: Crib, toys: Toys) -> None:
    await crib.open()

    view = await crib.run("bad_needs", {"text": "x"})

    assert crib.end(view["id"]) == ("error", "Internal")
    assert crib.story(view["id"]) == ["call.pending", "call.error"]
    assert toys.notes == []


async def test_what_cannot_be_written_as_json_is_a_bug_of_the_tool(crib: Crib) -> None:
    await crib.open()

    view = await crib.run("odd", {"text": "object"})

    assert crib.end(view["id"]) == ("error", "Internal")
    assert view["result"] is None


async def test_progress_that_cannot_be_written_as_json_is_a_bug_of_the_tool(crib: Crib) -> None:
    await crib.open()

    view = await crib.run("odd", {"text": "metadata"})

    assert crib.end(view["id"]) == ("error", "Internal")


async def test_a_tool_that_wants_the_process_to_exit_ends_its_call_only(crib: Crib) -> None:
    await crib.open()

    view = await crib.run("odd", {"text": "exit"})

    assert crib.end(view["id"]) == ("error", "Internal")


async def test_lone_surrogates_in_what_a_tool_gives_back_are_replaced(crib: Crib) -> None:
    await crib.open()

    shown = await crib.run("odd", {"text": "surrogate"})
    failed = await crib.run("odd", {"text": "error"})

    assert shown["status"] == "completed"
    assert "\ufffd" in shown["result"]["output"]
    assert "\ufffd" in failed["error"]["message"]


@pytest.mark.parametrize(
    ("tool", "request_"), [("wait_briefly", {}), ("wait", {"timeout": 0.05})], ids=["of the tool", "of the call"]
)
async def test_a_tool_is_stopped_after_its_time_and_its_output_is_kept(
    crib: Crib, tool: str, request_: dict[str, Any]
) -> None:
    await crib.open()

    view = await crib.run(tool, {"say": "half of it"}, **request_)

    assert view["error"] == {
        "code": "Timeout",
        "message": f"{tool} was stopped after 0.05 s; its output so far is stored.",
        "retryable": True,
    }
    assert view["result"] == {
        "title": "",
        "output": "half of it",
        "metadata": {"truncated": False, "original_size": 10, "truncated_size": 10},
        "attachments": [],
        "structured": None,
    }
    assert view["duration_ms"] >= 50
    assert crib.end(view["id"]) == ("error", "Timeout")


async def test_a_call_that_fails_with_a_result_has_both(crib: Crib) -> None:
    await crib.open()

    both = await crib.run("fail", {"code": "ExitCode:3", "output": "printed"})
    bare = await crib.run("fail", {"code": "ExitCode:4", "output": None})

    assert both["error"] == {"code": "ExitCode:3", "message": "It went wrong.", "retryable": False}
    assert both["result"]["output"] == "printed"
    assert (bare["error"]["code"], bare["result"]) == ("ExitCode:4", None)


async def test_a_flood_is_cut_for_the_model_and_kept_whole(crib: Crib) -> None:
    await crib.open()

    view = await crib.run("flood", {"text": "0123456789", "times": 60_000})

    kept = crib.rows("SELECT start, stop, length(data) AS size FROM outputs WHERE call = ?", view["id"])
    assert view["result"]["output"] == "0123456789" * 10 + "\n[output truncated, 599900 characters omitted]"
    assert view["result"]["metadata"] == {"truncated": True, "original_size": 600_000, "truncated_size": 146}
    assert kept == [
        {"start": 0, "stop": 262_144, "size": 262_144},
        {"start": 262_144, "stop": 524_288, "size": 262_144},
        {"start": 524_288, "stop": 600_000, "size": 75_712},
    ]


async def test_a_flood_beyond_the_limit_is_counted_and_characters_stay_whole(crib: Crib) -> None:
    crib.settings["output_limit"] = 300_002
    await crib.open()

    view = await crib.run("flood", {"text": "aé€😀", "times": 60_000})

    rows = crib.rows("SELECT start, stop, data FROM outputs WHERE call = ? ORDER BY start", view["id"])
    whole = "aé€😀" * 60_000
    for row in rows:
        row["data"].decode()
    joined = b"".join(row["data"] for row in rows)
    assert whole.encode().startswith(joined)
    assert len(joined) == 300_001
    assert crib.row(view["id"])["output_dropped"] == 600_000 - 300_001


async def test_the_output_of_a_stopped_flood_is_cut_where_the_tool_wants_it(crib: Crib, toys: Toys) -> None:
    await crib.open()
    live = crib.submit("say", {"texts": ["a" * 9000, "the end"], "wait": True})
    await crib.started("say")

    await crib.cancel(live)

    result = viewed(live)["result"]
    assert result["output"] == "[output truncated, 8007 characters omitted]\n" + "a" * 993 + "the end"
    assert result["metadata"] == {"truncated": True, "original_size": 9007, "truncated_size": 1044}


async def test_a_child_is_a_call_of_its_own_inside_its_parents_pass(crib: Crib, toys: Toys) -> None:
    await crib.open()

    arguments = {"tool": "relay", "arguments": {"tool": "note", "arguments": {"text": "deep"}, "effect": "write"}}
    parent = await crib.run("relay", arguments | {"effect": "write"}, message_id="m1")

    assert (parent["status"], parent["result"]["output"]) == ("completed", "deep")
    rows = crib.rows("SELECT id, parent, message_id, status FROM calls ORDER BY id")
    assert rows == [
        {"id": parent["id"], "parent": None, "message_id": "m1", "status": "completed"},
        {"id": rows[1]["id"], "parent": parent["id"], "message_id": "m1", "status": "completed"},
        {"id": rows[2]["id"], "parent": rows[1]["id"], "message_id": "m1", "status": "completed"},
    ]
    assert toys.notes == ["deep"]


@pytest.mark.parametrize("top", ["relay", "relay_apart"])
@pytest.mark.parametrize("middle", ["relay", "relay_apart"])
async def test_no_chain_of_tools_waits_for_itself(crib: Crib, toys: Toys, top: str, middle: str) -> None:
    crib.settings["queue_timeout"] = 0.5
    await crib.open()
    for outer in ("read", "write"):
        for inner in ("read", "write"):
            last = {"tool": "note", "arguments": {"text": "x"}, "effect": outer}
            second = {"tool": top, "arguments": last, "effect": inner}
            view = await crib.run(top, {"tool": middle, "arguments": second, "effect": outer})
            assert view["status"] == "completed", view["error"]

    assert toys.notes == ["x"] * 4


async def test_a_reading_parent_may_run_writing_children_at_once(crib: Crib, toys: Toys) -> None:
    await crib.open()

    view = await crib.run("relay", {"tool": "note", "arguments": {"text": "n"}, "times": 5})

    assert (view["result"]["output"], toys.notes) == ("n n n n n", ["n"] * 5)


async def test_a_childs_error_reaches_its_parent(crib: Crib) -> None:
    await crib.open()

    parent = await crib.run("relay", {"tool": "fail", "arguments": {"code": "ENOENT", "output": "seen"}})

    assert parent["error"] == {"code": "ENOENT", "message": "It went wrong.", "retryable": False}
    assert parent["result"]["output"] == "seen"


async def test_tools_that_call_each_other_end_at_some_depth(crib: Crib) -> None:
    await crib.open()
    arguments: dict[str, Any] = {"tool": "echo", "arguments": {"text": "bottom"}}
    for _ in range(9):
        arguments = {"tool": "relay", "arguments": arguments}

    view = await crib.run("relay", arguments)

    assert view["error"]["code"] == "ToolUnavailable"
    assert view["error"]["message"] == "Tools called each other 8 levels deep, which is the limit."
    assert len(crib.rows("SELECT id FROM calls")) == 8


async def test_a_call_that_waits_too_long_for_its_turn_is_overloaded(crib: Crib, toys: Toys) -> None:
    crib.settings["queue_timeout"] = 0.05
    await crib.open()
    first = crib.submit("wait", {"effect": "write"})
    await crib.started("wait")

    view = await crib.run("note", {"text": "late"})

    assert view["error"] == {
        "code": "Overloaded",
        "message": "Other calls kept this workspace busy for 0.05 s; try again later.",
        "retryable": True,
    }
    assert crib.story(view["id"]) == ["call.pending", "call.waiting", "call.error"]
    toys.go["wait"].set()
    await crib.ended(first)
    assert toys.notes == []


async def test_a_call_at_the_gate_says_what_it_waits_for(crib: Crib, toys: Toys) -> None:
    await crib.open()
    first = crib.submit("wait", {"effect": "write"})
    await crib.started("wait")
    second = crib.submit("echo", {"text": "x"})
    await crib.at_the_gate(second)

    assert crib.row(second.call.id)["status"] == "pending"
    toys.go["wait"].set()
    view = await crib.ended(second)

    assert crib.story(view["id"]) == ["call.pending", "call.waiting", "call.running", "call.completed"]
    assert crib.events(view["id"])[1]["data"] == '{"waiting":"gate"}'
    assert crib.row(first.call.id)["status"] == "completed"


async def test_a_batch_keeps_its_writers_in_order(crib: Crib, toys: Toys) -> None:
    await crib.open()
    order = BatchOrder()
    asked = [
        ("wait", {"name": "r1"}),
        ("wait", {"name": "r2"}),
        ("wait", {"name": "w", "effect": "write"}),
        ("wait_apart", {"name": "apart", "effect": "write"}),
        ("ecko", {}),
        ("wait", {"name": "r3"}),
    ]
    lives = [
        crib.services.dispatcher.submit(CallRequest(tool=tool, arguments=arguments), ADMIN, batch_slot=order.next())
        for tool, arguments in asked
    ]
    for name in ("r1", "r2", "apart"):
        await crib.started(name)
    assert toys.log == ["r1 in", "r2 in", "apart in"]

    toys.go["r1"].set()
    await crib.ended(lives[0])
    assert not toys.started["w"].is_set()
    await crib.cancel(lives[1])
    await crib.started("w")
    assert not toys.started["r3"].is_set()
    toys.go["w"].set()
    await crib.started("r3")
    for name in ("apart", "r3"):
        toys.go[name].set()

    ends = [(await crib.ended(live))["status"] for live in lives]
    assert ends == ["completed", "error", "completed", "completed", "error", "completed"]


async def test_progress_is_told_and_merged_while_one_telling_is_under_way(crib: Crib) -> None:
    await crib.open()

    view = await crib.run("tell", {"steps": 50})

    told = [json.loads(event["data"]) for event in crib.events(view["id"]) if event["type"] == "call.progress"]
    assert told == [
        {"title": "step 0", "metadata": {"step": 0, "was_0": True}},
        {"title": "step 49", "metadata": {"step": 49, "was_1": True, "was_2": True, "was_0": True}},
    ]
    assert crib.story(view["id"])[-1] == "call.completed"


async def test_a_tool_is_lent_what_its_context_promises(crib: Crib, toys: Toys, data_dir: Path) -> None:
    await crib.open()
    session = Session("admin", "default", agent="builder")

    live = crib.services.dispatcher.submit(
        CallRequest(tool="echo", arguments={"text": "x"}, call_id="c", message_id="m"), session
    )
    await crib.ended(live)

    (ctx,) = toys.contexts
    assert (ctx.id, ctx.session_id, ctx.call_id, ctx.message_id, ctx.agent) == (
        live.call.id,
        "default",
        "c",
        "m",
        "builder",
    )
    assert ctx.workspace.root == str(data_dir / "workspace")
    assert not ctx.abort.is_set()


async def test_a_repeated_key_gives_back_the_pass_it_took_looking_ahead(crib: Crib, toys: Toys) -> None:
    crib.settings["queue_timeout"] = 0.5
    await crib.open()
    request, claim = CallRequest(tool="note", arguments={"text": "once"}), Claim("k", "d")
    first = crib.services.dispatcher.submit(request, ADMIN, claim=claim)
    await crib.ended(first)

    again = crib.services.dispatcher.submit(request, ADMIN, claim=claim)
    async with asyncio.timeout(HANG):
        await again.wait()
    after = await crib.run("note", {"text": "after"})

    assert again.record.claimed is not None
    assert again.record.claimed.call == first.call.id
    assert after["status"] == "completed"
    assert toys.notes == ["once", "after"]
    assert [row["id"] for row in crib.rows("SELECT id FROM calls")] == [first.call.id, after["id"]]


async def test_nothing_is_accepted_while_the_store_refuses(crib: Crib, toys: Toys) -> None:
    await crib.open()
    with closing(sqlite3.connect(crib.data_dir / "toolcrib.db")) as db, db:
        db.execute("CREATE TRIGGER no_calls BEFORE INSERT ON calls BEGIN SELECT RAISE(ABORT, 'full'); END")

    live = crib.submit("note", {"text": "x"})
    async with asyncio.timeout(HANG):
        await live.wait()
    assert live.record.failure is not None
    assert toys.notes == []

    crib.change("DROP TRIGGER no_calls")
    assert (await crib.run("note", {"text": "y"}))["status"] == "completed"
    assert toys.notes == ["y"]


async def test_a_call_in_memory_is_the_call_in_the_store(crib: Crib) -> None:
    crib.hooks = [ToyHook("h", {"say"})]
    await crib.open()
    asked: list[tuple[str, dict[str, Any]]] = [("echo", {"text": 2**80}), ("say", {"texts": ["a"]}), ("none", {})]
    for tool, arguments in asked:
        live = crib.submit(tool, arguments)
        await crib.ended(live)
        stored = await calls.get(crib.services.engine, live.call.id, None)

        assert stored == live.call
        assert stored.status in (Status.COMPLETED, Status.ERROR)
        assert dumps(stored.view()) == dumps(live.call.view())
