"""Authentication and authorization: keys and their scopes, host and origin checks, what a key may see.

What a key may not see is a 404; responses of 401 and 403 give no details.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.requests import Request
from starlette.types import Scope as AsgiScope

from app.api.http.problems import Problem, forbidden, not_found
from app.api.http.sse import StreamSlots
from app.api.readiness import Readiness
from app.core.calls import Call
from app.core.network_policy import NetworkPolicy
from app.core.ports import Clock, WorkspaceLocator
from app.core.principals import Key, Scope
from app.core.sandbox import SandboxInspector
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.util.ids import Ids
from app.dispatch.call_stats import CallStats
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.events.hub import EventHub
from app.dispatch.permission.asks import AskQueue
from app.dispatch.permission.rules import RuleStore
from app.dispatch.session.sessions import Sessions
from app.dispatch.tools.file_tools import FileTools
from app.dispatch.tools.listing import Listing
from app.dispatch.tools.runtime_tools import RuntimeTools
from app.mcp.client.manager import ServerManager
from app.mcp.client.oauth.manager import OAuthManager
from app.mcp.server.app import McpServerApp
from app.runs.submit import Runs
from app.store import calls
from app.store.principals import Keyring
from app.store.secrets import SecretStore
from app.store.writer import Writer

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
SAME_SITE = (None, b"same-origin", b"none")
LINKABLE_PATHS = frozenset({"/docs", "/openapi.json", "/healthz", "/readyz", "/oauth/callback"})


@dataclass(slots=True)
class Services:
    """The parts of the service that routes use."""

    dispatcher: Dispatcher
    engine: AsyncEngine
    writer: Writer
    hub: EventHub
    keyring: Keyring
    ids: Ids
    clock: Clock
    mcp: McpServerApp
    secrets: SecretStore
    call_stats: CallStats
    readiness: Readiness
    stream_slots: StreamSlots
    asks: AskQueue
    rules: RuleStore
    sessions: Sessions
    workspaces: WorkspaceLocator
    sandbox: SandboxInspector
    network_policy: NetworkPolicy | None
    listing: Listing
    runtime_tools: RuntimeTools
    file_tools: FileTools
    servers: ServerManager
    oauth: OAuthManager
    runs: Runs
    stdio_over_rest: bool


def services_of(scope: AsgiScope) -> Services:
    services: Services | None = scope["app"].state["services"]
    if services is None:
        raise Problem(503, "NotReady", "The service is starting.", {"Retry-After": "1"})
    return services


def key_in_request(headers: Mapping[str, str], services: Services) -> Key | None:
    """The key of a request, if it is valid."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return services.keyring.find(token.strip()) if scheme.lower() == "bearer" else None


def require_key(headers: Mapping[str, str], services: Services, *scopes: Scope) -> Key:
    """The key of a request, which must have one of the scopes."""
    key = key_in_request(headers, services)
    if key is None:
        raise unauthorized()
    if not any(key.may(scope) for scope in scopes):
        raise forbidden()
    return key


def unauthorized() -> Problem:
    return Problem(401, "Unauthorized", "A valid key is required.", {"WWW-Authenticate": "Bearer"})


async def _services(request: Request) -> Services:
    return services_of(request.scope)


def _requires(*scopes: Scope) -> Callable[..., Awaitable[Key]]:
    async def check(request: Request, services: ServicesDep) -> Key:
        return require_key(request.headers, services, *scopes)

    return check


ServicesDep = Annotated[Services, Depends(_services)]
Reader = Annotated[Key, Depends(_requires(Scope.CALLS_READ))]
Runner = Annotated[Key, Depends(_requires(Scope.CALLS_RUN))]
ToolWriter = Annotated[Key, Depends(_requires(Scope.TOOLS_WRITE))]
SecretWriter = Annotated[Key, Depends(_requires(Scope.SECRETS_WRITE))]
AskReader = Annotated[Key, Depends(_requires(Scope.CALLS_READ, Scope.ASKS_ANSWER))]
Answerer = Annotated[Key, Depends(_requires(Scope.ASKS_ANSWER))]
RuleReader = Annotated[Key, Depends(_requires(Scope.CALLS_READ, Scope.RULES_WRITE))]
RuleWriter = Annotated[Key, Depends(_requires(Scope.RULES_WRITE))]
Scraper = Annotated[Key, Depends(_requires(Scope.METRICS))]
Admin = Annotated[Key, Depends(_requires(Scope.ADMIN))]


class HostGuard:
    """Refuses requests for other hosts and from pages of other origins (DNS rebinding, cross-site requests)."""

    def __init__(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        self._hosts = frozenset(host.lower() for host in hosts) | LOOPBACK
        self._origins = frozenset(origins)
        self._known_hosts: set[bytes] = set()

    def problem(self, scope: AsgiScope) -> Problem | None:
        """Why this request is refused, if it is."""
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
        if host is None or not (host in self._known_hosts or self._is_known_host(host)):
            return Problem(403, "HostNotAllowed", "This host name is not one of the service's; see allowed_hosts.")
        if origin is not None and origin not in self._origins:
            name = host.decode("latin-1")
            if origin not in (f"http://{name}", f"https://{name}"):
                return _origin_not_allowed()
        if site not in SAME_SITE and origin not in self._origins and not _is_link(scope, mode):
            return _origin_not_allowed()
        return None

    def _is_known_host(self, header: bytes) -> bool:
        name = header.decode("latin-1").strip().lower()
        name = name.partition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]
        if name not in self._hosts and "*" not in self._hosts:
            return False
        if len(self._known_hosts) < 64:
            self._known_hosts.add(header)
        return True


def _origin_not_allowed() -> Problem:
    return Problem(403, "OriginNotAllowed", "Pages of this origin may not call the service; see allowed_origins.")


def _is_link(scope: AsgiScope, mode: bytes | None) -> bool:
    """Whether a person followed a link to one of the public pages."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return mode == b"navigate" and scope["method"] == "GET" and path in LINKABLE_PATHS


async def call_seen(services: Services, key: Key, id: str) -> Call:
    """The call, if this key may see it."""
    call = await calls.get(services.engine, id, key.sees)
    if call is None or not await services.sessions.shows_records(key, call.principal, call.session):
        raise not_found(f"call {id}")
    return call


async def session_named(services: Services, key: Key, id: str | None) -> Session:
    """The key's own session of this id, by default the default session."""
    id = id or DEFAULT_SESSION
    session = services.sessions.peek(key.principal, id) or await services.sessions.find(key.principal, id)
    if session is None or not services.sessions.shows(key, session):
        raise not_found(f"session {id}")
    return session


async def session_seen(services: Services, key: Key, id: str, principal: str | None = None) -> Session:
    """The session, if this key may see it; only an admin sees those of other principals."""
    if principal in (None, key.principal) or key.may(Scope.ADMIN):
        session = await services.sessions.seen(key, id, principal)
        # Every principal has a default session; only a stored session has a creation time.
        if session is not None and (session.created_at or session.principal == key.principal):
            return session
    raise not_found(f"session {id}")
