"""apply_edits: a model's text with edits in it, in one of the formats that models are used to."""

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
from app.text.edit.draft import Draft, changes_of, facts
from app.text.edit.report import NOUNS, counted, failure, sentence, success
from app.text.edit.session import Applied, Edit, EditSession, Outcome
from app.text.patch import lenient
from app.text.patch.parse import Operation, paths_of
from app.tools.files import apply_patch

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
        """What cannot be read is refused here, before anybody is asked for anything."""
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
    """Who only looks needs no more than to read."""
    wanted = touching(scope, "edit", [*(edit.path for edit in args._edits), *paths_of(args._operations)])
    if not args.dry_run:
        return wanted
    return [Need("read", need.pattern) if need.permission == "edit" else need for need in wanted]


async def run(args: Args, ctx: Context) -> Result:
    return await ctx.in_thread_uncancelable(lambda stop: _apply(args, ctx, stop))


tool = typed(
    Args,
    name="apply_edits",
    description=(
        "Change files by a text with edits in it: SEARCH/REPLACE blocks, unified diffs or whole files. Edits that match"
        " are written and those that do not are told, with the lines of the file nearest to them; send only those"
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
    result = apply_patch.patched(args._operations, ctx, stop, is_dry=args.dry_run)
    return replace(result, metadata=result.metadata | {"format": "patch", "dry_run": args.dry_run})


def _edit(args: Args, ctx: Context, stop: Event) -> Result:
    desk = EditSession(ctx.workspace.name, ctx.load_if_exists, lambda: raise_if_canceled(stop), every=args.replace_all)
    outcomes = desk.make(args._edits)
    has_failed = not all(isinstance(outcome.end, Applied) for outcome in outcomes)
    drafts = [] if args.atomic and has_failed else desk.drafts()
    changes = changes_of(drafts)
    _require_no_clash({change.path for change in changes if change.data is not None})
    about = _about(args, outcomes) | facts(drafts)
    end = _failed(args, outcomes, desk, about) if has_failed else _done(args, outcomes, drafts, about)
    raise_if_canceled(stop)
    if changes and not args.dry_run:
        ctx.workspace.commit(changes, approved=ctx.approved)
    if isinstance(end, EditMismatch):
        raise end
    return end


def _done(args: Args, outcomes: list[Outcome], drafts: list[Draft], about: dict[str, Any]) -> Result:
    noun = NOUNS[args.format]
    output = success(outcomes, drafts, noun, args.dry_run) + _ignored(args)
    return Result(output, title=counted(len(outcomes), noun), metadata=about)


def _failed(args: Args, outcomes: list[Outcome], desk: EditSession, about: dict[str, Any]) -> EditMismatch:
    noun, how = NOUNS[args.format], {"is_dry": args.dry_run, "is_atomic": args.atomic}
    report = failure(outcomes, desk.sheets, noun, **how) + _ignored(args)
    title = f"{about['failed']} of {counted(len(outcomes), noun)} failed"
    return EditMismatch(
        sentence(outcomes, noun, **how),
        details=_details(outcomes, args.atomic),
        result=Result(report, title=title, metadata=about),
    )


def _require_no_clash(names: set[str]) -> None:
    """What is made as a file cannot have files in it."""
    for name in sorted(names):
        folder = name
        while folder := folder.rpartition("/")[0]:
            if folder in names:
                raise InvalidArgs(f"{folder} cannot be a file and have {name} in it; give one of them another path.")


def _about(args: Args, outcomes: list[Outcome]) -> dict[str, Any]:
    made = sum(isinstance(outcome.end, Applied) for outcome in outcomes)
    about: dict[str, Any] = {
        "format": args.format,
        "dry_run": args.dry_run,
        "blocks": len(outcomes),
        "applied": 0 if args.atomic and made < len(outcomes) else made,
        "failed": len(outcomes) - made,
        "edits": [_view(outcome) for outcome in outcomes],
    }
    return about | {"shell_commands": list(args._commands)} if args._commands else about


def _view(outcome: Outcome) -> dict[str, Any]:
    view = {"block": outcome.number, "line": outcome.edit.line, "path": outcome.end.name}
    if isinstance(outcome.end, Applied):
        meant = {"meant": outcome.end.meant} if outcome.end.meant else {}
        return view | {"strategy": outcome.end.strategy, "places": outcome.end.places} | meant
    return view | {"strategy": None, "reason": outcome.end.reason}


def _details(outcomes: list[Outcome], is_atomic: bool) -> dict[str, Any]:
    """Which failed, and which were made or would be; where one fails them all, none was."""
    views = [_view(outcome) for outcome in outcomes]
    made = [] if is_atomic else [view for view in views if view["strategy"] is not None]
    return {"failed": [view for view in views if view["strategy"] is None], "applied": made}


def _ignored(args: Args) -> str:
    if not args._commands:
        return ""
    return f"\nShell commands in the text were not run ({len(args._commands)}); use a shell tool for them."
