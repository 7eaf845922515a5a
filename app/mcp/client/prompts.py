"""Prompts: one of a server filled in, as a call: so that rules count, what the server asks belongs to somebody, and
there is a record of it. No model hears of the tool."""

from pydantic import BaseModel, Field

from app.core.ports import PathScope
from app.core.results import Result, Truncation
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool, typed
from app.core.util.json_codec import dumps

PROMPT = "mcp_prompt"
WHOLE = Truncation(1 << 62)
"""A part of it would be of no use to anybody."""


class Args(BaseModel, extra="forbid"):
    server: str = Field(min_length=1, description="The MCP server that has it.")
    name: str = Field(min_length=1, description="The prompt, as the server calls it.")
    arguments: dict[str, str] = Field(default={}, description="Values by the names of its arguments.")


def make() -> Tool:
    return typed(
        Args,
        name=PROMPT,
        title="MCP prompt",
        description="Has an MCP server fill in one of its prompts.",
        effect=Effect.READ,
        needs=_needs,
        run=_run,
        lane=Lane.NONE,
        permission="mcp",
        truncation=WHOLE,
        is_listed=False,
    )


def _needs(args: Args, scope: PathScope) -> list[Need]:
    return [Need("mcp", f"{args.server}/prompt:{args.name}")]


async def _run(args: Args, ctx: Context) -> Result:
    answer = await ctx.mcp_resources.prompt(ctx.session, args.server, args.name, args.arguments, ctx)
    return Result(dumps(answer).decode(), args.name)
