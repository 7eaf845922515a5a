"""A server made with the SDK whose tool asks a person in the middle of its work, as one does in the older era."""

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

server = MCPServer("asking", log_level="ERROR")


class Who(BaseModel):
    name: str


@server.tool()
async def greet(ctx: Context) -> str:
    """Greet whoever is there."""
    answer = await ctx.elicit("Who is there?", Who)
    return f"Hello, {answer.data.name}." if answer.action == "accept" else "Hello."


if __name__ == "__main__":
    server.run("stdio")
