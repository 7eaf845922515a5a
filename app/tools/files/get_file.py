"""get_file: what a download needs to know of a file. Used by `GET /v1/sessions/{id}/files/{path}`."""

import errno
import os
from typing import Any

from pydantic import BaseModel, Field

from app.core.errors import FileFailed
from app.core.files import touching
from app.core.ports import PathScope, Stamp
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, typed
from app.core.util.clocks import rfc3339
from app.text.mime import HEAD, mime_of


class Args(BaseModel, extra="forbid"):
    path: str = Field(description="File to read: relative to the workspace, or absolute and inside it.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "read", [args.path])


async def run(args: Args, ctx: Context) -> Result:
    about = await ctx.in_thread(lambda stop: _look(args.path, ctx))
    return Result(output=f"{args.path}: {about['size']:,} bytes, {about['mime']}", title=args.path, metadata=about)


tool = typed(
    Args,
    name="get_file",
    description="Look at a file that is downloaded over HTTP: its size, state and type.",
    effect=Effect.READ,
    needs=needs,
    run=run,
    permission="read",
    polls=True,
    is_listed=False,
)


def _look(path: str, ctx: Context) -> dict[str, Any]:
    with ctx.workspace.open(path, approved=ctx.approved) as file:
        try:
            stamp, head = Stamp.of(os.fstat(file.fileno())), file.read(HEAD)
        except OSError as error:
            raise FileFailed(error.errno or errno.EIO, path) from None
    modified = rfc3339(stamp.mtime_ns // 1000)
    name = ctx.workspace.name(path)
    return {"path": name, "size": stamp.size, "etag": stamp.etag, "modified": modified, "mime": mime_of(head)}
