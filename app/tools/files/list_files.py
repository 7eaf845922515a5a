"""list_files: a folder page by page, as data. Used by `GET /v1/sessions/{id}/files`."""

import os
from collections.abc import Iterator
from itertools import islice
from threading import Event
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from pydantic import BaseModel, Field

from app.core.errors import CallError
from app.core.files import touching
from app.core.ports import Entry, PathScope, Workspace
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, typed
from app.core.util.clocks import rfc3339

Place = tuple[bytes, ...]
"""A path below the folder that is listed, part by part: the order of the list is the order of these."""


class Args(BaseModel, extra="forbid"):
    path: str = Field(default=".", description="Folder to list: relative to the workspace, or absolute and inside it.")
    depth: int = Field(default=1, ge=1, le=64, description="How many levels of folders to go down.")
    after: str | None = Field(default=None, description="Go on behind this entry, which ended the page before.")
    limit: int = Field(default=100, ge=1, le=1000, description="Most entries.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "read", [args.path])


async def run(args: Args, ctx: Context) -> Result:
    found = await ctx.in_thread(lambda stop: _list(args, ctx, stop))
    count = len(found["entries"])
    return Result(output=f"{args.path}: {count} entries", title=args.path, structured=found)


tool = typed(
    Args,
    name="list_files",
    description="List a folder as data: the path, type, size and state of each entry.",
    effect=Effect.READ,
    needs=needs,
    run=run,
    permission="read",
    polls=True,
    is_listed=False,
)


def _list(args: Args, ctx: Context, stop: Event) -> dict[str, Any]:
    root = ctx.workspace.name(args.path)
    after = tuple(unquote_to_bytes(args.after).split(b"/")) if args.after else ()
    page = list(islice(_walk(args, ctx, after, stop), args.limit + 1))
    more = page[args.limit - 1][0] if len(page) > args.limit else None
    entries = [_about(args.path, root, place, entry, ctx.workspace) for place, entry in page[: args.limit]]
    return {"entries": entries, "next": None if more is None else quote(b"/".join(more), safe="/")}


def _walk(args: Args, ctx: Context, after: Place, stop: Event) -> Iterator[tuple[Place, Entry]]:
    """The entries behind a place, each folder followed by what is in it. Folders that lie before it are not entered."""
    stack: list[tuple[Place, Iterator[Entry]]] = [((), ctx.workspace.scan(args.path, approved=ctx.approved))]
    root = ctx.workspace.name(args.path)
    while stack and not stop.is_set():
        place, entries = stack[-1]
        entry = next(entries, None)
        if entry is None:
            stack.pop()
            continue
        here = (*place, os.fsencode(entry.name))
        if here > after:
            yield here, entry
        is_open = here > after or here == after[: len(here)]
        if is_open and entry.kind == "directory" and len(stack) < args.depth:
            stack.append((here, _scan(args.path, root, here, ctx.workspace)))


def _scan(path: str, root: str, place: Place, workspace: Workspace) -> Iterator[Entry]:
    """A folder that is gone or closed to us is shown without its entries."""
    try:
        return workspace.scan(_below(path, place), approved={_named(root, place)})
    except CallError:
        return iter(())


def _about(path: str, root: str, place: Place, entry: Entry, workspace: Workspace) -> dict[str, Any]:
    about = {"path": _named(root, place), "type": entry.kind, "size": None, "modified": None, "etag": None}
    if entry.kind != "file":
        return about
    try:
        stamp = workspace.stamp(_below(path, place), approved={_named(root, place)})
    except CallError:
        return about
    if stamp is None:
        return about
    return about | {"size": stamp.size, "modified": rfc3339(stamp.mtime_ns // 1000), "etag": stamp.etag}


def _below(path: str, place: Place) -> str:
    return os.path.join(path, os.fsdecode(b"/".join(place)))


def _named(root: str, place: Place) -> str:
    """The canonical name an entry has, and must still have when it is opened."""
    name = b"/".join(place).decode(errors="replace")
    return name if root == "." else f"{root.rstrip('/')}/{name}"
