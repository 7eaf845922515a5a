"""What a tool from outside needs to run: a context whose requests really go out."""

from typing import cast

from app.core.context import Line
from app.core.custom_tools import HttpDefinition
from app.core.ports import HttpRequest, HttpResponse, Workspace
from app.core.tools import Context
from app.net.outbound import CheckedOutbound

SECRETS = {"TOKEN": "t0ken-value", "LOGIN": "user:password"}


async def here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


class WireLine:
    """Of the line only the wire out."""

    def __init__(self) -> None:
        self._out = CheckedOutbound(
            lambda owner, name: ((), SECRETS[name]) if name in SECRETS else None,
            private_networks=["127.0.0.0/8"],
            resolve=here,
        )

    async def send(self, request: HttpRequest) -> HttpResponse:
        return await self._out.send(request, owner="anna")


def context(trace: str | None = None) -> Context:
    return Context(
        id="call_1",
        session_id="default",
        workspace=cast(Workspace, None),
        line=cast(Line, WireLine()),
        trace=trace,
    )


def defined(**more: object) -> HttpDefinition:
    given = {"kind": "http", "name": "a_tool", "description": "Does something.", "url": "http://api.example/"}
    return HttpDefinition.model_validate(given | more)
