"""Runs without HTTP: a message is planned, submitted once, and its results are rendered in its dialect."""

import json
from typing import Any

import pytest

from app.core.principals import Key, Scope
from app.core.util.json_codec import dumps
from app.runs import plan
from app.runs.plan import RunError, RunPlan
from app.runs.render import ResponseFormat, render_run
from app.runs.submit import wait_for_calls
from tests.support.services import ADMIN, Crib
from tests.support.toy_tools import Toys

ADMIN_KEY = Key("key_test", "admin", "", frozenset(Scope), "", 0)


def message(*texts: str) -> dict[str, Any]:
    calls = [
        {"id": f"call_{text}", "type": "function", "function": {"name": "note", "arguments": f'{{"text": "{text}"}}'}}
        for text in texts
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


async def run(crib: Crib, sent: dict[str, Any], idempotency_key: str | None = None) -> dict[str, Any]:
    services = crib.services
    dialect = plan.find_dialect("openai-chat", sent)
    tools = plan.known_tools(services.dispatcher, services.listing, ADMIN, ADMIN_KEY, dialect)
    parsed = plan.read_message(dialect, sent, tools)
    id, created_at = services.ids.new("run")
    calls = plan.plan_calls(dialect, parsed, tools, {})
    started = await services.runs.submit_run(
        RunPlan(id=id, created_at=created_at, dialect=dialect, message=parsed, calls=calls),
        ADMIN,
        ADMIN_KEY,
        idempotency_key=idempotency_key,
        origin=None,
    )
    await wait_for_calls(started.lives, 20)
    body = await render_run(services.engine, started, ResponseFormat(dialect, "http://localhost"))
    rendered: dict[str, Any] = json.loads(dumps(body))
    return rendered


async def test_a_message_is_run_and_its_results_are_rendered(crib: Crib, toys: Toys) -> None:
    await crib.open()

    body = await run(crib, message("a", "b"))

    assert [(reply["role"], reply["tool_call_id"]) for reply in body["append"]] == [
        ("tool", "call_a"),
        ("tool", "call_b"),
    ]
    assert (sorted(toys.notes), body["pending"], body["blocked"]) == (["a", "b"], [], False)


@pytest.mark.parametrize("idempotency_key", [None, "key"])
async def test_the_same_message_again_is_the_same_run(crib: Crib, toys: Toys, idempotency_key: str | None) -> None:
    await crib.open()

    first, again = [await run(crib, message("a"), idempotency_key) for _ in range(2)]

    assert (first, toys.notes) == (again, ["a"])


def test_a_message_of_no_known_dialect_is_refused() -> None:
    with pytest.raises(RunError) as refused:
        plan.find_dialect("auto", {"nothing": "known"})

    assert refused.value.code == "UnknownDialect"
