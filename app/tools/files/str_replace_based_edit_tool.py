"""str_replace_based_edit_tool: view, create and change text files, with the arguments that Claude is trained on."""

from threading import Event
from typing import Any, Literal

from pydantic import BaseModel, Field

from app.core.errors import InvalidArgs
from app.core.files import touching
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, raise_if_canceled, typed
from app.text.edit.diff import LazyLines
from app.text.edit.draft import Draft, diff_facts
from app.text.file_text import Content, decode
from app.text.similar_paths import suggest_if_missing
from app.tools.files import edit_file, read_file, write_file
from app.tools.files._shared import count_lines

END = -1
DEFAULT_LINES = 2000
"""LazyLines of a file, or entries of a folder, that are shown when no range is given."""
MAX_LINES = 1_000_000
REQUIRED = {
    "view": (),
    "create": ("file_text",),
    "str_replace": ("old_str",),
    "insert": ("insert_line", "insert_text"),
}
"""The arguments that each command requires."""


class Args(BaseModel, extra="forbid"):
    command: Literal["view", "create", "str_replace", "insert"] = Field(description="What to do.")
    path: str = Field(description="File or folder: relative to the workspace, or absolute and inside it.")
    view_range: list[int] | None = Field(
        default=None,
        min_length=2,
        max_length=2,
        description="For view: the first and the last line to show; the first line is 1, and -1 is the end.",
    )
    file_text: str | None = Field(default=None, description="For create: the whole text of the file.")
    old_str: str | None = Field(
        default=None, description="For str_replace: the text to replace, exactly; it must be there only once."
    )
    new_str: str | None = Field(default=None, description="For str_replace: what comes instead; nothing if left out.")
    insert_line: int | None = Field(
        default=None, ge=0, description="For insert: the line after which the text comes; 0 is the top."
    )
    insert_text: str | None = Field(default=None, description="For insert: the text, whole lines of it.")

    def model_post_init(self, context: Any, /) -> None:
        if self.command == "insert" and self.insert_text is None:
            self.insert_text = self.new_str  # the name in older versions of the peer
        missing = [f"`{name}`" for name in REQUIRED[self.command] if getattr(self, name) is None]
        if missing:
            raise InvalidArgs(f"{self.command} also needs {' and '.join(missing)}.")
        if self.command == "str_replace" and self.old_str == "":
            raise InvalidArgs("`old_str` is empty; give the text to replace, or use create to make a file.")
        if self.command == "str_replace" and self.old_str == (self.new_str or ""):
            raise InvalidArgs("`new_str` is the same as `old_str`, so there is nothing to change.")
        if self.command == "view" and self.view_range is not None:
            _require_range(*self.view_range)


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "read" if args.command == "view" else "edit", [args.path])


async def run(args: Args, ctx: Context) -> Result:
    match args.command:
        case "view":
            return await read_file.run(_view_args(args), ctx)
        case "create":
            return await write_file.run(write_file.Args(file_path=args.path, content=args.file_text or ""), ctx)
        case "str_replace":
            return await edit_file.run(_replace_args(args), ctx)
        case "insert":
            work = ctx.in_thread_uncancelable(lambda stop: _insert(args, ctx, stop))
            return await suggest_if_missing(args.path, ctx, work)


tool = typed(
    Args,
    name="str_replace_based_edit_tool",
    description=(
        "View, create and change text files. `view` shows the lines of a file with their numbers, or what is in a"
        " folder; `create` makes a file or replaces all of it; `str_replace` replaces a text that is there exactly"
        " once; `insert` puts lines after a line."
    ),
    effect=lambda args: Effect.READ if args.command == "view" else Effect.WRITE,
    needs=needs,
    run=run,
    permission="read",
    is_listed=False,
)


def _require_range(first: int, last: int) -> None:
    if first < 1 or (last != END and last < first):
        raise InvalidArgs(
            f"`view_range` [{first}, {last}] names no lines: the first line is 1, and the last is not before it, or -1"
            " for the end of the file."
        )


def _view_args(args: Args) -> read_file.Args:
    if args.view_range is None:
        return read_file.Args(file_path=args.path, limit=DEFAULT_LINES)
    first, last = args.view_range
    limit = MAX_LINES if last == END else min(last - first + 1, MAX_LINES)
    return read_file.Args(file_path=args.path, offset=first, limit=limit)


def _replace_args(args: Args) -> edit_file.Args:
    old, new = args.old_str or "", args.new_str or ""
    return edit_file.Args(file_path=args.path, old_string=old, new_string=new, strict=True)


def _insert(args: Args, ctx: Context, stop: Event) -> Result:
    before = ctx.workspace.load(args.path, approved=ctx.approved)
    old = decode(before.data, args.path)
    line = args.insert_line or 0
    count = len(LazyLines(old.text))
    if line > count:
        raise InvalidArgs(f"`insert_line` {line} is past the end: {args.path} has {count_lines(count)}.")
    new = old.with_text(_insert_lines(old, line, args.insert_text or ""))
    draft = Draft(path=ctx.workspace.name(args.path), before=before, old=old, new=new)
    raise_if_canceled(stop)
    ctx.workspace.commit(draft.changes, approved=ctx.approved)
    where = f"after line {line}" if line else "at the top"
    inserted = count_lines(len(LazyLines(args.insert_text or "\n")))
    return Result(output=f"Inserted {inserted} {where} of {args.path}.", title=args.path, metadata=diff_facts([draft]))


def _insert_lines(old: Content, line: int, new: str) -> str:
    """The text with whole lines inserted. A last line without a line end stays without one."""
    lines, end = LazyLines(old.text), old.line_end
    above, below = "".join(lines[:line]), "".join(lines[line:])
    text = new.replace("\r\n", "\n").replace("\n", end)
    if above and not above.endswith(("\n", end)):
        return above + end + text.removesuffix(end)
    return above + (text if text.endswith(end) else text + end) + below
