"""list_dir: a folder as an indented tree."""

from typing import Any

from pydantic import BaseModel, Field

from app.core.files import touching
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Alias, Context, Effect, typed
from app.text.similar_paths import suggest_if_missing
from app.tools.files._shared import list_folder


class Args(BaseModel, extra="forbid"):
    dir_path: str = Field(
        default=".", description="Folder to list: relative to the workspace, or absolute and inside it."
    )
    offset: int = Field(default=1, ge=1, description="Number of the first entry to show; the first entry is 1.")
    limit: int = Field(default=25, ge=1, description="Most entries to show.")
    depth: int = Field(default=2, ge=1, description="How many levels of folders to go down; 1 is the folder alone.")
    ignore: list[str] = Field(
        default=[],
        max_length=100,
        description="What to leave out with all below it: names, or paths relative to the folder; * is anything.",
    )


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "read", [args.dir_path])


async def run(args: Args, ctx: Context) -> Result:
    options = args.model_dump(exclude={"dir_path"})
    listing = ctx.in_thread(lambda stop: list_folder(args.dir_path, ctx, stop, **options))
    return await suggest_if_missing(args.dir_path, ctx, listing)


def _adapt(raw: Any) -> Any:
    if not isinstance(raw, dict) or "dir_path" in raw:
        return raw
    return {"dir_path" if name == "path" else name: value for name, value in raw.items()}


tool = typed(
    Args,
    name="list_dir",
    description=(
        "List a folder and what is below it, one entry per line, two spaces deeper per level."
        " Names end in `/` for folders, `@` for symlinks (not followed) and `?` for anything but a file."
    ),
    effect=Effect.READ,
    needs=needs,
    run=run,
    permission="read",
    aliases=(Alias("ls", _adapt),),
)
