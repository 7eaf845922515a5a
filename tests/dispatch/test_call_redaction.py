"""Secrets on the line: the tool gets what was sent, the record what may be shown, a resumed call the former again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.core.events import encode
from app.core.redaction import MARK
from app.core.tools import Effect
from app.store import events
from app.store.events import EventFilter
from tests.support.services import Crib, until
from tests.support.toy_tools import ToyHook, Toys

SECRET = "hunter22/x"
KEY = "sk-proj-4f9Xq2LmT0b7Zk1RcV8sYw"


@pytest.fixture
async def safe(crib: Crib) -> Crib:
    """A house that knows one secret."""
    await open_anew(crib)
    return crib


async def open_anew(crib: Crib) -> None:
    await crib.open()
    crib.house.redactor.replace([SECRET])


def stored_bytes(data_dir: Path) -> Iterator[bytes]:
    yield from (path.read_bytes() for path in data_dir.glob("toolcrib.db*"))


def is_nowhere(crib: Crib, *texts: str) -> bool:
    return not any(text.encode() in data for data in stored_bytes(crib.data_dir) for text in texts)


async def told(crib: Crib, call: str) -> str:
    """Everything an event stream would show of a call."""
    page = await events.page(crib.services.engine, EventFilter(principal=None, call=call), 0, None, 500)
    return b"".join(encode(event.view(about)) for event, about in page).decode()


@pytest.mark.parametrize("secret", [SECRET, KEY])
async def test_the_tool_gets_the_secret_and_the_record_does_not(safe: Crib, toys: Toys, secret: str) -> None:
    view = await safe.run("note", {"text": f"use {secret}"}, metadata={"why": secret}, call_id=secret)

    assert toys.notes == [f"use {secret}"]
    assert view["arguments"] == {"text": f"use {MARK}"}
    assert (view["metadata"], view["call_id"]) == ({"why": MARK}, MARK)
    assert secret not in (await told(safe, view["id"])).replace(f'"output":"use {secret}"', "")
    assert safe.row(view["id"])["sealed"] is None


async def test_free_text_and_tool_names_are_covered_too(safe: Crib) -> None:
    view = await safe.run("shout", input=f"with {SECRET}")
    unknown = await safe.run(f"tool_{SECRET}", {})

    assert view["input"] == f"with {MARK}"
    assert unknown["tool"] == f"tool_{MARK}"
    assert unknown["error"]["code"] == "UnknownTool"
    assert SECRET not in json.dumps(unknown)


async def test_a_registered_value_goes_out_of_results_and_a_shape_stays(safe: Crib) -> None:
    view = await safe.run("echo", {"text": f"{SECRET} and {KEY}"})

    assert view["result"]["output"] == f"{MARK} and {KEY}"
    assert view["result"]["structured"] == {"text": f"{MARK} and {KEY}"}


async def test_shapes_go_out_of_results_when_the_operator_says_so(crib: Crib) -> None:
    crib.settings["redact_shapes_in_output"] = True
    await crib.open()

    view = await crib.run("echo", {"text": KEY})

    assert view["result"]["output"] == MARK


@pytest.mark.parametrize("arguments", [{"text": [SECRET, KEY], "wrong": 1}, {"txt": SECRET, "text": KEY}])
async def test_an_error_that_quotes_the_arguments_does_not_quote_the_secret(safe: Crib, arguments: Any) -> None:
    view = await safe.run("note", arguments)

    assert view["error"]["code"] == "InvalidArgs"
    assert SECRET not in json.dumps(view)
    assert KEY not in json.dumps(view)


async def test_a_secret_at_the_place_where_an_output_is_cut_does_not_show_its_half(safe: Crib) -> None:
    view = await safe.run("flood", {"text": "x" * 95 + SECRET})

    assert view["result"]["metadata"]["truncated"] is True
    assert "hunte" not in json.dumps(view)


async def test_output_in_pieces_is_redacted_in_the_store_and_in_what_is_told(safe: Crib) -> None:
    pieces = [f"first {SECRET[:4]}", SECRET[4:7], f"{SECRET[7:]} second\n", f"{SECRET} third"]
    view = await safe.run("say", {"texts": pieces})

    [row] = safe.rows("SELECT * FROM outputs WHERE call = ?", view["id"])
    assert row["data"].decode() == f"first {MARK} second\n{MARK} third"
    assert is_nowhere(safe, SECRET)


async def test_what_was_held_back_comes_with_the_end(safe: Crib) -> None:
    view = await safe.run("say", {"texts": ["ends with hunt"]})

    [row] = safe.rows("SELECT * FROM outputs WHERE call = ?", view["id"])
    assert row["data"] == b"ends with hunt"


async def test_output_of_a_call_that_is_stopped_is_redacted_too(safe: Crib) -> None:
    live = safe.submit("wait", {"say": f"so far {SECRET} and hunt"})
    await safe.started("wait")
    await safe.cancel(live)

    view = await safe.ended(live)
    assert view["result"]["output"] == f"so far {MARK} and hunt"


async def test_progress_and_plans_are_told_without_secrets(safe: Crib, toys: Toys) -> None:
    toys.look = lambda ctx: ctx.metadata(title=f"trying {SECRET}", metadata={"key": KEY})
    view = await safe.run("echo", {"text": "x"})

    said = await told(safe, view["id"])
    assert "call.progress" in said
    assert SECRET not in said
    assert KEY not in said
    assert f"trying {MARK}" in said


async def test_what_a_hook_puts_in_is_covered_as_well(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h", {"note"})
    hook.change = lambda payload: payload | {"text": f"{payload['text']} {SECRET}"}
    crib.hooks = [hook]
    await open_anew(crib)

    view = await crib.run("note", {"text": "plain"})

    assert toys.notes == [f"plain {SECRET}"]
    assert json.loads(crib.row(view["id"])["effective"]) == {"text": f"plain {MARK}"}
    assert crib.row(view["id"])["sealed"] is None


async def pending_at_the_gate(crib: Crib, text: str) -> str:
    """A call that waits, with its arguments on the disk."""
    first = crib.submit("wait", {"effect": Effect.WRITE})
    await crib.started("wait")
    second = crib.submit("note", {"text": text})
    await crib.at_the_gate(second)
    assert first.call.id < second.call.id
    return second.call.id


async def test_a_resumed_call_runs_with_what_was_really_sent(safe: Crib, toys: Toys) -> None:
    id = await pending_at_the_gate(safe, f"with {SECRET} and {KEY}")
    row = safe.row(id)
    assert json.loads(row["arguments"]) == {"text": f"with {MARK} and {MARK}"}
    assert row["sealed"] is not None
    assert is_nowhere(safe, SECRET, KEY)

    await safe.crash()
    await open_anew(safe)
    await until(lambda: not len(safe.services.dispatcher.live_calls))

    assert toys.notes == [f"with {SECRET} and {KEY}"]
    assert safe.end(id) == ("completed", None)
    assert safe.row(id)["sealed"] is None
    assert is_nowhere(safe, SECRET)


async def test_a_resumed_call_that_met_its_hook_goes_on_with_what_the_hook_made(crib: Crib, toys: Toys) -> None:
    hook = ToyHook("h", {"note"})
    hook.change = lambda payload: {"text": f"{payload['text']} and {SECRET}"}
    crib.hooks = [hook]
    await open_anew(crib)
    id = await pending_at_the_gate(crib, KEY)
    assert is_nowhere(crib, SECRET, KEY)

    await crib.crash()
    await open_anew(crib)
    await until(lambda: not len(crib.services.dispatcher.live_calls))

    assert toys.notes == [f"{KEY} and {SECRET}"]
    assert hook.attempts == [1]
    assert crib.end(id) == ("completed", None)


async def test_a_call_whose_seal_is_broken_ends_and_is_not_run(safe: Crib, toys: Toys) -> None:
    id = await pending_at_the_gate(safe, SECRET)
    await safe.crash()
    (safe.data_dir / "secrets.key").write_bytes(b"A" * 43 + b"=\n")

    await open_anew(safe)

    assert safe.end(id) == ("error", "Interrupted")
    assert "cannot be read" in safe.row(id)["error"]
    assert toys.notes == []


async def test_the_seal_is_kept_while_a_call_runs_and_erased_with_its_end(safe: Crib, toys: Toys) -> None:
    live = safe.submit("wait", {"name": "wait", "say": SECRET})
    await safe.started("wait")
    assert safe.row(live.call.id)["sealed"] is not None

    toys.go["wait"].set()
    await safe.ended(live)

    assert safe.row(live.call.id)["sealed"] is None


async def test_a_child_gets_the_secret_its_parent_was_given(safe: Crib, toys: Toys) -> None:
    view = await safe.run("relay", {"tool": "note", "arguments": {"text": SECRET}, "effect": "write"})

    assert toys.notes == [SECRET]
    assert view["result"]["output"] == MARK
    assert is_nowhere(safe, SECRET)
