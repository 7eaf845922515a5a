"""apply_patch: add, update, move and delete files by one patch, all of it or nothing."""

from typing import Any

from pydantic import BaseModel, Field, PrivateAttr, model_validator

from app.core.files import touching
from app.core.llm_models import takes_patches
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Alias, Context, Effect, typed
from app.text.patch.lenient import read
from app.text.patch.parse import GRAMMAR, Operation, paths_of
from app.tools.files._shared import apply_operations

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
    return await ctx.in_thread_uncancelable(lambda stop: apply_operations(args.operations, ctx, stop))


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
    suits=lambda audience: audience.model is None or takes_patches(audience.model),
)
