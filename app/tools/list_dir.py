"""list_dir: what is in a folder, as an indented tree."""

import os
from collections.abc import Iterator
from threading import Event

from pydantic import BaseModel, Field

from app.core.errors import FileFailed, InvalidArgs, OutsideWorkspace
from app.core.files import touching
from app.core.ports import Entry, EntryKind, Scope, Workspace
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, typed

NAME_BYTES = 500
MOST_ENTRIES = 100_000
SUFFIXES: dict[EntryKind, str] = {"file": "", "directory": "/", "symlink": "@", "other": "?"}


class Args(BaseModel, extra="forbid"):
    dir_path: str = Field(
        default=".", description="Folder to list: relative to the workspace, or absolute and inside it."
    )
    offset: int = Field(default=1, ge=1, description="Number of the first entry to show; the first entry is 1.")
    limit: int = Field(default=25, ge=1, description="Most entries to show.")
    depth: int = Field(default=2, ge=1, description="How many levels of folders to go down; 1 is the folder alone.")


def needs(args: Args, scope: Scope) -> list[Need]:
    return touching(scope, "read", [args.dir_path])


async def run(args: Args, ctx: Context) -> Result:
    return await ctx.in_thread(lambda stop: _list(args, ctx, stop))


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
)


def _list(args: Args, ctx: Context, stop: Event) -> Result:
    entries = _walk(args, ctx.workspace, next(iter(ctx.approved)) if ctx.approved else None)
    limit = min(args.limit, MOST_ENTRIES)
    shown, seen, has_more = list[str](), 0, False
    for seen, (level, entry) in enumerate(entries, 1):
        has_more = len(shown) == limit
        if has_more or stop.is_set():
            break
        if seen >= args.offset:
            shown.append(_line(level, entry))
    if seen and not shown:
        raise InvalidArgs(f"offset {args.offset} is past the last entry of {args.dir_path}, which is number {seen}.")
    head = f"Absolute path: {ctx.workspace.display(args.dir_path)}"
    foot = [f"More than {len(shown)} entries found"] if has_more else []
    return Result(
        output="\n".join([head, *shown, *foot]),
        title=args.dir_path,
        metadata={"entries": len(shown), "has_more": has_more, "next_offset": seen if has_more else None},
    )


def _walk(args: Args, workspace: Workspace, approved: str | None) -> Iterator[tuple[int, Entry]]:
    """Entries with their level, each folder followed by what is in it. Nothing is opened before it is needed."""
    stack = [(args.dir_path, approved, workspace.scan(args.dir_path, approved=_only(approved)))]
    while stack:
        path, name, entries = stack[-1]
        entry = next(entries, None)
        if entry is None:
            stack.pop()
            continue
        yield len(stack) - 1, entry
        if entry.kind == "directory" and len(stack) < args.depth:
            below, named = os.path.join(path, entry.name), _named(name, entry)
            stack.append((below, named, _scan(workspace, below, named)))


def _scan(workspace: Workspace, path: str, approved: str | None) -> Iterator[Entry]:
    """A folder that is gone or closed to us is shown without its entries."""
    try:
        return workspace.scan(path, approved=_only(approved))
    except (FileFailed, OutsideWorkspace):
        return iter(())


def _only(name: str | None) -> set[str] | None:
    return None if name is None else {name}


def _named(folder: str | None, entry: Entry) -> str | None:
    """The canonical name a subfolder must still have when it is opened."""
    if folder is None:
        return None
    return _printable(entry.name) if folder == "." else f"{folder}/{_printable(entry.name)}"


def _line(level: int, entry: Entry) -> str:
    name = _one_line(_printable(entry.name)).encode()[:NAME_BYTES].decode(errors="ignore")
    return "  " * level + name + SUFFIXES[entry.kind]


def _one_line(name: str) -> str:
    """A name with a line break in it must not look like two entries."""
    return "".join(repr(char)[1:-1] if ord(char) < 32 or char in "\x7f\x85\u2028\u2029" else char for char in name)


def _printable(name: str) -> str:
    return os.fsencode(name).decode(errors="replace")
