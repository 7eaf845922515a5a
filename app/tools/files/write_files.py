"""write_files: create or replace several whole files, all of them or none."""

from pydantic import BaseModel, Field

from app.core.llm_models import takes_patches
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, typed
from app.tools.files._shared import File, write_files, write_needs


class Args(BaseModel, extra="forbid"):
    explanation: str = Field(description="Step by step, what is changed and why.")
    files: list[File] = Field(min_length=1, description="The files, each of them once and with its whole text.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return write_needs(args.files, scope)


async def run(args: Args, ctx: Context) -> Result:
    return await ctx.in_thread_uncancelable(lambda stop: write_files(args.files, ctx, stop))


tool = typed(
    Args,
    name="write_files",
    description=(
        "Create or update one or more files, each by its whole text. Folders are made where they are missing. Either"
        " all files are written or none."
    ),
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    permission="edit",
    suits=lambda audience: not takes_patches(audience.model),
)
