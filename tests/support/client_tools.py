"""Toys with a tool that the caller's client runs."""

from typing import Any

from app.core.custom_tools import ClientDefinition
from app.core.tools import Tool
from app.custom import client_tools
from tests.support.toy_tools import Toys

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
OSLO = {"city": "Oslo"}


def client_tool(name: str = "get_weather", timeout: float = 300) -> Tool:
    definition = ClientDefinition(
        kind="client", name=name, description="Ask the sky.", parameters=SCHEMA, timeout=timeout
    )
    return client_tools.make(definition, None)


class ClientToys(Toys):
    """The toys and what clients run; a test that wants a tool to be gone takes it out."""

    def __init__(self) -> None:
        super().__init__()
        self.clients = [client_tool(), client_tool("get_soon", 0.05)]

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (*super().tools, *self.clients)
