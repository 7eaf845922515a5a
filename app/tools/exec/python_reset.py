"""python_reset: start the session's Python interpreter anew."""

from pydantic import BaseModel

from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, typed


class Args(BaseModel, extra="forbid"):
    pass


def needs(args: Args, scope: PathScope) -> list[Need]:
    return [Need("python", "*")]


async def run(args: Args, ctx: Context) -> Result:
    was_running = await ctx.drop_kernel("python")
    return Result(output="python kernel reset", title="reset", metadata={"was_running": was_running})


tool = typed(
    Args,
    name="python_reset",
    title="Reset Python",
    description="End the interpreter of the python tool with all that is defined in it; the next call gets a new one.",
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    lane=Lane.SESSION,
    permission="python",
    is_sandboxed=True,
)
