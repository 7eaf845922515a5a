"""update_plan: the agent's to-do list, kept with the session."""

from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator
from pydantic_core import PydanticCustomError

from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Alias, Context, Effect, Lane, typed


class Step(BaseModel, extra="forbid"):
    """One step of the plan."""

    step: str = Field(description="What is to be done, in a few words.")
    status: Literal["pending", "in_progress", "completed"] = Field(description="How far the step is.")


class Args(BaseModel, extra="forbid"):
    explanation: str | None = Field(default=None, description="Why the plan changed, if that needs saying.")
    plan: list[Step] = Field(
        description="All steps in order. It replaces the plan before; one step at most is in_progress."
    )

    @field_validator("plan")
    @classmethod
    def _one_at_a_time(cls, plan: list[Step]) -> list[Step]:
        if sum(step.status == "in_progress" for step in plan) > 1:
            raise PydanticCustomError("one_at_a_time", "at most one step may be in_progress at a time")
        return plan


def needs(args: Args, scope: PathScope) -> list[Need]:
    return []


async def run(args: Args, ctx: Context) -> Result:
    plan = args.model_dump()
    await ctx.save_plan(plan)
    done = sum(step.status == "completed" for step in args.plan)
    return Result(output="Plan updated", title=f"{done} of {len(args.plan)} done", metadata=plan)


def adapt_todowrite(raw: Any) -> Any:
    """To-dos as steps. What is cancelled is not in the plan any more."""
    if not isinstance(raw, dict) or not isinstance(todos := raw.get("todos"), list) or "plan" in raw:
        return raw
    steps = [_step(todo) for todo in todos if not isinstance(todo, dict) or todo.get("status") != "cancelled"]
    return {name: value for name, value in raw.items() if name != "todos"} | {"plan": steps}


def _step(todo: Any) -> Any:
    """Priorities and ids have no place in a plan; what else there is shall be seen to be unknown."""
    if not isinstance(todo, dict) or "step" in todo:
        return todo
    return {"step" if name == "content" else name: todo[name] for name in todo if name not in ("priority", "id")}


tool = typed(
    Args,
    name="update_plan",
    description="Write down the plan for a task of several steps, and keep each step's status up to date.",
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    lane=Lane.NONE,
    aliases=(Alias("todowrite", adapt_todowrite),),
)
