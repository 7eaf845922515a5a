"""What the exec tools share: running a command, applying a patch sent as a command, resetting an interpreter."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Protocol

from pydantic import BaseModel, Field

from app.core.errors import InvalidArgs
from app.core.escalation import Escalating, is_escalated
from app.core.ports import PathScope
from app.core.process_runner import TimeLimits, run_program
from app.core.results import Result
from app.core.rules import Need
from app.core.sandbox import Command
from app.core.tools import Context, Effect, Lane, Tool, typed
from app.core.util.head_tail import SIZE_FIELDS
from app.text.bash import shell_tools

DEFAULT_SECONDS = 120.0
MAX_SECONDS = 3600.0
TOOL_SECONDS = MAX_SECONDS + 60.0
"""The tool's own time limit is longer, so that a program is stopped by its `timeout_ms` and the result says so."""

Workdir = Annotated[
    str | None,
    Field(
        description="Folder to run it in: relative to the workspace, or absolute and inside it; the workspace when"
        " left out."
    ),
]
TimeoutMs = Annotated[
    float | None,
    Field(
        gt=0,
        allow_inf_nan=False,
        description="Milliseconds after which it is stopped: 120000 when left out, at most 3600000.",
    ),
]


class CommandArgs(Escalating, Protocol):
    """What the arguments of `shell` and `shell_command` have in common."""

    workdir: str | None
    timeout_ms: float | None


async def run_command(argv: Sequence[str], args: CommandArgs, ctx: Context, line: str) -> Result:
    """Run it in the session's sandbox, or outside it if that was approved."""
    command = Command(
        argv=tuple(argv),
        folder=args.workdir or ".",
        env=await ctx.environment(),
        is_escalated=is_escalated(args),
    )
    seconds = DEFAULT_SECONDS if args.timeout_ms is None else min(args.timeout_ms / 1000, MAX_SECONDS)
    limits = TimeLimits(seconds=seconds, silence=ctx.extra.get("silence"))
    return await run_program(ctx, command, limits, shell_tools.title_of(line))


async def apply_patch_command(argv: Sequence[str], args: CommandArgs, ctx: Context) -> Result | None:
    """If the command is only a patch, call the tool `apply_patch`, which asks for its own permissions; else None."""
    patch = shell_tools.patch_of(argv, args.workdir or ".")
    if patch is None:
        return None
    began = time.monotonic()
    result = await ctx.call(shell_tools.APPLY_PATCH, {"input": patch})
    metadata = {name: value for name, value in result.metadata.items() if name not in SIZE_FIELDS}
    return replace(
        result,
        output=f"Exit code: 0\nWall time: {time.monotonic() - began:.1f} seconds\nOutput:\n{result.output}",
        metadata=metadata | {"exit_code": 0},
        structured={"stdout": result.output, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
    )


def require_no_nul(words: Sequence[str]) -> None:
    if any("\0" in word for word in words):
        raise InvalidArgs("`command` contains a NUL character, which cannot be passed to a program.")


class NoArgs(BaseModel, extra="forbid"):
    pass


def reset_tool(permission: str, kernel: str, *, title: str, description: str) -> Tool:
    """The tool `{permission}_reset`, which ends the session's interpreter of this kind."""

    def needs(args: NoArgs, scope: PathScope) -> list[Need]:
        return [Need(permission, "*")]

    async def run(args: NoArgs, ctx: Context) -> Result:
        was_running = await ctx.drop_kernel(kernel)
        return Result(output=f"{permission} kernel reset", title="reset", metadata={"was_running": was_running})

    return typed(
        NoArgs,
        name=f"{permission}_reset",
        title=title,
        description=description,
        effect=Effect.WRITE,
        needs=needs,
        run=run,
        lane=Lane.SESSION,
        permission=permission,
        is_sandboxed=True,
    )
