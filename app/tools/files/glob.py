"""glob: find files by their names."""

import errno

from pydantic import BaseModel, Field

from app.core.errors import FileFailed, InvalidArgs
from app.core.files import touching
from app.core.ports import PathScope, SearchResult
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, typed
from app.core.util.path_text import one_line, printable
from app.text import ripgrep_output
from app.text.glob import Glob, compile_glob
from app.text.similar_paths import suggest_if_missing

MAX_FILES = 2000
TIMEOUT_SECONDS = 75.0  # a search that finds too much is done again, sorted
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
    limit: int = Field(default=100, ge=1, description=f"Most files to name; never more than {MAX_FILES}.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "read", [args.path or "."])


async def run(args: Args, ctx: Context) -> Result:
    path = args.path or "."
    glob = compile_glob(_relative(args.pattern, ctx.workspace.display(path)))
    arguments = ["--files", "--null", *glob.arguments()]
    found = await suggest_if_missing(path, ctx, ctx.search(path, arguments))
    if found.is_file:
        raise FileFailed(errno.ENOTDIR, path, f"{path} is a file; glob looks in a folder.")
    if found.is_cut:  # unsorted output is cut at a random place; sorted, it is always the first part
        found = await ctx.search(path, [*arguments, "--sort=path"])
    ripgrep_output.require_success(found)
    files = await ctx.in_thread(lambda stop: _files(found, glob))
    return _result(args, found, files)


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
    timeout=TIMEOUT_SECONDS,
)


def _relative(pattern: str, folder: str) -> str:
    """The pattern relative to the folder. An absolute one is accepted if it is inside."""
    inner = pattern.removeprefix(folder.rstrip("/"))
    if pattern.startswith("/") and (inner == pattern or not inner.startswith("/")):
        raise InvalidArgs(f"{pattern} is absolute and not in {folder}; use a pattern relative to the folder.")
    return inner if pattern.startswith("/") else pattern


def _files(found: SearchResult, glob: Glob) -> list[str]:
    files = [name for name in ripgrep_output.read_names(found) if glob.matches(printable(name))]
    return sorted(files, key=ripgrep_output.sort_key)


def _result(args: Args, found: SearchResult, files: list[str]) -> Result:
    shown = files[: min(args.limit, MAX_FILES)]
    has_more = found.is_cut or len(files) > len(shown)
    lines = [one_line(ripgrep_output.canonical_name(found.name, name)) for name in shown] or [NOTHING]
    if has_more:
        total = "more than that" if found.is_cut else f"{len(files)} in all"
        lines.append(f"[the first {len(shown)} files, there are {total}; narrow the pattern, or raise the limit]")
    return Result(
        output="\n".join([*lines, *ripgrep_output.notes(found, 0)]),
        title=args.pattern,
        metadata={"count": len(shown), "has_more": has_more},
    )
