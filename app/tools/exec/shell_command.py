"""shell_command: run a command line in a shell."""

import errno
import shlex
from typing import Any

from pydantic import BaseModel, Field, field_validator

from app.core.errors import FileFailed, InvalidArgs
from app.core.escalation import Justification, Permissions, PrefixRule, explained, require_reason
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Alias, Context, typed
from app.text.bash import shell_tools
from app.tools.exec._shared import (
    TOOL_SECONDS,
    TimeoutMs,
    Workdir,
    apply_patch_command,
    require_no_nul,
    run_command,
)

SHELLS = ("bash", "sh")
"""The first of these that is installed runs the line."""


class Args(BaseModel, extra="forbid"):
    command: str = Field(description="The command line, as a shell reads it; several lines are a script.")
    workdir: Workdir = None
    timeout_ms: TimeoutMs = None
    login: bool = Field(default=True, description="Whether the shell reads the files of a login shell first.")
    sandbox_permissions: Permissions = None
    justification: Justification = None
    prefix_rule: PrefixRule = None

    @field_validator("command", mode="before")
    @classmethod
    def _to_line(cls, command: Any) -> Any:
        """An argv instead of a line: the script of the shell it names, or its words quoted."""
        is_argv = isinstance(command, list) and all(isinstance(word, str) for word in command)
        return (shell_tools.script_of(command) or shlex.join(command)) if is_argv else command

    def model_post_init(self, context: Any, /) -> None:
        if not self.command.strip():
            raise InvalidArgs("`command` is empty: give the line to run.")
        require_no_nul([self.command])
        require_reason(self)

    def argv(self, shell: str = SHELLS[0]) -> list[str]:
        return [shell, "-lc" if self.login else "-c", self.command]


def needs(args: Args, scope: PathScope) -> list[Need]:
    return shell_tools.needs_of(args.argv(), args.workdir or ".", scope, args)


async def run(args: Args, ctx: Context) -> Result:
    if (patched := await apply_patch_command(args.argv(), args, ctx)) is not None:
        return patched
    try:
        return await run_command(args.argv(), args, ctx, args.command)
    except FileFailed as error:
        if error.code != errno.errorcode[errno.ENOENT]:
            raise
    return await run_command(args.argv(SHELLS[1]), args, ctx, args.command)


def _adapt(raw: Any) -> Any:
    """The peer's `timeout` has no unit in its name, and its `description` is not used here."""
    if not isinstance(raw, dict):
        return raw
    names = {"timeout": "timeout_ms"}
    return {names.get(name, name): value for name, value in raw.items() if name != "description"}


tool = typed(
    Args,
    name="shell_command",
    description=(
        "Run a command line in a shell and answer with its exit code and what it wrote. Set `workdir` instead of using"
        " `cd`. It reads no input, and nothing of it goes on when the call has ended."
    ),
    effect=lambda args: shell_tools.effect_of(args.argv(), args),
    needs=needs,
    run=run,
    permission="shell",
    is_sandboxed=True,
    timeout=TOOL_SECONDS,
    explains=explained,
    aliases=(Alias("bash", _adapt),),
)
