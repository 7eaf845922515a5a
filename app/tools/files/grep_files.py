"""grep_files: files whose content matches, newest first."""

from itertools import groupby

from pydantic import BaseModel, Field

from app.core.errors import InvalidArgs, ProgramFailed
from app.core.files import readable, touching
from app.core.ports import PathScope, SearchResult
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, typed
from app.core.util.path_text import one_line, printable
from app.text import glob, ripgrep_output
from app.text.glob import Glob
from app.text.similar_paths import suggest_if_missing

MAX_FILES = 2000
TIMEOUT_SECONDS = 75.0  # a search that finds too much is done again, sorted
NOTHING = "No matches found."


class Args(BaseModel, extra="forbid"):
    pattern: str = Field(description="Regular expression to look for, in ripgrep's syntax; case matters.")
    include: str = Field(
        default="", description='Glob of the files to search, like "*.py" or "src/**/*.{ts,tsx}"; all when left out.'
    )
    path: str = Field(
        default=".", description="Folder or file to search: relative to the workspace, or absolute and inside it."
    )
    limit: int = Field(default=100, ge=1, description=f"Most files to name; never more than {MAX_FILES}.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "read", [args.path or "."])


async def run(args: Args, ctx: Context) -> Result:
    pattern, path = args.pattern.strip(), args.path.rstrip("/") or args.path or "."
    if not pattern:
        raise InvalidArgs("The pattern is empty; say what to look for.")
    include = glob.compile_glob(args.include.strip()) if args.include.strip() else None
    arguments = ["--files-with-matches", "--null", f"--regexp={pattern}", *(include.arguments() if include else ())]
    found = await suggest_if_missing(path, ctx, ctx.search(path, arguments))
    if found.is_cut:
        found = await ctx.search(path, [*arguments, "--sortr=modified"])
    ripgrep_output.require_success(found)
    if found.is_file:
        return _result(args, found, [ctx.workspace.display(path)] if found.stdout else [])
    newest = await ctx.in_thread(lambda stop: _newest(found, include, path, ctx))
    limit = min(args.limit, MAX_FILES)
    files, left_out = _permitted(newest, found, limit + 1, ctx)
    shown = [one_line(ctx.workspace.display(f"{path}/{name}")) for name in files[:limit]]
    return _result(args, found, shown, left_out, found.is_cut or len(files) > limit)


tool = typed(
    Args,
    name="grep_files",
    description=(
        "Find the files whose content matches a regular expression; answers their absolute paths, those changed last"
        " first. Hidden files and what .gitignore names are not searched. To see the matching lines use grep."
    ),
    effect=Effect.READ,
    needs=needs,
    run=run,
    permission="read",
    timeout=TIMEOUT_SECONDS,
)


def _newest(found: SearchResult, include: Glob | None, path: str, ctx: Context) -> list[str]:
    """The files that were found, newest first, and by name within the same moment.

    Sorted here, because ripgrep does not work in parallel when it sorts.
    """
    files = ripgrep_output.read_names(found)
    if include is not None:
        files = [name for name in files if include.matches(printable(name))]
    times = dict(zip(files, ctx.workspace.times(path, files, approved=ctx.approved), strict=True))
    files.sort(key=times.__getitem__, reverse=True)
    moments = (list(names) for _, names in groupby(files, times.__getitem__))
    return [
        name for names in moments for name in (sorted(names, key=ripgrep_output.sort_key) if len(names) > 1 else names)
    ]


def _permitted(files: list[str], found: SearchResult, limit: int, ctx: Context) -> tuple[list[str], int]:
    """The first files that rules allow to read, and how many before the last of them they forbid."""
    kept, left_out = list[str](), 0
    allowed = readable(ctx.is_allowed, (ripgrep_output.canonical_name(found.name, name) for name in files))
    for name, is_allowed in zip(files, allowed, strict=False):
        if is_allowed:
            kept.append(name)
        else:
            left_out += 1
        if len(kept) == limit:
            break
    return kept, left_out


def _result(args: Args, found: SearchResult, files: list[str], left_out: int = 0, has_more: bool = False) -> Result:
    result = Result(
        output="\n".join([*(files or [NOTHING]), *ripgrep_output.notes(found, left_out)]),
        title=args.pattern,
        metadata={"count": len(files), "has_more": has_more, "left_out": left_out},
    )
    if not files:  # as for ripgrep, which exits with 1
        raise ProgramFailed(1, NOTHING, result=result)
    return result
