"""Attendants: who made a call and still waits for it, when that is somebody who can be asked things meanwhile."""

from typing import Any, Protocol

from app.core.asks import Ask


class BackChannel(Protocol):
    """The MCP client behind a call. Methods and their parameters are those of MCP."""

    def offers(self, method: str, params: dict[str, Any]) -> bool:
        """Whether it answers such requests (`sampling/createMessage`, `roots/list`)."""
        ...

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Have it answer one; raises `Declined` when it will not, or has left."""
        ...

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Tell it something (`notifications/message`); whether it hears it is not said."""
        ...

    def opened(self, ask: Ask) -> None:
        """The call, or one below it, waits for a person now. The ask is committed."""
        ...

    def ended(self, ask: Ask) -> None:
        """That ask has its end, by whomever."""
        ...
