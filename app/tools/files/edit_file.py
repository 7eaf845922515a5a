"""edit_file: replace one piece of a text file, or every occurrence of it."""

import errno
from threading import Event
from typing import Any

from pydantic import BaseModel, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from app.core.errors import EditMismatch, FileFailed
from app.core.files import touching
from app.core.llm_models import takes_patches
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Alias, Context, Effect, raise_if_canceled, typed
from app.text.edit.draft import Draft, diff_facts
from app.text.edit.replacers import EXACT, Replaced, explain_mismatch, replace
from app.text.file_text import Content, decode
from app.text.similar_paths import suggest_if_missing

PEER_NAMES = {
    "filePath": "file_path",
    "oldString": "old_string",
    "newString": "new_string",
    "replaceAll": "replace_all",
}


class Args(BaseModel, extra="forbid"):
    file_path: str = Field(description="File to change: relative to the workspace, or absolute and inside it.")
    old_string: str = Field(
        description=(
            "The text to replace, as it stands in the file, indentation included; long enough to be there only once."
            " Empty to make a new file."
        )
    )
    new_string: str = Field(description="The text to put in its place; it is taken literally.")
    replace_all: bool = Field(default=False, description="Replace every occurrence of old_string, not just one.")
    strict: bool = Field(
        default=False,
        description="Only take old_string exactly; otherwise other white space around its lines is overlooked.",
    )

    @field_validator("new_string")
    @classmethod
    def _differs(cls, new: str, info: ValidationInfo) -> str:
        if info.data.get("old_string") == new:
            raise PydanticCustomError("no_change", "is the same as old_string, so there is nothing to change")
        return new


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "edit", [args.file_path])


async def run(args: Args, ctx: Context) -> Result:
    # A call that may edit the file but not read it is not shown its text.
    may_show = all(ctx.is_allowed(touching(ctx.workspace, "read", [args.file_path])))
    work = ctx.in_thread_uncancelable(lambda stop: _edit(args, ctx, may_show, stop))
    return await suggest_if_missing(args.file_path, ctx, work)


def _adapt(raw: Any) -> Any:
    """The peer's argument names."""
    return {PEER_NAMES.get(name, name): value for name, value in raw.items()} if isinstance(raw, dict) else raw


tool = typed(
    Args,
    name="edit_file",
    description=(
        "Replace text in a file. old_string has to be there exactly once, unless replace_all is set; give some lines"
        " around it to make it unique. Differences in white space are overlooked unless strict is set, and the answer"
        " says so. Line ends and indentation of the file are kept. An empty old_string makes a new file."
    ),
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    permission="edit",
    aliases=(Alias("edit", _adapt),),
    suits=lambda audience: not takes_patches(audience.model),
)


def _edit(args: Args, ctx: Context, may_show: bool, stop: Event) -> Result:
    if not args.old_string:
        return _commit(_new_file(args, ctx), None, args, ctx, stop)
    before = ctx.workspace.load(args.file_path, approved=ctx.approved)
    old = decode(before.data, args.file_path)
    try:
        made = replace(old.text, args.old_string, args.new_string, replace_all=args.replace_all, strict=args.strict)
    except EditMismatch as mismatch:
        shown = old.text if may_show else None
        raise explain_mismatch(mismatch, args.file_path, args.old_string, args.new_string, shown) from None
    name = ctx.workspace.name(args.file_path)
    draft = Draft(path=name, before=before, old=old, new=old.with_text(made.text), spans=made.spans)
    return _commit(draft, made, args, ctx, stop)


def _new_file(args: Args, ctx: Context) -> Draft:
    if ctx.workspace.stamp(args.file_path, approved=ctx.approved) is not None:
        sentence = (
            f"{args.file_path} exists already, and an empty old_string only makes new files; give the text to replace,"
            " or use write_file to replace all of it."
        )
        raise FileFailed(errno.EEXIST, args.file_path, sentence)
    return Draft(path=ctx.workspace.name(args.file_path), before=None, old=None, new=Content(args.new_string))


def _commit(draft: Draft, made: Replaced | None, args: Args, ctx: Context, stop: Event) -> Result:
    changes = draft.changes
    raise_if_canceled(stop)
    ctx.workspace.commit(changes, approved=ctx.approved)
    facts = {"strategy": made.strategy if made else None, "replacements": made.count if made else 0}
    output = _describe(made, args, is_changed=bool(changes))
    return Result(output=output, title=args.file_path, metadata=diff_facts([draft]) | facts)


def _describe(made: Replaced | None, args: Args, is_changed: bool) -> str:
    if made is None:
        return f"Edit applied successfully. {args.file_path} is new."
    if not is_changed:
        return f"{args.file_path} has this text already ({_lines(made)}); nothing was written."
    text = "Edit applied successfully."
    if made.count > 1:
        text += f" {made.count} places were changed."
    if made.strategy != EXACT:
        text += f" old_string was not found exactly: {made.strategy} matched {_lines(made)}. Check them."
    return text


def _lines(made: Replaced) -> str:
    if made.first_line == made.last_line:
        return f"line {made.first_line}"
    return f"lines {made.first_line}-{made.last_line}"
