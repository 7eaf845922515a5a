"""grep: matching lines, with the lines around them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Literal

from pydantic import BaseModel, Field

from app.core.files import readable, touching
from app.core.ports import PathScope, SearchResult
from app.core.results import Result, Truncation
from app.core.rules import Need
from app.core.tools import Context, Effect, typed
from app.core.util.path_text import one_line, printable
from app.text import glob, ripgrep_output
from app.text.glob import Glob
from app.text.ripgrep_output import Hit, Line
from app.text.similar_paths import suggest_if_missing

MAX_MATCHES = 2000
MAX_CONTEXT = 100
# Cut at a whole line here, so that the notes about the rest are not truncated.
MAX_OUTPUT = Truncation().limit - 2000
TIMEOUT_SECONDS = 75.0  # a search that finds too much is done again, sorted
NOTHING = "No matches found."
READERS = {"lines": ripgrep_output.read_lines, "count": ripgrep_output.read_counts, "files": ripgrep_output.read_files}


class Args(BaseModel, extra="forbid"):
    pattern: str = Field(min_length=1, description="Regular expression to look for, in ripgrep's syntax.")
    path: str = Field(
        default=".", description="Folder or file to search: relative to the workspace, or absolute and inside it."
    )
    include: str = Field(
        default="", description='Glob of the files to search, like "*.py" or "src/**/*.{ts,tsx}"; all when left out.'
    )
    output: Literal["lines", "count", "files"] = Field(
        default="lines",
        description="What to answer: the matching lines, how many there are in each file, or the files only.",
    )
    context: int = Field(default=0, ge=0, le=MAX_CONTEXT, description="Lines to show before and after each match.")
    before: int = Field(default=0, ge=0, le=MAX_CONTEXT, description="Lines to show before each match, if more.")
    after: int = Field(default=0, ge=0, le=MAX_CONTEXT, description="Lines to show after each match, if more.")
    limit: int = Field(
        default=100, ge=1, description=f"Most matching lines (or files) to show; never more than {MAX_MATCHES}."
    )
    ignore_case: bool = Field(default=False, description="Whether upper and lower case are the same.")
    literal: bool = Field(default=False, description="Whether the pattern is plain text and no regular expression.")
    multiline: bool = Field(default=False, description="Whether a match may go over several lines.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "read", [args.path or "."])


async def run(args: Args, ctx: Context) -> Result:
    include = glob.compile_glob(args.include.strip()) if args.include.strip() else None
    arguments = [*_arguments(args), *(include.arguments() if include else ())]
    found = await suggest_if_missing(args.path, ctx, ctx.search(args.path or ".", arguments))
    if found.is_cut:  # unsorted output is cut at a random place; sorted, it is always the first part
        found = await ctx.search(args.path or ".", [*arguments, "--sort=path"])
    ripgrep_output.require_success(found)
    hits = await ctx.in_thread(lambda stop: _hits(args, found, include))
    kept, left_out, has_more = _permitted(args, found, hits, ctx)
    return _result(args, found, kept, left_out, has_more or found.is_cut)


tool = typed(
    Args,
    name="grep",
    description=(
        "Search the content of files for a regular expression. Answers matching lines as `file:line: text` and lines"
        " around them as `file-line- text`, in the order of the paths; lines longer than 500 bytes are cut. Hidden"
        " files and what .gitignore names are not searched."
    ),
    effect=Effect.READ,
    needs=needs,
    run=run,
    permission="read",
    timeout=TIMEOUT_SECONDS,
)


def _arguments(args: Args) -> Iterator[str]:
    yield f"--regexp={args.pattern}"
    yield "--crlf"
    yield "--null"
    yield "--with-filename"
    if args.ignore_case:
        yield "--ignore-case"
    if args.literal:
        yield "--fixed-strings"
    if args.multiline:
        yield "--multiline"
    match args.output:
        case "files":
            yield "--files-with-matches"
        case "count":
            yield "--count"
        case "lines":
            yield from ripgrep_output.LINE_OPTIONS
            yield f"--before-context={max(args.context, args.before)}"
            yield f"--after-context={max(args.context, args.after)}"
            yield f"--max-count={_limit(args) + 1}"


def _limit(args: Args) -> int:
    return min(args.limit, MAX_MATCHES)


def _hits(args: Args, found: SearchResult, include: Glob | None) -> list[Hit]:
    """The files that were found, in order."""
    hits = READERS[args.output](found)
    if include is not None and not found.is_file:
        hits = (hit for hit in hits if include.matches(printable(hit.name)))
    return sorted(hits, key=lambda hit: ripgrep_output.sort_key(hit.name))


def _permitted(args: Args, found: SearchResult, hits: list[Hit], ctx: Context) -> tuple[list[Hit], int, bool]:
    """The hits to show, how many files before the last of them rules forbid, and whether there are more."""
    kept, left_out, left = list[Hit](), 0, _limit(args)
    # A file that was named was approved with the call.
    allowed = repeat(True) if found.is_file else readable(ctx.is_allowed, (_name(found, hit) for hit in hits))
    for hit, is_allowed in zip(hits, allowed, strict=False):
        if not is_allowed:
            left_out += 1
            continue
        size = hit.count if args.output == "lines" else 1
        if size and not left:
            return kept, left_out, True
        kept.append(hit if size <= left else replace(hit, lines=list(_first(hit.lines, left, args)), count=left))
        if size > left:
            return kept, left_out, True
        left -= size
    return kept, left_out, False


def _name(found: SearchResult, hit: Hit) -> str:
    """The canonical name of a file that was found."""
    return found.name if found.is_file else ripgrep_output.canonical_name(found.name, hit.name)


def _first(lines: list[Line], limit: int, args: Args) -> Iterator[Line]:
    """The first matches of a file, with their context."""
    last, seen = 0, 0
    for line in lines:
        if seen == limit and (line.is_match or line.number > last + max(args.context, args.after)):
            return
        if line.is_match:
            last, seen = line.number, seen + 1
        yield line


def _result(args: Args, found: SearchResult, hits: list[Hit], left_out: int, has_more: bool) -> Result:
    shown, size = list[str](), 0
    for line in _lines(args, found, hits):
        size += len(line) + 1
        if size > MAX_OUTPUT:
            has_more = True
            break
        shown.append(line)
    binary = [one_line(_name(found, hit)) for hit in hits if hit.is_binary and hit.lines]
    notes = [f"[{name} is binary; not all of its matches are shown]" for name in binary]
    notes += ["[there is more; narrow the search, or raise the limit]"] if has_more else []
    return Result(
        output="\n".join([*(shown or [NOTHING]), *notes, *ripgrep_output.notes(found, left_out)]),
        title=args.pattern,
        metadata={"files": len(hits), "has_more": has_more, "left_out": left_out}
        | ({} if args.output == "files" else {"matches": sum(hit.count for hit in hits)}),
    )


def _lines(args: Args, found: SearchResult, hits: list[Hit]) -> Iterator[str]:
    is_first = True
    for hit in hits:
        name, last = one_line(_name(found, hit)), -1
        if args.output == "files":
            yield name
        elif args.output == "count":
            yield f"{name}: {hit.count}"
        elif hit.is_binary and not hit.lines:
            yield f"{name}: binary file matches"
        for line in hit.lines:
            if not is_first and line.number != last + 1 and max(args.context, args.before, args.after) > 0:
                yield "--"
            yield f"{name}:{line.number}: {line.text}" if line.is_match else f"{name}-{line.number}- {line.text}"
            last, is_first = line.number, False
