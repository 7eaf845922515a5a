"""shell: run a program with its arguments, as the system call takes them."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from pydantic import BaseModel, Field, field_validator

from app.core.errors import InvalidArgs
from app.core.escalation import Escalating, Justification, Permissions, PrefixRule, explained, is_escalated
from app.core.escalation import require_reason as require_escalation_reason
from app.core.ports import PathScope
from app.core.process_runner import TimeLimits, run_program
from app.core.results import Result
from app.core.rules import Need
from app.core.sandbox import Command
from app.core.tools import Alias, Context, typed
from app.text.bash import shell_tools

SECONDS = 120.0
MOST_SECONDS = 3600.0
ENDING = 60.0
"""What the line gives the tool on top, so that a program is stopped by its own time limit and can be told so."""
SIZES = ("truncated", "original_size", "truncated_size")
WORKDIR = "Folder to run it in: relative to the workspace, or absolute and inside it; the workspace when left out."
TIMEOUT = "Milliseconds after which it is stopped: 120000 when left out, at most 3600000."


class Args(BaseModel, extra="forbid"):
    command: list[str] = Field(description='The program and its arguments, such as ["bash", "-lc", "ls | wc -l"].')
    workdir: str | None = Field(default=None, description=WORKDIR)
    timeout_ms: float | None = Field(default=None, gt=0, allow_inf_nan=False, description=TIMEOUT)
    sandbox_permissions: Permissions = None
    justification: Justification = None
    prefix_rule: PrefixRule = None

    @field_validator("command", mode="before")
    @classmethod
    def _as_words(cls, given: Any) -> Any:
        """A line instead of words is what a shell reads."""
        return ["bash", "-lc", given] if isinstance(given, str) and given.strip() else given

    def model_post_init(self, context: Any, /) -> None:
        if not self.command or not self.command[0].strip():
            raise InvalidArgs('`command` is empty: give the program and its arguments, such as ["ls", "-l"].')
        require_words(self.command)
        require_escalation_reason(self)


def needs(args: Args, scope: PathScope) -> list[Need]:
    return shell_tools.needs_of(args.command, args.workdir or ".", scope, args)


async def run(args: Args, ctx: Context) -> Result:
    patched = await apply_patch(args.command, args, ctx)
    return patched or await carry_out(args.command, args, ctx, shlex.join(args.command))


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
    timeout=MOST_SECONDS + ENDING,
    explains=explained,
    aliases=(Alias("container.exec", lambda raw: _adapted(raw)), Alias("local_shell", lambda raw: _adapted(raw))),
)


class Running(Escalating, Protocol):
    """What the arguments of tools that run something have in common."""

    workdir: str | None
    timeout_ms: float | None


async def carry_out(argv: Sequence[str], args: Running, ctx: Context, line: str) -> Result:
    """Run it behind the session's walls, or without them if that was allowed."""
    command = Command(
        argv=tuple(argv),
        folder=args.workdir or ".",
        env=await ctx.environment(),
        is_escalated=is_escalated(args),
    )
    seconds = SECONDS if args.timeout_ms is None else min(args.timeout_ms / 1000, MOST_SECONDS)
    limits = TimeLimits(seconds=seconds, silence=ctx.extra.get("silence"))
    return await run_program(ctx, command, limits, shell_tools.title_of(line))


async def apply_patch(argv: Sequence[str], args: Running, ctx: Context) -> Result | None:
    """Let the tool do it when the line is nothing but a patch; it asks for what it needs by itself."""
    patch = shell_tools.patch_of(argv, args.workdir or ".")
    if patch is None:
        return None
    begun = time.monotonic()
    done = await ctx.call(shell_tools.PATCHING, {"input": patch})
    metadata = {name: value for name, value in done.metadata.items() if name not in SIZES}
    return replace(
        done,
        output=f"Exit code: 0\nWall time: {time.monotonic() - begun:.1f} seconds\nOutput:\n{done.output}",
        metadata=metadata | {"exit_code": 0},
        structured={"stdout": done.output, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
    )


def require_words(words: Sequence[str]) -> None:
    if any("\0" in word for word in words):
        raise InvalidArgs("`command` has a NUL character in it, which no program can be given.")


def _adapted(raw: Any) -> Any:
    """The names that hosted containers and the older local shell know the same by."""
    if not isinstance(raw, dict):
        return raw
    names = {"cmd": "command", "working_directory": "workdir", "timeout": "timeout_ms"}
    return {names.get(name, name): value for name, value in raw.items()}
