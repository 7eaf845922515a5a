"""list_mcp_resources: what MCP servers have to read."""

from pydantic import BaseModel, Field

from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, ResourceList, typed
from app.core.util.json_codec import Raw, dumps


class Args(BaseModel, extra="forbid"):
    server: str | None = Field(default=None, description="Only the resources of this MCP server; all when left out.")
    cursor: str | None = Field(default=None, description="`nextCursor` of the page before, of the same server.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return [Need("mcp", f"{args.server or '*'}/resources")]


async def run(args: Args, ctx: Context) -> Result:
    found = await ctx.mcp_resources.resources(ctx.session, args.server, args.cursor)
    return shown(args.server, "resources", found if args.server else permitted(found, ctx))


def permitted(found: ResourceList, ctx: Context) -> ResourceList:
    """Of all servers only those that rules let the caller ask."""
    servers = sorted({item["server"] for item in found.items})
    may = dict(zip(servers, ctx.is_allowed([Need("mcp", f"{server}/resources") for server in servers]), strict=True))
    return ResourceList([item for item in found.items if may[item["server"]]], found.next_cursor)


def shown(server: str | None, kind: str, found: ResourceList) -> Result:
    """A list as the model reads it: JSON, each row with the server it is of."""
    page: Raw = {kind: found.items}
    if server is not None:
        page = {"server": server, **page}
    if found.next_cursor is not None:
        page["nextCursor"] = found.next_cursor
    title = f"{len(found.items)} of {server or 'all servers'}"
    return Result(dumps(page).decode(), title, {"count": len(found.items)}, structured=page)


tool = typed(
    Args,
    name="list_mcp_resources",
    title="List MCP resources",
    description="List what MCP servers have to read: files, database schemas, information of an application. Read one "
    "with read_mcp_resource; it may tell you what you would otherwise search the web for.",
    effect=Effect.READ,
    needs=needs,
    run=run,
    lane=Lane.NONE,
    permission="mcp",
)
