"""list_mcp_resource_templates: what MCP servers have to read, by addresses with gaps to fill in."""

from pydantic import BaseModel, Field

from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, typed
from app.tools.list_mcp_resources import permitted, shown


class Args(BaseModel, extra="forbid"):
    server: str | None = Field(default=None, description="Only the templates of this MCP server; all when left out.")
    cursor: str | None = Field(default=None, description="`nextCursor` of the page before, of the same server.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return [Need("mcp", f"{args.server or '*'}/resources")]


async def run(args: Args, ctx: Context) -> Result:
    found = await ctx.mcp_resources.templates(ctx.session, args.server, args.cursor)
    return shown(args.server, "resourceTemplates", found if args.server else permitted(found, ctx))


tool = typed(
    Args,
    name="list_mcp_resource_templates",
    title="List MCP resource templates",
    description="List the templates of what MCP servers have to read: addresses with parameters. Fill those in, and "
    "read the address with read_mcp_resource.",
    effect=Effect.READ,
    needs=needs,
    run=run,
    lane=Lane.NONE,
    permission="mcp",
)
