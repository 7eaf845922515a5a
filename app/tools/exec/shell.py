"""shell: run a program with its arguments, as the system call takes them."""

import shlex
from typing import Any

from pydantic import BaseModel, Field, field_validator

from app.core.errors import InvalidArgs
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

PEER_NAMES = {"cmd": "command", "working_directory": "workdir", "timeout": "timeout_ms"}


class Args(BaseModel, extra="forbid"):
    command: list[str] = Field(description='The program and its arguments, such as ["bash", "-lc", "ls | wc -l"].')
    workdir: Workdir = None
    timeout_ms: TimeoutMs = None
    sandbox_permissions: Permissions = None
    justification: Justification = None
    prefix_rule: PrefixRule = None

    @field_validator("command", mode="before")
    @classmethod
    def _to_argv(cls, command: Any) -> Any:
        """A command line instead of words is for a shell."""
        return ["bash", "-lc", command] if isinstance(command, str) and command.strip() else command

    def model_post_init(self, context: Any, /) -> None:
        if not self.command or not self.command[0].strip():
            raise InvalidArgs('`command` is empty: give the program and its arguments, such as ["ls", "-l"].')
        require_no_nul(self.command)
        require_reason(self)


def needs(args: Args, scope: PathScope) -> list[Need]:
    return shell_tools.needs_of(args.command, args.workdir or ".", scope, args)


async def run(args: Args, ctx: Context) -> Result:
    patched = await apply_patch_command(args.command, args, ctx)
    return patched or await run_command(args.command, args, ctx, shlex.join(args.command))


def _adapt(raw: Any) -> Any:
    """The argument names of hosted containers and of the older local shell."""
    return {PEER_NAMES.get(name, name): value for name, value in raw.items()} if isinstance(raw, dict) else raw


tool = typed(
    Args,
    name="shell",
    description=(
        "Run a program and answer with its exit code and what it wrote. The words of `command` go to the program as"
        ' they are: what needs a shell (pipes, redirects, variables, `&&`) is ["bash", "-lc", "..."]. Set `workdir`'
        " instead of using `cd`. It reads no input, and nothing of it goes on when the call has ended."
    ),
    effect=lambda args: shell_tools.effect_of(args.command, args),
    needs=needs,
    run=run,
    permission="shell",
    is_sandboxed=True,
    timeout=TOOL_SECONDS,
    explains=explained,
    aliases=(Alias("container.exec", _adapt), Alias("local_shell", _adapt)),
)
