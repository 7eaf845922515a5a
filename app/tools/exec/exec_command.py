"""exec_command: run a command, and if it does not end soon, let it go on in the session."""

import time
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, Field

from app.core.errors import InvalidArgs
from app.core.escalation import Justification, Permissions, PrefixRule, explained, is_escalated, require_reason
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.sandbox import Command, ExitStatus, WindowSize
from app.core.terminals import Collected
from app.core.tools import Context, Lane, typed
from app.core.util.head_tail import encoded
from app.text.bash import interactive, shell_tools
from app.text.terminal_output import answer
from app.tools.exec.shell import WORKDIR, require_words

LEAST_YIELD, MOST_YIELD = 250, 30_000
TOKENS = 10_000
SHELLS = ("bash", "sh", "dash", "ksh", "zsh")
"""What may run a line, because what they run can be read before. The first of them does when none is asked for."""


class Args(BaseModel, extra="forbid"):
    cmd: str = Field(description="The shell command to run.")
    workdir: str | None = Field(default=None, description=WORKDIR)
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
        default=TOKENS, ge=0, description="Most tokens of output to return; of more the middle is left out."
    )
    login: bool = Field(default=True, description="Whether the shell is a login shell.")
    sandbox_permissions: Permissions = None
    justification: Justification = None
    prefix_rule: PrefixRule = None

    def model_post_init(self, context: Any, /) -> None:
        require_words([self.cmd])
        if self.shell is not None and _name(self.shell) not in SHELLS:
            raise InvalidArgs(f"`shell` can be one of {', '.join(SHELLS)}; {self.shell} is none of them.")
        require_reason(self)

    @property
    def argv(self) -> list[str]:
        """A shell is named, never pointed at: what a workspace calls bash need not be one."""
        return [_name(self.shell or SHELLS[0]), "-lc" if self.login else "-c", self.cmd]

    @property
    def seconds(self) -> float:
        return min(max(self.yield_time_ms, LEAST_YIELD), MOST_YIELD) / 1000


def needs(args: Args, scope: PathScope) -> list[Need]:
    if not args.cmd.strip():
        return []
    found = shell_tools.needs_of(args.argv, args.workdir or ".", scope, args)
    return interactive.opening(found, args.cmd) if args.tty else found


async def run(args: Args, ctx: Context) -> Result:
    began = time.monotonic()
    if (patch := shell_tools.patch_of(args.argv, args.workdir or ".")) is not None:
        return await _patched(patch, ctx, began)
    terminal = await ctx.open_terminal(await _command(args, ctx), args.cmd)
    try:
        collected = await terminal.collect(args.seconds, ctx.output)
    except BaseException:
        await terminal.end()  # nobody was told its number
        raise
    passed = time.monotonic() - began
    return answer(
        collected,
        terminal=terminal.id,
        title=shell_tools.title_of(args.cmd),
        seconds=passed,
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


async def _patched(patch: str, ctx: Context, began: float) -> Result:
    """The tool does it, and it is told as if a program had."""
    done = await ctx.call(shell_tools.PATCHING, {"input": patch})
    collected = Collected(done.output, len(encoded(done.output)), done.output.count("\n"), 0, ExitStatus(0))
    told = answer(collected, terminal=0, title=done.title or "", seconds=time.monotonic() - began, limit=TOKENS)
    return replace(told, metadata=done.metadata | told.metadata, attachments=done.attachments)


async def _command(args: Args, ctx: Context) -> Command:
    return Command(
        argv=tuple(args.argv),
        folder=args.workdir or ".",
        env=shell_tools.PLAIN | await ctx.environment(),
        tty=WindowSize() if args.tty else None,
        is_escalated=is_escalated(args),
    )


def _name(shell: str) -> str:
    return shell.rpartition("/")[2]
