"""glob: files by their names."""

import errno

from pydantic import BaseModel, Field

from app.core.errors import FileFailed, InvalidArgs
from app.core.files import touching
from app.core.ports import Found, Scope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, typed
from app.texts import globs, searches
from app.texts.globs import Glob
from app.tools.list_dir import advising

MOST_FILES = 2000
TIMEOUT = 75.0  # a search that finds too much is done again, in order
NOTHING = "No files found."


class Args(BaseModel, extra="forbid"):
    pattern: str = Field(
        min_length=1,
        description=(
            'Glob of the files to name, like "*.py" (at any depth), "src/**/*.{ts,tsx}" (from the folder on) or'
            ' ".github/**" (hidden files only when they are named).'
        ),
    )
    path: str = Field(
        default=".", description="Folder to look in: relative to the workspace, or absolute and inside it."
    )
    limit: int = Field(default=100, ge=1, description=f"Most files to name; never more than {MOST_FILES}.")


def needs(args: Args, scope: Scope) -> list[Need]:
    return touching(scope, "read", [args.path or "."])


async def run(args: Args, ctx: Context) -> Result:
    path = args.path or "."
    glob = globs.compile(_relative(args.pattern, ctx.workspace.display(path)))
    arguments = ["--files", "--null", *glob.arguments()]
    found = await advising(path, ctx, ctx.search(path, arguments))
    if found.is_file:
        raise FileFailed(errno.ENOTDIR, path, f"{path} is a file; glob looks in a folder.")
    if found.is_cut:  # which part of it came is chance; in order, it is always the first
        found = await ctx.search(path, [*arguments, "--sort=path"])
    searches.require_searched(found)
    files = await ctx.in_thread(lambda stop: _files(found, glob))
    return _told(args, found, files)


tool = typed(
    Args,
    name="glob",
    description=(
        "Find files by a glob over their names; answers paths relative to the workspace, in order. Files that"
        " .gitignore names are left out."
    ),
    effect=Effect.READ,
    needs=needs,
    run=run,
    permission="read",
    timeout=TIMEOUT,
)


def _relative(pattern: str, folder: str) -> str:
    """The pattern as seen from the folder. An absolute one is taken when it lies there."""
    inner = pattern.removeprefix(folder.rstrip("/"))
    if pattern.startswith("/") and (inner == pattern or not inner.startswith("/")):
        raise InvalidArgs(f"{pattern} is absolute and not in {folder}; use a pattern relative to the folder.")
    return inner if pattern.startswith("/") else pattern


def _files(found: Found, glob: Glob) -> list[str]:
    files = [name for name in searches.names(found) if glob.matches(searches.printable(name))]
    return sorted(files, key=searches.place)


def _told(args: Args, found: Found, files: list[str]) -> Result:
    shown = files[: min(args.limit, MOST_FILES)]
    has_more = found.is_cut or len(files) > len(shown)
    lines = [searches.one_line(searches.joined(found.name, name)) for name in shown] or [NOTHING]
    if has_more:
        total = "more than that" if found.is_cut else f"{len(files)} in all"
        lines.append(f"[the first {len(shown)} files, there are {total}; narrow the pattern, or raise the limit]")
    return Result(
        output="\n".join([*lines, *searches.notes(found, 0)]),
        title=args.pattern,
        metadata={"count": len(shown), "has_more": has_more},
    )
