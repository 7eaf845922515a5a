from pathlib import Path
from typing import Any

import pytest

from app.core.errors import InvalidArgs
from app.core.results import Result
from app.core.tools import Context, Effect
from app.dispatch.tools.registry import Registry
from app.tools import BUILTINS
from app.tools.update_plan import tool
from tests.support.services import RunningService
from tests.support.toy_tools import Toys


def step(status: str) -> dict[str, str]:
    return {"step": f"a {status} step", "status": status}


async def test_the_plan_is_kept_and_told(ctx: Context, plans: list[dict[str, Any]]) -> None:
    steps = [step("completed"), step("completed"), step("in_progress"), step("pending"), step("pending")]
    plan = {"explanation": "found a bug", "plan": steps}

    result = await tool.run(tool.parse(plan), ctx)

    assert result == Result(output="Plan updated", title="2 of 5 done", metadata=plan)
    assert plans == [plan]


async def test_a_plan_may_be_empty_and_needs_no_explanation(ctx: Context, plans: list[dict[str, Any]]) -> None:
    result = await tool.run(tool.parse({"plan": []}), ctx)

    assert result.title == "0 of 0 done"
    assert plans == [{"explanation": None, "plan": []}]


def test_two_steps_at_once_are_refused_in_so_many_words() -> None:
    with pytest.raises(InvalidArgs, match="`plan`: at most one step may be in_progress at a time"):
        tool.parse({"plan": [step("in_progress"), step("in_progress")]})


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "plan"),
        ({"plan": [{"step": "x"}]}, "plan.0.status"),
        ({"plan": [step("done")]}, "plan.0.status"),
        ({"plan": [{"step": "x", "status": "pending", "by": "me"}]}, "plan.0.by"),
    ],
)
def test_a_mistake_is_named_by_its_field(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgs) as caught:
        tool.parse(arguments)

    assert caught.value.details == {"fields": [field]}


def test_planning_writes_waits_for_nobody_and_needs_no_permission(ctx: Context) -> None:
    args = tool.parse({"plan": [step("pending")]})

    assert (tool.effect, tool.lane, tool.needs(args, ctx.workspace)) == (Effect.WRITE, "none", [])


def todowrite(raw: Any) -> Any:
    found = Registry([tool]).get("todowrite", None)
    assert found is not None
    return found.parse(raw)


def test_todos_are_steps_and_the_cancelled_ones_are_gone() -> None:
    todos = [
        {"content": "look", "status": "completed", "priority": "high", "id": "1"},
        {"content": "dance", "status": "cancelled", "priority": "low", "id": "2"},
        {"content": "leap", "status": "in_progress", "priority": "low"},
        {"content": "land", "status": "pending"},
    ]

    assert todowrite({"todos": todos}).model_dump() == {
        "explanation": None,
        "plan": [
            {"step": "look", "status": "completed"},
            {"step": "leap", "status": "in_progress"},
            {"step": "land", "status": "pending"},
        ],
    }


def test_todowrite_also_takes_a_plan() -> None:
    plan = {"explanation": "why", "plan": [step("pending")]}

    assert todowrite(plan) == tool.parse(plan)


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        (None, [""]),
        ({}, ["plan"]),
        ({"todos": "look"}, ["plan", "todos"]),
        ({"todos": [1]}, ["plan.0"]),
        ({"todos": [{"content": "x"}]}, ["plan.0.status"]),
        ({"todos": [{"content": "x", "status": "weird"}]}, ["plan.0.status"]),
        ({"todos": [{"content": "x", "status": "pending", "by": "me"}]}, ["plan.0.by"]),
        ({"todos": [{"content": "x", "status": "in_progress"}] * 2}, ["plan"]),
        ({"todos": [], "plan": []}, ["todos"]),
        ({"todos": [], "more": 1}, ["more"]),
    ],
)
def test_what_todowrite_cannot_take_is_a_plain_mistake(given: Any, fields: list[str]) -> None:
    with pytest.raises(InvalidArgs, match="update_plan cannot take these arguments") as caught:
        todowrite(given)

    assert caught.value.details == {"fields": fields}


class Builtins(Toys):
    @property
    def tools(self) -> Any:
        return BUILTINS


async def test_a_plan_can_be_read_with_its_session_and_is_told_once_per_change(data_dir: Path) -> None:
    service = RunningService(data_dir, Builtins())
    await service.open()
    try:
        for status in ("pending", "completed"):
            body = {"tool": "todowrite", "arguments": {"todos": [{"content": "look", "status": status}]}}
            assert (await service.client.post("/v1/calls", json=body)).json()["status"] == "completed"
        plan = (await service.client.get("/v1/sessions/default/plan")).json()
        page = await service.client.get(
            "/v1/events", params={"types": "plan.updated"}, headers={"Accept": "application/json"}
        )
    finally:
        await service.close()

    told = [{"explanation": None, "plan": [{"step": "look", "status": status}]} for status in ("pending", "completed")]
    assert plan == told[1]
    assert [event["data"] for event in page.json()["data"]] == told
