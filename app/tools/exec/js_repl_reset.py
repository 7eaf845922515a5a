"""js_repl_reset: start the session's Node interpreter anew."""

from pydantic import BaseModel

from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, typed


class Args(BaseModel, extra="forbid"):
    pass


def needs(args: Args, scope: PathScope) -> list[Need]:
    return [Need("js_repl", "*")]


async def run(args: Args, ctx: Context) -> Result:
    was_running = await ctx.drop_kernel("js")
    return Result(output="js_repl kernel reset", title="reset", metadata={"was_running": was_running})


tool = typed(
    Args,
    name="js_repl_reset",
    title="Reset JavaScript",
    description="End the interpreter of js_repl with all that is defined in it; the next cell gets a new one.",
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    lane=Lane.SESSION,
    permission="js_repl",
    is_sandboxed=True,
)
