"""python: run Python in the session's interpreter, which keeps its definitions between calls."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.core.ports import PathScope
from app.core.repl import Cell, run_cell
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Alias, Context, Effect, Lane, typed

DEFAULT_SECONDS = 120.0
MAX_SECONDS = 600.0
START_SECONDS = 20.0
"""Extra time for starting and ending an interpreter."""
GIB = 1024**3
MORE_TIME = "`timeout_ms` gives it another time, at most 600000."
DESCRIPTION = """\
Run Python in an interpreter that this session keeps: variables, functions and imports of one call are there in later \
ones. What is printed comes back, and the value of the last expression; no print needed. Open matplotlib figures and \
images given to display() come back as images. The current folder is the workspace. Where IPython is installed, its \
magics work, and !command runs a shell command; `await` works at the top. input() does not work. A call \
that takes too long is interrupted; what was defined before stays if it heeds that."""


class Args(BaseModel, extra="forbid"):
    code: str = Field(min_length=1, description="Python source text.")
    timeout_ms: float = Field(
        default=DEFAULT_SECONDS * 1000, gt=0, le=MAX_SECONDS * 1000, description="Milliseconds it may take."
    )
    memory_limit: Literal["1g", "4g", "16g", "64g"] | None = Field(
        default=None,
        description="Memory of the interpreter, 1g if not said. To give it more than it has restarts it.",
    )


def needs(args: Args, scope: PathScope) -> list[Need]:
    return [Need("python", "*")]


async def run(args: Args, ctx: Context) -> Result:
    memory = None if args.memory_limit is None else int(args.memory_limit.removesuffix("g")) * GIB
    cell = Cell(
        kind="python",
        code=args.code,
        seconds=args.timeout_ms / 1000,
        more_time=MORE_TIME,
        memory=memory,
        is_interruptible=True,
    )
    return await run_cell(ctx, cell)


def _adapt(raw: Any) -> Any:
    """The arguments of a hosted interpreter: of `container` only `memory_limit` is used here."""
    if not isinstance(raw, dict):
        return raw
    known = {name: value for name, value in raw.items() if name not in ("container", "type")}
    container = raw.get("container")
    limit = container.get("memory_limit") if isinstance(container, dict) else None
    return known if limit is None else {"memory_limit": limit} | known


tool = typed(
    Args,
    name="python",
    title="Python",
    description=DESCRIPTION,
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    lane=Lane.SESSION,
    timeout=MAX_SECONDS + START_SECONDS,
    aliases=(Alias("code_interpreter", _adapt),),
    is_sandboxed=True,
)
