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
from app.tools.exec.shell import ENDING, MOST_SECONDS, TIMEOUT, WORKDIR, apply_patch, carry_out, require_words

SHELLS = ("bash", "sh")
"""The first of them that is there runs the line."""


class Args(BaseModel, extra="forbid"):
    command: str = Field(description="The command line, as a shell reads it; several lines are a script.")
    workdir: str | None = Field(default=None, description=WORKDIR)
    timeout_ms: float | None = Field(default=None, gt=0, allow_inf_nan=False, description=TIMEOUT)
    login: bool = Field(default=True, description="Whether the shell reads the files of a login shell first.")
    sandbox_permissions: Permissions = None
    justification: Justification = None
    prefix_rule: PrefixRule = None

    @field_validator("command", mode="before")
    @classmethod
    def _as_line(cls, given: Any) -> Any:
        """Words instead of a line mean the line that they make."""
        is_words = isinstance(given, list) and all(isinstance(word, str) for word in given)
        return (shell_tools.script_of(given) or shlex.join(given)) if is_words else given

    def model_post_init(self, context: Any, /) -> None:
        if not self.command.strip():
            raise InvalidArgs("`command` is empty: give the line to run.")
        require_words([self.command])
        require_reason(self)

    def argv(self, shell: str = SHELLS[0]) -> list[str]:
        return [shell, "-lc" if self.login else "-c", self.command]


def needs(args: Args, scope: PathScope) -> list[Need]:
    return shell_tools.needs_of(args.argv(), args.workdir or ".", scope, args)


async def run(args: Args, ctx: Context) -> Result:
    if (patched := await apply_patch(args.argv(), args, ctx)) is not None:
        return patched
    try:
        return await carry_out(args.argv(), args, ctx, args.command)
    except FileFailed as error:
        if error.code != errno.errorcode[errno.ENOENT]:
            raise
    return await carry_out(args.argv(SHELLS[1]), args, ctx, args.command)


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
    timeout=MOST_SECONDS + ENDING,
    explains=explained,
    aliases=(Alias("bash", lambda raw: _adapted(raw)),),
)


def _adapted(raw: Any) -> Any:
    """There, the timeout has no unit in its name, and a description of the command comes along."""
    if not isinstance(raw, dict):
        return raw
    names = {"timeout": "timeout_ms"}
    return {names.get(name, name): value for name, value in raw.items() if name != "description"}
