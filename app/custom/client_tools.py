"""Tools that the client runs: the service checks and records the call and waits; the client posts the result."""

from typing import Any

from app.core.custom_tools import ClientDefinition
from app.core.errors import ToolUnavailable
from app.core.results import Result
from app.core.tools import Context, Effect, Lane, Tool
from app.custom.json_schema import make_parser


def make(definition: ClientDefinition, owner: str | None) -> Tool:
    """The tool of a definition. Without a declared effect it may write."""
    name = definition.name

    async def run(args: Any, ctx: Context) -> Result:
        raise ToolUnavailable(f"{name} is run by the client that called it, not by the service.")

    return Tool(
        name=name,
        title=definition.title or name.replace("_", " ").capitalize(),
        description=definition.description,
        schema=definition.parameters,
        parse=make_parser(name, definition.parameters),
        needs=lambda args, scope: [],  # its own name is its permission
        run=run,
        effect=Effect(definition.effect or Effect.WRITE),
        lane=Lane.NONE,
        timeout=definition.timeout,
        source="client",
        owner=owner,
        is_client_run=True,
    )
