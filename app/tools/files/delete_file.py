"""delete_file: delete one file. Used by `DELETE /v1/sessions/{id}/files/{path}`."""

import errno
from threading import Event
from typing import Any

from pydantic import Field

from app.core.errors import FileFailed
from app.core.files import require_state
from app.core.ports import Change
from app.core.results import Result
from app.core.tools import Context, Effect, raise_if_canceled
from app.text.edit.draft import MAX_COMPARED_BYTES, whole_file_facts
from app.tools.files._shared import PathArgs, route_tool


class Args(PathArgs):
    path: str = Field(description="File to delete: relative to the workspace, or absolute and inside it.")
    if_match: list[str] | None = Field(default=None, description="Only in one of these states; `*` is any.")


async def run(args: Args, ctx: Context) -> Result:
    facts = await ctx.in_thread_uncancelable(lambda stop: _delete(args, ctx, stop))
    return Result(output=f"Deleted {args.path}.", title=args.path, metadata=facts)


tool = route_tool(
    Args,
    name="delete_file",
    description="Delete a file. Folders are not deleted.",
    effect=Effect.WRITE,
    run=run,
)


def _delete(args: Args, ctx: Context, stop: Event) -> dict[str, Any]:
    stamp = ctx.workspace.stamp(args.path, approved=ctx.approved)
    require_state(args.path, stamp, args.if_match, None)
    if stamp is None:
        raise FileFailed(errno.ENOENT, args.path, f"{args.path} does not exist.")
    name = ctx.workspace.name(args.path)
    before = ctx.workspace.load(args.path, approved=ctx.approved) if stamp.size <= MAX_COMPARED_BYTES else None
    raise_if_canceled(stop)
    ctx.workspace.commit([Change(path=args.path, data=None, before=stamp)], approved=ctx.approved)
    return {"path": name} | whole_file_facts(args.path, before, None, "deleted")
