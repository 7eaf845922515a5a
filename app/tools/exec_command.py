"""exec_command: run a command, and if it does not end soon, let it go on in the session."""

import time
from typing import Literal

from pydantic import BaseModel, Field

from app.core.ports import Scope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, typed
from app.core.walls import Command, Window
from app.texts.chunks import answer

LEAST_YIELD, MOST_YIELD = 250, 30_000
TOKENS = 10_000


class Args(BaseModel, extra="forbid"):
    cmd: str = Field(description="The shell command to run.")
    workdir: str | None = Field(default=None, description="Folder to run it in; without it the workspace itself.")
    shell: str | None = Field(default=None, description="The shell that runs it, such as bash or zsh.")
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
    sandbox_permissions: Literal["use_default", "require_escalated"] = Field(
        default="use_default",
        description="`require_escalated` asks a person to let it run outside the sandbox; say why in `justification`.",
    )
    justification: str | None = Field(default=None, description="Why it has to run outside the sandbox, for a person.")
    prefix_rule: list[str] | None = Field(
        default=None, description="First words of commands that may always run so, as a proposal to the person."
    )


def needs(args: Args, scope: Scope) -> list[Need]:
    return [Need("shell", args.cmd)]


async def run(args: Args, ctx: Context) -> Result:
    began = time.monotonic()
    terminal = await ctx.open_terminal(await _command(args, ctx), args.cmd)
    try:
        collected = await terminal.collect(_seconds(args.yield_time_ms), ctx.output)
    except BaseException:
        await terminal.end()  # nobody was told its number
        raise
    passed = time.monotonic() - began
    return answer(collected, terminal=terminal.id, title=args.cmd, seconds=passed, limit=args.max_output_tokens)


tool = typed(
    Args,
    name="exec_command",
    description="Run a command in a shell. It answers with the output once the command has ended; if it goes on "
    "longer than `yield_time_ms`, with what there is and a session ID for write_stdin.",
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    lane=Lane.NONE,
    timeout=90.0,
    permission="shell",
    is_walled=True,
)


async def _command(args: Args, ctx: Context) -> Command:
    return Command(
        argv=(args.shell or "bash", "-lc" if args.login else "-c", args.cmd),
        folder=args.workdir or ".",
        env=await ctx.environment(),
        tty=Window() if args.tty else None,
    )


def _seconds(milliseconds: float) -> float:
    return min(max(milliseconds, LEAST_YIELD), MOST_YIELD) / 1000
