"""exec_command: run a command; one that does not end soon keeps running in the session."""

import time
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, Field

from app.core.errors import InvalidArgs
from app.core.escalation import Justification, Permissions, PrefixRule, explained, is_escalated, require_reason
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.sandbox import PLAIN_OUTPUT_ENV, Command, ExitStatus, WindowSize
from app.core.terminals import Collected
from app.core.tools import Context, Lane, typed
from app.core.util.head_tail import encoded
from app.text.bash import interactive, shell_tools
from app.text.terminal_output import terminal_result
from app.tools.exec._shared import Workdir, require_no_nul

MIN_YIELD_MS, MAX_YIELD_MS = 250, 30_000
DEFAULT_TOKENS = 10_000
SHELLS = ("bash", "sh", "dash", "ksh", "zsh")
"""Shells whose scripts can be analyzed; the first one is the default."""


class Args(BaseModel, extra="forbid"):
    cmd: str = Field(description="The shell command to run.")
    workdir: Workdir = None
    shell: str | None = Field(default=None, description="The shell that runs it, such as bash or sh.")
    tty: bool = Field(
        default=False,
        description="Whether it gets a terminal, so that it can be typed into with write_stdin. Without one its stdin "
        "is closed.",
    )
    yield_time_ms: float = Field(
        default=10_000,
        allow_inf_nan=False,
        description="Milliseconds to wait for its end, from 250 to 30000. What runs longer goes on, and is asked "
        "after with write_stdin.",
    )
    max_output_tokens: int = Field(
        default=DEFAULT_TOKENS, ge=0, description="Most tokens of output to return; of more the middle is left out."
    )
    login: bool = Field(default=True, description="Whether the shell is a login shell.")
    sandbox_permissions: Permissions = None
    justification: Justification = None
    prefix_rule: PrefixRule = None

    def model_post_init(self, context: Any, /) -> None:
        require_no_nul([self.cmd])
        if self.shell is not None and _name(self.shell) not in SHELLS:
            raise InvalidArgs(f"`shell` can be one of {', '.join(SHELLS)}; {self.shell} is not one of them.")
        require_reason(self)

    @property
    def argv(self) -> list[str]:
        """The shell by name only: a file called bash in the workspace may be anything."""
        return [_name(self.shell or SHELLS[0]), "-lc" if self.login else "-c", self.cmd]

    @property
    def seconds(self) -> float:
        return min(max(self.yield_time_ms, MIN_YIELD_MS), MAX_YIELD_MS) / 1000


def needs(args: Args, scope: PathScope) -> list[Need]:
    if not args.cmd.strip():
        return []
    found = shell_tools.needs_of(args.argv, args.workdir or ".", scope, args)
    return interactive.terminal_needs(found, args.cmd) if args.tty else found


async def run(args: Args, ctx: Context) -> Result:
    began = time.monotonic()
    if (patch := shell_tools.patch_of(args.argv, args.workdir or ".")) is not None:
        return await _apply_patch(patch, ctx, began)
    command = Command(
        argv=tuple(args.argv),
        folder=args.workdir or ".",
        env=PLAIN_OUTPUT_ENV | await ctx.environment(),
        tty=WindowSize() if args.tty else None,
        is_escalated=is_escalated(args),
    )
    terminal = await ctx.open_terminal(command, args.cmd)
    try:
        collected = await terminal.collect(args.seconds, ctx.output)
    except BaseException:
        await terminal.end()  # the client never learned its id
        raise
    return terminal_result(
        collected,
        terminal=terminal.id,
        title=shell_tools.title_of(args.cmd),
        seconds=time.monotonic() - began,
        limit=args.max_output_tokens,
    )


tool = typed(
    Args,
    name="exec_command",
    description="Run a command in a shell. It answers with the output once the command has ended; if it goes on "
    "longer than `yield_time_ms`, with what there is and a session ID for write_stdin.",
    effect=lambda args: shell_tools.effect_of(args.argv, args),
    needs=needs,
    run=run,
    lane=Lane.NONE,
    timeout=90.0,
    permission="shell",
    explains=explained,
    is_sandboxed=True,
)


async def _apply_patch(patch: str, ctx: Context, began: float) -> Result:
    """The tool `apply_patch` does it, and the result looks like that of a program."""
    done = await ctx.call(shell_tools.APPLY_PATCH, {"input": patch})
    collected = Collected(done.output, len(encoded(done.output)), done.output.count("\n"), 0, ExitStatus(0))
    seconds = time.monotonic() - began
    result = terminal_result(collected, terminal=0, title=done.title or "", seconds=seconds, limit=DEFAULT_TOKENS)
    return replace(result, metadata=done.metadata | result.metadata, attachments=done.attachments)


def _name(shell: str) -> str:
    return shell.rpartition("/")[2]
