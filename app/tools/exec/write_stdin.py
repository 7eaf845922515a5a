"""write_stdin: write to a process that exec_command left running, or read its new output."""

import asyncio
import time

from pydantic import BaseModel, Field

from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.terminals import Terminal
from app.core.tools import Context, Effect, Lane, typed
from app.text.bash import interactive
from app.text.terminal_output import terminal_result

MIN_YIELD_MS, MAX_YIELD_MS = 250, 30_000
MIN_POLL_MS, MAX_POLL_MS = 5_000, 300_000
REACTION_SECONDS = 0.1
"""Time for the program to react to input before its output is collected."""
DEFAULT_TOKENS = 10_000


class Args(BaseModel, extra="forbid"):
    session_id: int = Field(description="The session ID that exec_command gave.")
    chars: str = Field(
        default="",
        description="What to type, line ends included; \\u0003 is Ctrl-C. Empty only looks for new output.",
    )
    yield_time_ms: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="Milliseconds to wait for output, 250 to 30000 after typing; 5000 to 300000 without. It answers "
        "earlier when the process ends.",
    )
    max_output_tokens: int = Field(
        default=DEFAULT_TOKENS, ge=0, description="Most tokens of output to return; of more the middle is left out."
    )

    @property
    def seconds(self) -> float:
        """How long to wait: a short time after input, longer when only polling."""
        least, most = (MIN_YIELD_MS, MAX_YIELD_MS) if self.chars else (MIN_POLL_MS, MAX_POLL_MS)
        wait = least if self.yield_time_ms is None else self.yield_time_ms
        return min(max(wait, least), most) / 1000


def needs(args: Args, scope: PathScope) -> list[Need]:
    return [Need("write_stdin", f"#{args.session_id}")]


async def run(args: Args, ctx: Context) -> Result:
    began = time.monotonic()
    terminal = ctx.terminal(args.session_id)
    if args.chars:
        await _write(args.chars, terminal, ctx)
        await asyncio.sleep(REACTION_SECONDS)
    collected = await terminal.collect(args.seconds, ctx.output)
    return terminal_result(
        collected,
        terminal=terminal.id,
        title=terminal.command,
        seconds=time.monotonic() - began,
        limit=args.max_output_tokens,
    )


tool = typed(
    Args,
    name="write_stdin",
    description="Type into a process that exec_command left running, and answer with what it wrote since it was last "
    "asked; without `chars` only the latter.",
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    lane=Lane.NONE,
    timeout=360.0,
    permission="shell",
    polls=True,
)


async def _write(chars: str, terminal: Terminal, ctx: Context) -> None:
    """Input is judged together with what was typed before it, so it is judged again if that changed meanwhile."""
    is_allowed = not terminal.takes_input
    while not is_allowed:
        before = terminal.typed
        if needs := interactive.input_needs(terminal, chars, ctx.workspace):
            await ctx.require(needs, {"terminal": terminal.id, "command": terminal.command, "chars": chars})
        is_allowed = terminal.typed == before
    await terminal.write(chars)
