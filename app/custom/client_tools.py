"""Tools that the caller's own client runs: the line checks, records and waits; the client posts the result."""

from typing import Any

from app.core.custom_tools import ClientDefinition
from app.core.errors import ToolUnavailable
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool
from app.custom.json_schema import parser


def make(definition: ClientDefinition, owner: str | None) -> Tool:
    """The tool of a definition. What is not said to only read may write."""
    name = definition.name

    async def run(args: Any, ctx: Context) -> Result:
        raise ToolUnavailable(f"{name} is run by the client that called it, not by the service.")

    return Tool(
        name=name,
        title=definition.title or name.replace("_", " ").capitalize(),
        description=definition.description,
        schema=definition.parameters,
        parse=parser(name, definition.parameters),
        needs=_no_needs,
        run=run,
        effect=Effect(definition.effect or Effect.WRITE),
        lane=Lane.NONE,
        timeout=definition.timeout,
        source="client",
        owner=owner,
        is_client_run=True,
    )


def _no_needs(args: Any, scope: PathScope) -> list[Need]:
    """Its own name is its permission."""
    return []
