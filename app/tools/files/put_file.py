"""put_file: write an uploaded file. Used by `PUT /v1/sessions/{id}/files/{path}`."""

import errno
import hashlib
from threading import Event
from typing import Any

from pydantic import Field

from app.core.errors import FileFailed
from app.core.files import require_state
from app.core.ports import Change
from app.core.results import Result
from app.core.tools import Context, Effect, raise_if_canceled
from app.core.util.clocks import rfc3339
from app.text.edit.draft import MAX_COMPARED_BYTES, whole_file_facts
from app.tools.files._shared import PathArgs, route_tool


class Args(PathArgs):
    path: str = Field(description="File to write: relative to the workspace, or absolute and inside it.")
    upload: str = Field(pattern=r"^[0-9a-f]{32}$", description="The upload that holds the content.")
    size: int = Field(ge=0, description="Bytes of the content.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="Digest of the content.")
    if_match: list[str] | None = Field(default=None, description="Write only over one of these states; `*` is any.")
    if_none_match: list[str] | None = Field(
        default=None, description="Do not write over one of these states; `*` is any, so that a file is only created."
    )


async def run(args: Args, ctx: Context) -> Result:
    facts = await ctx.in_thread_uncancelable(lambda stop: _put(args, ctx, stop))
    verb = "Created" if facts["created"] else "Updated"
    return Result(output=f"{verb} {args.path}, {args.size:,} bytes.", title=args.path, metadata=facts)


tool = route_tool(
    Args,
    name="put_file",
    description="Write a file that was uploaded over HTTP: all of it, or nothing.",
    effect=Effect.WRITE,
    run=run,
)


def _put(args: Args, ctx: Context, stop: Event) -> dict[str, Any]:
    if args.path.endswith("/"):
        raise FileFailed(errno.EISDIR, args.path, f"{args.path} names a folder; only files can be put.")
    stamp = ctx.workspace.stamp(args.path, approved=ctx.approved)
    require_state(args.path, stamp, args.if_match, args.if_none_match)
    # For the diff only; the commit checks that the file still has this stamp.
    is_compared = stamp is not None and stamp.size <= MAX_COMPARED_BYTES
    before = ctx.workspace.load(args.path, approved=ctx.approved) if is_compared else None
    with ctx.upload(args.upload) as data:
        # The content must be the one that a person may have approved.
        if hashlib.file_digest(data, "sha256").hexdigest() != args.sha256:  # type: ignore[arg-type]
            raise FileFailed(errno.EIO, args.path, "The upload has changed since it was sent; send the file again.")
        data.seek(0)
        raise_if_canceled(stop)
        ctx.workspace.commit([Change(path=args.path, data=data, before=stamp)], approved=ctx.approved)
        data.seek(0)
        after = data.read() if args.size <= MAX_COMPARED_BYTES else None
    diff = whole_file_facts(args.path, before, after, "modified" if stamp else "added")
    return _state(args.path, ctx) | {"created": stamp is None} | diff


def _state(path: str, ctx: Context) -> dict[str, Any]:
    stamp = ctx.workspace.stamp(path, approved=ctx.approved)
    if stamp is None:
        raise FileFailed(errno.ESTALE, path, f"{path} was written, and deleted at once by another process.")
    modified = rfc3339(stamp.mtime_ns // 1000)
    return {"path": ctx.workspace.name(path), "size": stamp.size, "etag": stamp.etag, "modified": modified}
