"""write_file: create or replace one whole file."""

from typing import Any

from pydantic import BaseModel, Field, ModelWrapValidatorHandler, model_validator

from app.core.llm_models import takes_patches
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Alias, Context, Effect, typed
from app.tools.files import write_files
from app.tools.files._shared import File, write_needs
from app.tools.files._shared import write_files as write


class Args(BaseModel, extra="forbid"):
    file_path: str = Field(description="File to make or replace: relative to the workspace, or absolute and inside it.")
    content: str = Field(description="The whole text of the file.")

    @property
    def files(self) -> list[File]:
        return [File(path=self.file_path, content=self.content)]

    @model_validator(mode="wrap")
    @classmethod
    def _accept_files(cls, raw: Any, handler: ModelWrapValidatorHandler["Args"]) -> Any:
        """Some models send the arguments of write_files to this tool."""
        is_many = isinstance(raw, dict) and "files" in raw and "file_path" not in raw
        return write_files.Args.model_validate(raw) if is_many else handler(raw)


def needs(args: Args | write_files.Args, scope: PathScope) -> list[Need]:
    return write_needs(args.files, scope)


async def run(args: Args | write_files.Args, ctx: Context) -> Result:
    return await ctx.in_thread_uncancelable(lambda stop: write(args.files, ctx, stop))


def _adapt(raw: Any) -> Any:
    """The peer's argument names."""
    if not isinstance(raw, dict):
        return raw
    return {"file_path" if name == "filePath" else name: value for name, value in raw.items()}


tool = typed(
    Args,
    name="write_file",
    description=(
        "Create a file, or replace all of its text. Folders are made where they are missing. To change a part of a"
        " file, use edit_file."
    ),
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    permission="edit",
    aliases=(Alias("write", _adapt),),
    suits=lambda audience: not takes_patches(audience.model),
)
