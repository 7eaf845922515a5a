"""The MCP client that waits for a call and can be sent requests meanwhile."""

from typing import Any, Protocol

from app.core.asks import Ask


class BackChannel(Protocol):
    """The MCP client behind a call. Methods and their parameters are those of MCP."""

    def offers(self, method: str, params: dict[str, Any]) -> bool:
        """Whether it answers such requests (`sampling/createMessage`, `roots/list`)."""
        ...

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send it a request; raises `Declined` when it refuses or has disconnected."""
        ...

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send it a notification (`notifications/message`), without an acknowledgement."""
        ...

    def opened(self, ask: Ask) -> None:
        """The call, or a child of it, waits for a person. The ask is committed."""
        ...

    def ended(self, ask: Ask) -> None:
        """The ask has ended."""
        ...
