"""tool_search: find tools by what they do, when there are too many to list."""

import re

from pydantic import BaseModel, Field

from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Alias, Context, Effect, Lane, typed
from app.text import bm25

NAME = "tool_search"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")


class Args(BaseModel, extra="forbid"):
    query: str = Field(min_length=1, description="What the tool should do, in a few words.")
    limit: int = Field(default=8, ge=1, le=50, description="Most tools to name.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return []


async def run(args: Args, ctx: Context) -> Result:
    known = [tool.view() for tool in ctx.tools() if tool.name != NAME]
    found = bm25.rank(args.query, known)[: args.limit]
    lines = [f"{tool['name']}: {_first_sentence(tool['description'])}" for tool in found]
    return Result(
        output="\n".join(lines) or f"No tool fits {args.query!r}; try other words.",
        title=f"{len(found)} of {len(known)} tools",
        metadata={"count": len(found), "tools": [tool["name"] for tool in found]},
        structured={"tools": found},
    )


def _first_sentence(description: str) -> str:
    return _SENTENCE_END.split(description.strip(), maxsplit=1)[0]


tool = typed(
    Args,
    name=NAME,
    description="Find tools by what they do. Answers with `name: description` of those that fit best, which can then "
    "be called by name.",
    effect=Effect.READ,
    needs=needs,
    run=run,
    lane=Lane.NONE,
    aliases=(Alias("search_tool_bm25"),),
)
