"""list_dir: what is in a folder, as an indented tree."""

import errno
import fnmatch
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from threading import Event
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field

from app.core.errors import CallError, FileFailed, InvalidArgs, OutsideWorkspace
from app.core.files import touching
from app.core.ports import Entry, EntryKind, PathScope, Workspace
from app.core.results import Result, Truncation
from app.core.rules import Need
from app.core.tools import Alias, Context, Effect, typed
from app.text import similar_paths

T = TypeVar("T")
NAME_BYTES = 500
MOST_ENTRIES = 100_000
# Cut at a whole entry here, because what the line would cut off could not be asked for by its number.
MOST_OUTPUT = Truncation().limit - 1000
SUFFIXES: dict[EntryKind, str] = {"file": "", "directory": "/", "symlink": "@", "other": "?"}


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
    return await advising(args.dir_path, ctx, ctx.in_thread(lambda stop: listing(args, ctx, stop)))


def adapt_ls(raw: Any) -> Any:
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
    aliases=(Alias("ls", adapt_ls),),
)


class Found(NamedTuple):
    """An entry, its level, and its path from the folder that is listed."""

    level: int
    path: str
    entry: Entry


def listing(args: Args, ctx: Context, stop: Event) -> Result:
    """The entries that are asked for. Also what reading a folder answers."""
    limit = min(args.limit, MOST_ENTRIES)
    shown, seen, size, has_more = list[Found](), 0, 0, False
    for seen, found in enumerate(_walk(args, ctx), 1):
        has_more = len(shown) == limit or size > MOST_OUTPUT
        if has_more or stop.is_set():
            break
        if seen >= args.offset:
            shown.append(found)
            size += len(_line(found)) + 1
    if seen and not shown:
        raise InvalidArgs(f"offset {args.offset} is past the last entry of {args.dir_path}, which is number {seen}.")
    head = f"Absolute path: {ctx.workspace.display(args.dir_path)}"
    foot = [f"More than {len(shown)} entries found"] if has_more else []
    return Result(
        output="\n".join([head, *map(_line, shown), *foot]),
        title=args.dir_path,
        metadata={"entries": len(shown), "has_more": has_more, "next_offset": seen if has_more else None},
        structured={"entries": [{"path": found.path, "type": found.entry.kind} for found in shown]},
    )


async def advising(path: str, ctx: Context, doing: Awaitable[T]) -> T:
    """What is done with a path. If nothing of that name is there, the error says what may have been meant."""
    try:
        return await doing
    except FileFailed as error:
        raise await _advised(error, path, ctx) from None


async def _advised(error: FileFailed, path: str, ctx: Context) -> FileFailed:
    """The same error; with names that are there, as far as rules let them be read."""
    if error.code != "ENOENT":
        return error
    near = await ctx.in_thread(lambda stop: _near(path, ctx.workspace))
    meant = [other for other, needs in near if all(ctx.is_allowed(needs))]
    if not meant:
        return error
    return FileFailed(errno.ENOENT, path, f"{error.message} Did you mean {' or '.join(meant)}?")


def _near(path: str, workspace: Workspace) -> list[tuple[str, list[Need]]]:
    found = []
    for other in similar_paths.near(path, workspace.scan):
        try:
            found.append((other, touching(workspace, "read", [other])))
        except CallError:
            continue
    return found


def _walk(args: Args, ctx: Context) -> Iterator[Found]:
    """Each folder followed by what is in it. Nothing is opened before it is needed."""
    is_ignored, workspace = _ignoring(args.ignore), ctx.workspace
    approved = next(iter(ctx.approved)) if ctx.approved else None
    stack = [("", approved, workspace.scan(args.dir_path, approved=_only(approved)))]
    while stack:
        folder, name, entries = stack[-1]
        entry = next(entries, None)
        if entry is None:
            stack.pop()
            continue
        path = folder + entry.name
        if is_ignored(path):
            continue
        yield Found(len(stack) - 1, _printable(path), entry)
        if entry.kind == "directory" and len(stack) < args.depth:
            named = _named(name, entry)
            stack.append((path + "/", named, _scan(workspace, os.path.join(args.dir_path, path), named)))


def _ignoring(patterns: list[str]) -> Callable[[str], bool]:
    """Whether a path is left out. A pattern without a slash is for the last name of a path."""
    if not patterns:
        return lambda path: False
    known = [pattern.removeprefix("./").rstrip("/").removesuffix("/**") for pattern in patterns]
    whole = re.compile("|".join(fnmatch.translate(pattern) for pattern in known))
    names = re.compile("|".join(fnmatch.translate(pattern) for pattern in known if "/" not in pattern) or r"(?!)")
    return lambda path: bool(whole.match(path) or names.match(path.rpartition("/")[2]))


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


def _line(found: Found) -> str:
    name = _one_line(_printable(found.entry.name)).encode()[:NAME_BYTES].decode(errors="ignore")
    return "  " * found.level + name + SUFFIXES[found.entry.kind]


def _one_line(name: str) -> str:
    """A name with a line break in it must not look like two entries."""
    return "".join(repr(char)[1:-1] if ord(char) < 32 or char in "\x7f\x85\u2028\u2029" else char for char in name)


def _printable(name: str) -> str:
    return os.fsencode(name).decode(errors="replace")
