"""What a tool from outside needs to run: a context whose requests really go out."""

from app.core.custom_tools import HttpDefinition
from app.core.ports import HttpRequest, HttpResponse
from app.core.tools import Context
from app.net.outbound import CheckedOutbound
from tests.support.tool_contexts import StubContext

SECRETS = {"TOKEN": "t0ken-value", "LOGIN": "user:password"}


async def here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


OUTBOUND = CheckedOutbound(
    lambda owner, name: ((), SECRETS[name]) if name in SECRETS else None,
    private_networks=["127.0.0.0/8"],
    resolve=here,
)


class OutboundContext(StubContext):
    """Sends real requests to loopback."""

    async def send(self, request: HttpRequest) -> HttpResponse:
        return await OUTBOUND.send(request, owner="anna")


def context(trace: str | None = None) -> Context:
    return OutboundContext(session_id="default", trace=trace)


def defined(**more: object) -> HttpDefinition:
    given = {"kind": "http", "name": "a_tool", "description": "Does something.", "url": "http://api.example/"}
    return HttpDefinition.model_validate(given | more)
