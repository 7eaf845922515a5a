"""delete_file: take a file away. Used by `DELETE /v1/sessions/{id}/files/{path}`."""

import errno
from threading import Event
from typing import Any

from pydantic import BaseModel, Field

from app.core.errors import FileFailed
from app.core.files import require_state, touching
from app.core.ports import Change, PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, raise_if_canceled, typed
from app.text.edit.draft import MOST_COMPARED, facts_of


class Args(BaseModel, extra="forbid"):
    path: str = Field(description="File to delete: relative to the workspace, or absolute and inside it.")
    if_match: list[str] | None = Field(default=None, description="Only in one of these states; `*` is any.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "edit", [args.path])


async def run(args: Args, ctx: Context) -> Result:
    about = await ctx.in_thread_uncancelable(lambda stop: _delete(args, ctx, stop))
    return Result(output=f"Deleted {args.path}.", title=args.path, metadata=about)


tool = typed(
    Args,
    name="delete_file",
    description="Delete a file. Folders are not deleted.",
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    permission="edit",
    polls=True,
    is_listed=False,
)


def _delete(args: Args, ctx: Context, stop: Event) -> dict[str, Any]:
    stamp = ctx.workspace.stamp(args.path, approved=ctx.approved)
    require_state(args.path, stamp, args.if_match, None)
    if stamp is None:
        raise FileFailed(errno.ENOENT, args.path, f"{args.path} does not exist.")
    name = ctx.workspace.name(args.path)
    before = ctx.workspace.load(args.path, approved=ctx.approved) if stamp.size <= MOST_COMPARED else None
    raise_if_canceled(stop)
    ctx.workspace.commit([Change(path=args.path, data=None, before=stamp)], approved=ctx.approved)
    return {"path": name} | facts_of(args.path, before, None, "deleted")
