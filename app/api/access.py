"""Access: who is asking, and may they. Answers of 401 and 403 tell nothing more."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.requests import Request
from starlette.types import Scope

from app.api.problems import Problem, forbidden
from app.api.readiness import Readiness
from app.api.streams import StreamSlots
from app.api.turns import Turns
from app.core import principals
from app.core.ids import Ids
from app.core.inspections import Inspector
from app.core.networks import NetworkPolicy
from app.core.ports import Clock, Places
from app.core.principals import Key
from app.dispatch.desk import Desk
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.events import Hub
from app.dispatch.files import FileTools
from app.dispatch.ledger import Ledger
from app.dispatch.listings import Listing
from app.dispatch.rules import RuleBook
from app.dispatch.runs import RunBook
from app.dispatch.sessions import Sessions
from app.dispatch.tools import ToolBook
from app.mcp.oauth import OAuthDesk
from app.mcp.server import McpDoor
from app.mcp.servers import ServerBook
from app.store.principals import Keyring
from app.store.secrets import SecretBook
from app.store.writer import Writer

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
OWN_SITES = (None, b"same-origin", b"none")
OPEN_TO_LINKS = frozenset({"/docs", "/openapi.json", "/healthz", "/readyz", "/oauth/callback"})


@dataclass(slots=True)
class Use:
    """What routes may use of the house."""

    dispatcher: Dispatcher
    engine: AsyncEngine
    writer: Writer
    hub: Hub
    keyring: Keyring
    ids: Ids
    clock: Clock
    mcp: McpDoor
    secrets: SecretBook
    ledger: Ledger
    readiness: Readiness
    streams: StreamSlots
    desk: Desk
    rules: RuleBook
    sessions: Sessions
    places: Places
    walls: Inspector
    network_policy: NetworkPolicy | None
    listing: Listing
    tools: ToolBook
    files: FileTools
    servers: ServerBook
    oauth: OAuthDesk
    runs: RunBook
    stdio_over_rest: bool
    turns: Turns = field(default_factory=Turns)


async def _use(request: Request) -> Use:
    return use_of(request.scope)


def use_of(scope: Scope) -> Use:
    use: Use | None = scope["app"].state["use"]  # the quick way to it
    if use is None:
        raise Problem(503, "NotReady", "The service is starting.", {"Retry-After": "1"})
    return use


def shown_key(headers: Mapping[str, str], use: Use) -> Key | None:
    """The key a request shows, if it is one of ours."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return use.keyring.find(token.strip()) if kind.lower() == "bearer" else None


def key_of(headers: Mapping[str, str], use: Use, *scopes: principals.Scope) -> Key:
    """The key of a request that may do this; one of the scopes is enough."""
    key = shown_key(headers, use)
    if key is None:
        raise unauthorized()
    if not any(key.may(scope) for scope in scopes):
        raise forbidden()
    return key


def unauthorized() -> Problem:
    return Problem(401, "Unauthorized", "A valid key is required.", {"WWW-Authenticate": "Bearer"})


def _requires(*scopes: principals.Scope) -> Callable[..., Awaitable[Key]]:
    async def check(request: Request, use: Used) -> Key:
        return key_of(request.headers, use, *scopes)

    return check


Used = Annotated[Use, Depends(_use)]
Reader = Annotated[Key, Depends(_requires(principals.Scope.CALLS_READ))]
Runner = Annotated[Key, Depends(_requires(principals.Scope.CALLS_RUN))]
ToolWriter = Annotated[Key, Depends(_requires(principals.Scope.TOOLS_WRITE))]
SecretWriter = Annotated[Key, Depends(_requires(principals.Scope.SECRETS_WRITE))]
AskReader = Annotated[Key, Depends(_requires(principals.Scope.CALLS_READ, principals.Scope.ASKS_ANSWER))]
Answerer = Annotated[Key, Depends(_requires(principals.Scope.ASKS_ANSWER))]
RuleReader = Annotated[Key, Depends(_requires(principals.Scope.CALLS_READ, principals.Scope.RULES_WRITE))]
RuleWriter = Annotated[Key, Depends(_requires(principals.Scope.RULES_WRITE))]
Scraper = Annotated[Key, Depends(_requires(principals.Scope.METRICS))]
Admin = Annotated[Key, Depends(_requires(principals.Scope.ADMIN))]


class HostGuard:
    """Lets only requests in that were meant for this service: a browser page elsewhere cannot rebind its way in."""

    def __init__(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        self._hosts = frozenset(host.lower() for host in hosts) | LOOPBACK
        self._origins = frozenset(origins)
        self._known_hosts: set[bytes] = set()

    def problem(self, scope: Scope) -> Problem | None:
        """What keeps this request out, if anything does."""
        host = origin = site = mode = None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
            elif name == b"origin":
                origin = value.decode("latin-1")
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"sec-fetch-mode":
                mode = value
        if host is None or not (host in self._known_hosts or self._knows(host)):
            return Problem(403, "HostNotAllowed", "This host name is not one of the service's; see allowed_hosts.")
        if origin is not None and not self._trusts(origin, host.decode("latin-1")):
            return _foreign_page()
        if site not in OWN_SITES and origin not in self._origins and not _is_link(scope, mode):
            return _foreign_page()
        return None

    def _knows(self, header: bytes) -> bool:
        name = header.decode("latin-1").strip().lower()
        name = name.partition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]
        if name not in self._hosts and "*" not in self._hosts:
            return False
        if len(self._known_hosts) < 64:
            self._known_hosts.add(header)
        return True

    def _trusts(self, origin: str, host: str) -> bool:
        return origin in self._origins or origin in (f"http://{host}", f"https://{host}")


def _foreign_page() -> Problem:
    return Problem(403, "OriginNotAllowed", "Pages of this origin may not call the service; see allowed_origins.")


def _is_link(scope: Scope, mode: bytes | None) -> bool:
    """Whether somebody only followed a link to one of the pages that are open to everybody."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return mode == b"navigate" and scope["method"] == "GET" and path in OPEN_TO_LINKS
