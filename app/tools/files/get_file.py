"""get_file: size, state and media type of a file. Used by `GET /v1/sessions/{id}/files/{path}`."""

import codecs
import errno
import os
from typing import Any

from pydantic import Field

from app.core.errors import FileFailed
from app.core.ports import Stamp
from app.core.results import Result
from app.core.tools import Context, Effect
from app.core.util.clocks import rfc3339
from app.text.images import kind_of
from app.tools.files._shared import PathArgs, route_tool

HEAD_BYTES = 8192
TEXT = "text/plain; charset=utf-8"
BINARY = "application/octet-stream"
MAGIC = {b"%PDF-": "application/pdf", b"PK\x03\x04": "application/zip", b"\x1f\x8b": "application/gzip"}


class Args(PathArgs):
    path: str = Field(description="File to read: relative to the workspace, or absolute and inside it.")


async def run(args: Args, ctx: Context) -> Result:
    facts = await ctx.in_thread(lambda stop: _facts(args.path, ctx))
    return Result(output=f"{args.path}: {facts['size']:,} bytes, {facts['mime']}", title=args.path, metadata=facts)


tool = route_tool(
    Args,
    name="get_file",
    description="Look at a file that is downloaded over HTTP: its size, state and type.",
    effect=Effect.READ,
    run=run,
)


def _facts(path: str, ctx: Context) -> dict[str, Any]:
    with ctx.workspace.open(path, approved=ctx.approved) as file:
        try:
            stamp, head = Stamp.of(os.fstat(file.fileno())), file.read(HEAD_BYTES)
        except OSError as error:
            raise FileFailed(error.errno or errno.EIO, path) from None
    modified = rfc3339(stamp.mtime_ns // 1000)
    name = ctx.workspace.name(path)
    return {"path": name, "size": stamp.size, "etag": stamp.etag, "modified": modified, "mime": _media_type(head)}


def _media_type(head: bytes) -> str:
    """By content. Never a type that a browser would execute: HTML and SVG are plain text here."""
    known = kind_of(head) or next((mime for magic, mime in MAGIC.items() if head.startswith(magic)), None)
    if known is not None:
        return known
    try:
        # Where the file goes on, its head may end within a character.
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < HEAD_BYTES)
    except UnicodeDecodeError:
        return BINARY
    return BINARY if b"\0" in head else TEXT
