"""put_file: write an uploaded file. Used by `PUT /v1/sessions/{id}/files/{path}`."""

import errno
import hashlib
from threading import Event
from typing import Any, BinaryIO

from pydantic import BaseModel, Field

from app.core.errors import FileFailed
from app.core.files import require_state, touching
from app.core.ports import Change, PathScope, Snapshot, Stamp
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, raise_if_canceled, typed
from app.core.util.clocks import rfc3339
from app.text.edit.draft import MOST_COMPARED, facts_of


class Args(BaseModel, extra="forbid"):
    path: str = Field(description="File to write: relative to the workspace, or absolute and inside it.")
    upload: str = Field(pattern=r"^[0-9a-f]{32}$", description="The upload that holds the content.")
    size: int = Field(ge=0, description="Bytes of the content.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="Digest of the content.")
    if_match: list[str] | None = Field(default=None, description="Write only over one of these states; `*` is any.")
    if_none_match: list[str] | None = Field(
        default=None, description="Do not write over one of these states; `*` is any, so that a file is only created."
    )


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "edit", [args.path])


async def run(args: Args, ctx: Context) -> Result:
    about = await ctx.in_thread_uncancelable(lambda stop: _put(args, ctx, stop))
    said = "Created" if about["created"] else "Updated"
    return Result(output=f"{said} {args.path}, {args.size:,} bytes.", title=args.path, metadata=about)


tool = typed(
    Args,
    name="put_file",
    description="Write a file that was uploaded over HTTP: all of it, or nothing.",
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    permission="edit",
    polls=True,
    is_listed=False,
)


def _put(args: Args, ctx: Context, stop: Event) -> dict[str, Any]:
    if args.path.endswith("/"):
        raise FileFailed(errno.EISDIR, args.path, f"{args.path} names a folder; only files can be put.")
    stamp = ctx.workspace.stamp(args.path, approved=ctx.approved)
    require_state(args.path, stamp, args.if_match, args.if_none_match)
    before = _before(args.path, stamp, ctx)
    with ctx.upload(args.upload) as data:
        _require_whole(data, args)
        raise_if_canceled(stop)
        ctx.workspace.commit([Change(path=args.path, data=data, before=stamp)], approved=ctx.approved)
        data.seek(0)
        after = data.read() if args.size <= MOST_COMPARED else None
    diff = facts_of(args.path, before, after, "modified" if stamp else "added")
    return _state(args.path, ctx) | {"created": stamp is None} | diff


def _before(path: str, stamp: Stamp | None, ctx: Context) -> Snapshot | None:
    """What is replaced, if it is little enough for a diff. Whether it is still that is seen when it is replaced."""
    if stamp is None or stamp.size > MOST_COMPARED:
        return None
    return ctx.workspace.load(path, approved=ctx.approved)


def _require_whole(data: BinaryIO, args: Args) -> None:
    """A person may have said yes to this very content."""
    if hashlib.file_digest(data, "sha256").hexdigest() != args.sha256:  # type: ignore[arg-type]
        raise FileFailed(errno.EIO, args.path, "The upload is not what was sent any more; send the file again.")
    data.seek(0)


def _state(path: str, ctx: Context) -> dict[str, Any]:
    stamp = ctx.workspace.stamp(path, approved=ctx.approved)
    if stamp is None:
        raise FileFailed(errno.ESTALE, path, f"{path} was written, and taken away at once by somebody else.")
    modified = rfc3339(stamp.mtime_ns // 1000)
    return {"path": ctx.workspace.name(path), "size": stamp.size, "etag": stamp.etag, "modified": modified}
