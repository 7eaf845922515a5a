"""apply_edits: apply the edits in a model's text, in one of four formats."""

from collections.abc import Sequence
from dataclasses import replace
from threading import Event
from typing import Any, Literal

from pydantic import BaseModel, Field, PrivateAttr, model_validator

from app.core.errors import EditMismatch, InvalidArgs
from app.core.files import touching
from app.core.llm_models import takes_patches
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, raise_if_canceled, typed
from app.text.edit import search_replace, udiff, whole_file
from app.text.edit.draft import Draft, changes_of, diff_facts
from app.text.edit.report import NOUNS, count, describe_failure, describe_success, error_sentence
from app.text.edit.session import Applied, Edit, EditSession, Outcome
from app.text.patch import lenient
from app.text.patch.parse import Operation, paths_of
from app.tools.files._shared import apply_operations, parent_in

Format = Literal["search_replace", "udiff", "whole", "patch"]


class Args(BaseModel, extra="forbid"):
    format: Format = Field(
        description=(
            "How `content` says what to change."
            " search_replace: the path on a line, then `<<<<<<< SEARCH`, lines of the file, `=======`, the lines that"
            " come instead, `>>>>>>> REPLACE`; an empty SEARCH makes a file or adds to its end."
            " udiff: unified diffs in ```diff fences, line numbers do not matter; `/dev/null` makes or removes a file."
            " whole: the path on a line, then all of the file in a fence."
            " patch: what apply_patch takes."
        )
    )
    content: str = Field(min_length=1, description="The text with the edits; what is written around them is ignored.")
    dry_run: bool = Field(default=False, description="Only tell what would change; nothing is written.")
    atomic: bool = Field(
        default=False, description="Write nothing unless every edit matches. Else those that match are written."
    )
    replace_all: bool = Field(
        default=False, description="Only for udiff: change every place a hunk fits. Else there must be only one."
    )
    file_path: str | None = Field(default=None, description="The file of edits that name none.")
    _edits: Sequence[Edit] = PrivateAttr(default=())
    _commands: Sequence[str] = PrivateAttr(default=())
    _operations: list[Operation] = PrivateAttr(default_factory=list)

    @model_validator(mode="after")
    def _read(self) -> "Args":
        """Parse errors are raised here, before any permission is asked for."""
        if "\0" in self.content:
            raise InvalidArgs("The content has a NUL character in it, which no text file has.")
        if self.replace_all and self.format != "udiff":
            raise InvalidArgs("replace_all goes with the format udiff only; leave it out.")
        match self.format:
            case "search_replace":
                self._edits, self._commands = search_replace.parse(self.content, self.file_path)
            case "udiff":
                self._edits = udiff.parse(self.content, self.file_path)
            case "whole":
                self._edits, self._commands = whole_file.parse(self.content, self.file_path)
            case "patch":
                self._operations = lenient.read(self.content)
        return self


def needs(args: Args, scope: PathScope) -> list[Need]:
    """A dry run only needs to read."""
    needs = touching(scope, "edit", [*(edit.path for edit in args._edits), *paths_of(args._operations)])
    if not args.dry_run:
        return needs
    return [Need("read", need.pattern) if need.permission == "edit" else need for need in needs]


async def run(args: Args, ctx: Context) -> Result:
    return await ctx.in_thread_uncancelable(lambda stop: _apply(args, ctx, stop))


tool = typed(
    Args,
    name="apply_edits",
    description=(
        "Change files by a text with edits in it: SEARCH/REPLACE blocks, unified diffs or whole files. Edits that match"
        " are written and those that do not are reported, with the lines of the file nearest to them; send only those"
        " again. Use dry_run to see the diff first."
    ),
    effect=lambda args: Effect.READ if args.dry_run else Effect.WRITE,
    needs=needs,
    run=run,
    permission="edit",
    suits=lambda audience: audience.model is None or not takes_patches(audience.model),
)


def _apply(args: Args, ctx: Context, stop: Event) -> Result:
    if args.format != "patch":
        return _edit(args, ctx, stop)
    result = apply_operations(args._operations, ctx, stop, is_dry=args.dry_run)
    return replace(result, metadata=result.metadata | {"format": "patch", "dry_run": args.dry_run})


def _edit(args: Args, ctx: Context, stop: Event) -> Result:
    session = EditSession(
        ctx.workspace.name, ctx.load_if_exists, lambda: raise_if_canceled(stop), replace_all=args.replace_all
    )
    outcomes = session.apply(args._edits)
    has_failed = not all(isinstance(outcome.end, Applied) for outcome in outcomes)
    drafts = [] if args.atomic and has_failed else session.drafts()
    changes = changes_of(drafts)
    _require_no_clash({change.path for change in changes if change.data is not None})
    facts = _facts(args, outcomes) | diff_facts(drafts)
    end = _failure(args, outcomes, session, facts) if has_failed else _success(args, outcomes, drafts, facts)
    raise_if_canceled(stop)
    if changes and not args.dry_run:
        ctx.workspace.commit(changes, approved=ctx.approved)
    if isinstance(end, EditMismatch):
        raise end
    return end


def _success(args: Args, outcomes: list[Outcome], drafts: list[Draft], facts: dict[str, Any]) -> Result:
    noun = NOUNS[args.format]
    output = describe_success(outcomes, drafts, noun, args.dry_run) + _ignored_commands(args)
    return Result(output, title=count(len(outcomes), noun), metadata=facts)


def _failure(args: Args, outcomes: list[Outcome], session: EditSession, facts: dict[str, Any]) -> EditMismatch:
    noun, how = NOUNS[args.format], {"is_dry": args.dry_run, "is_atomic": args.atomic}
    report = describe_failure(outcomes, session.files, noun, **how) + _ignored_commands(args)
    title = f"{facts['failed']} of {count(len(outcomes), noun)} failed"
    views = [_view(outcome) for outcome in outcomes]
    applied = [] if args.atomic else [view for view in views if view["strategy"] is not None]
    return EditMismatch(
        error_sentence(outcomes, noun, **how),
        details={"failed": [view for view in views if view["strategy"] is None], "applied": applied},
        result=Result(report, title=title, metadata=facts),
    )


def _require_no_clash(names: set[str]) -> None:
    """A path cannot be a file and a folder."""
    for name in sorted(names):
        if folder := parent_in(name, names):
            raise InvalidArgs(f"{folder} cannot be a file and have {name} in it; give one of them another path.")


def _facts(args: Args, outcomes: list[Outcome]) -> dict[str, Any]:
    applied = sum(isinstance(outcome.end, Applied) for outcome in outcomes)
    facts: dict[str, Any] = {
        "format": args.format,
        "dry_run": args.dry_run,
        "blocks": len(outcomes),
        "applied": 0 if args.atomic and applied < len(outcomes) else applied,
        "failed": len(outcomes) - applied,
        "edits": [_view(outcome) for outcome in outcomes],
    }
    return facts | {"shell_commands": list(args._commands)} if args._commands else facts


def _view(outcome: Outcome) -> dict[str, Any]:
    view = {"block": outcome.number, "line": outcome.edit.line, "path": outcome.end.name}
    if isinstance(outcome.end, Applied):
        meant = {"meant": outcome.end.meant} if outcome.end.meant else {}
        return view | {"strategy": outcome.end.strategy, "places": outcome.end.places} | meant
    return view | {"strategy": None, "reason": outcome.end.reason}


def _ignored_commands(args: Args) -> str:
    if not args._commands:
        return ""
    return f"\nShell commands in the text were not run ({len(args._commands)}); use a shell tool for them."
