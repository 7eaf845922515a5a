from typing import Any

import pytest

from app.core.errors import InvalidArgs
from app.core.results import Result
from app.core.tools import Context, Effect
from app.tools.update_plan import tool


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
