"""apply_patch: add, change, move and delete files by one patch, all of it or nothing."""

from threading import Event
from typing import Any

from pydantic import BaseModel, Field, PrivateAttr, model_validator

from app.core.files import touching
from app.core.llm_models import takes_patches
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Alias, Audience, Context, Effect, raise_if_canceled, typed
from app.text.edit.draft import changes_of, facts
from app.text.patch.apply import StagedFiles
from app.text.patch.lenient import read
from app.text.patch.parse import GRAMMAR, Add, Delete, Operation, Update, paths_of

SUCCESS = "Success. Updated the following files:"
DESCRIPTION = """\
Change files by a patch: add, update, move and delete as many as needed at once. If one part does not fit, nothing is \
changed. The text is

*** Begin Patch
*** Add File: path/new.txt
+each line of the new file after a plus
*** Update File: path/old.py
*** Move to: path/renamed.py
@@ class Shop
@@     def price(self):
 a line that stays, after a space
-a line that goes, after a minus
+a line that comes, after a plus
 another line that stays
*** Delete File: path/gone.txt
*** End Patch

Move to is left out when the file keeps its place. An update has one hunk or more, in the order of the file, each \
beginning with @@. Show about three lines that stay before and after each change, exactly as they are in the file; \
where that is not enough to tell the place, name lines before it in @@ headers, the outermost first. `*** End of File` \
after a hunk says that it stands at the end. Line numbers are not used. Paths start in the workspace."""


class Args(BaseModel, extra="forbid"):
    input: str = Field(description="The whole patch, from `*** Begin Patch` to `*** End Patch`.")
    _operations: list[Operation] = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, raw: Any) -> Any:
        return {"input": raw} if isinstance(raw, str) else raw

    def model_post_init(self, context: Any, /) -> None:
        self._operations = read(self.input)

    @property
    def operations(self) -> list[Operation]:
        return self._operations


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "edit", paths_of(args.operations))


async def run(args: Args, ctx: Context) -> Result:
    return await ctx.in_thread_uncancelable(lambda stop: patched(args.operations, ctx, stop))


def _suits(audience: Audience) -> bool:
    return audience.model is None or takes_patches(audience.model)


tool = typed(
    Args,
    name="apply_patch",
    description=DESCRIPTION,
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    takes="input",
    grammar=GRAMMAR,
    permission="edit",
    aliases=(Alias("patch"),),
    suits=_suits,
)


def patched(operations: list[Operation], ctx: Context, stop: Event, *, is_dry: bool = False) -> Result:
    """Everything is made ready first; only then the files are touched, all of them or none. Dry, none are."""
    stage = StagedFiles(ctx.load_if_exists)
    for operation in operations:
        raise_if_canceled(stop)
        _do(operation, stage, ctx)
    drafts = stage.drafts()
    about = facts(drafts)
    raise_if_canceled(stop)
    if not is_dry:
        ctx.workspace.commit(changes_of(drafts), approved=ctx.approved)
    touched = [_told(operation) for operation in operations]
    return Result(output=_told_of(touched, is_dry), title=_title(touched), metadata=about)


def _do(operation: Operation, stage: StagedFiles, ctx: Context) -> None:
    path = operation.path
    name = ctx.workspace.name(path)
    match operation:
        case Add(lines=lines):
            stage.add(name, path, "".join(f"{line}\n" for line in lines))
        case Delete():
            stage.delete(name, path)
        case Update(hunks=hunks, move_to=target):
            stage.update(name, path, hunks)
            if target is not None:
                stage.move(name, path, ctx.workspace.name(target), target)


def _told(operation: Operation) -> tuple[str, str]:
    """How an operation is told, and of which path."""
    match operation:
        case Add(path=path):
            return "A", path
        case Delete(path=path):
            return "D", path
        case Update(path=path, move_to=target):
            return "M", target or path


def _told_of(touched: list[tuple[str, str]], is_dry: bool) -> str:
    head = "The patch fits, and would update the following files:" if is_dry else SUCCESS
    lines = [f"{kind} {path}" for wanted in "AMD" for kind, path in touched if kind == wanted]
    return "\n".join([head, *lines]) + "\n"


def _title(touched: list[tuple[str, str]]) -> str:
    paths = dict.fromkeys(path for _, path in touched)
    return next(iter(paths)) if len(paths) == 1 else f"{len(paths)} files"
