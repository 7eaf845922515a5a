"""list_files: a folder as data, page by page. Used by `GET /v1/sessions/{id}/files`."""

import os
from collections.abc import Iterator
from itertools import islice
from threading import Event
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from pydantic import Field

from app.core.errors import CallError
from app.core.ports import Entry, Workspace
from app.core.results import Result
from app.core.tools import Context, Effect
from app.core.util.clocks import rfc3339
from app.tools.files._shared import PathArgs, route_tool

Parts = tuple[bytes, ...]
"""A path below the listed folder, in parts: entries are sorted by it."""


class Args(PathArgs):
    path: str = Field(default=".", description="Folder to list: relative to the workspace, or absolute and inside it.")
    depth: int = Field(default=1, ge=1, le=64, description="How many levels of folders to go down.")
    after: str | None = Field(default=None, description="Go on behind this entry, which ended the page before.")
    limit: int = Field(default=100, ge=1, le=1000, description="Most entries.")


async def run(args: Args, ctx: Context) -> Result:
    page = await ctx.in_thread(lambda stop: _list(args, ctx, stop))
    return Result(output=f"{args.path}: {len(page['entries'])} entries", title=args.path, structured=page)


tool = route_tool(
    Args,
    name="list_files",
    description="List a folder as data: the path, type, size and state of each entry.",
    effect=Effect.READ,
    run=run,
)


def _list(args: Args, ctx: Context, stop: Event) -> dict[str, Any]:
    root = ctx.workspace.name(args.path)
    after = tuple(unquote_to_bytes(args.after).split(b"/")) if args.after else ()
    page = list(islice(_walk(args, ctx, after, stop), args.limit + 1))
    last = page[args.limit - 1][0] if len(page) > args.limit else None
    entries = [_entry_facts(args.path, root, parts, entry, ctx.workspace) for parts, entry in page[: args.limit]]
    return {"entries": entries, "next": None if last is None else quote(b"/".join(last), safe="/")}


def _walk(args: Args, ctx: Context, after: Parts, stop: Event) -> Iterator[tuple[Parts, Entry]]:
    """The entries after a path, each folder followed by its own. Folders that end before it are not opened."""
    stack: list[tuple[Parts, Iterator[Entry]]] = [((), ctx.workspace.scan(args.path, approved=ctx.approved))]
    root = ctx.workspace.name(args.path)
    while stack and not stop.is_set():
        parts, entries = stack[-1]
        entry = next(entries, None)
        if entry is None:
            stack.pop()
            continue
        here = (*parts, os.fsencode(entry.name))
        if here > after:
            yield here, entry
        is_open = here > after or here == after[: len(here)]
        if is_open and entry.kind == "directory" and len(stack) < args.depth:
            stack.append((here, _scan(args.path, root, here, ctx.workspace)))


def _scan(path: str, root: str, parts: Parts, workspace: Workspace) -> Iterator[Entry]:
    """A folder that is gone or not accessible is shown without its entries."""
    try:
        return workspace.scan(_below(path, parts), approved={_canonical(root, parts)})
    except CallError:
        return iter(())


def _entry_facts(path: str, root: str, parts: Parts, entry: Entry, workspace: Workspace) -> dict[str, Any]:
    facts = {"path": _canonical(root, parts), "type": entry.kind, "size": None, "modified": None, "etag": None}
    if entry.kind != "file":
        return facts
    try:
        stamp = workspace.stamp(_below(path, parts), approved={_canonical(root, parts)})
    except CallError:
        return facts
    if stamp is None:
        return facts
    return facts | {"size": stamp.size, "modified": rfc3339(stamp.mtime_ns // 1000), "etag": stamp.etag}


def _below(path: str, parts: Parts) -> str:
    return os.path.join(path, os.fsdecode(b"/".join(parts)))


def _canonical(root: str, parts: Parts) -> str:
    """The canonical name an entry has, and must still have when it is opened."""
    name = b"/".join(parts).decode(errors="replace")
    return name if root == "." else f"{root.rstrip('/')}/{name}"
