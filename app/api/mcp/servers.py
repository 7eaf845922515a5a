"""MCP servers over HTTP: add, list, read, reconnect, remove."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import PlainTextResponse, Response

from app.api.auth import Reader, Services, ServicesDep, ToolWriter
from app.api.http.body import JSON, JsonRoute
from app.api.http.problems import Problem, forbidden, not_found
from app.api.mcp.plaintext_secrets import delete_secrets, masked, stored_secrets
from app.api.mcp.requests import ServerPlan, ServerRequest, plan_server
from app.api.rules import refuse_secrets
from app.api.schemas.mcp import McpServerView
from app.api.schemas.views import Page
from app.core.mcp_servers import MAX_NAME, SERVER_NAME, InvalidServer, StdioServer
from app.core.principals import Key, Scope
from app.core.rules import Action, Rule, RuleScope, StoredRule
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.util.json_codec import Raw, dumps
from app.dispatch.tools.registry import NameTaken

router = APIRouter(prefix="/v1/mcp/servers", tags=["mcp"], route_class=JsonRoute)

DEFAULT_WAIT, MAX_WAIT_SECONDS = 10.0, 60.0

Name = Annotated[
    str, Path(pattern=SERVER_NAME, max_length=MAX_NAME, description="The server's name.", examples=["docs"])
]
IsOwn = Annotated[bool, Query(description="For admins: a server of the key's own principal instead of a global one.")]
OwnerQuery = Annotated[str | None, Query(description="For admins: the owner of the server; by default a global one.")]
Wait = Annotated[
    float,
    Query(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait until it is connected or failed; 0: none."),
]
CREATED: dict[int | str, dict[str, Any]] = {201: {"description": "It is new.", "model": McpServerView}}
TAKEN: dict[int | str, dict[str, Any]] = {409: {"description": "Another server, or a secret, has this name."}}
DISABLED: dict[int | str, dict[str, Any]] = {409: {"description": "It is disabled."}}
CONFIGURED: dict[int | str, dict[str, Any]] = {409: {"description": "It was not added over HTTP."}}


async def _owner(key: ToolWriter, own: IsOwn = False, principal: OwnerQuery = None) -> str | None:
    """The owner of the server to change; None: a global server."""
    if not key.may(Scope.ADMIN):
        return key.principal
    return key.principal if own else principal


Owner = Annotated[str | None, Depends(_owner)]


@router.get("", response_model=Page[McpServerView])
async def list_mcp_servers(request: Request, key: Reader, services: ServicesDep) -> Response:
    """The global servers and the principal's own by name, with their state; for an admin all servers."""
    views = [
        view
        for view in services.servers.views(key.principal, is_admin=_is_admin(key))
        if _is_visible(services, key, view)
    ]
    return _respond(request, {"data": [masked(view) for view in views], "next_cursor": None})


@router.post("", response_model=McpServerView, responses=CREATED | TAKEN)
async def create_mcp_server(
    request: Request,
    body: ServerRequest,
    key: ToolWriter,
    services: ServicesDep,
    own: IsOwn = False,
    wait: Wait = DEFAULT_WAIT,
) -> Response:
    """Add a server for the key's principal, or a global one with an admin key. It is stored, and connected to now and
    after every start of the service; `state` says whether that worked. Credentials are best given as names of secrets;
    those in clear text are stored as secrets. A stdio server needs an admin key and `mcp.stdio_over_rest`."""
    owner = await _owner(key, own)
    try:
        plan = plan_server(body)
        _check_allowed(services, key, plan)
        is_new = await _add(request, services, key, plan, owner)
    except InvalidServer as error:
        raise Problem(422, "InvalidServer", f"The server cannot be added: {str(error).rstrip('.')}.") from None
    except NameTaken as error:
        raise Problem(409, "NameTaken", str(error)) from None
    view = await _wait_connected(services, plan.server.name, owner, wait)
    return _respond(request, masked(view), 201 if is_new else 200)


@router.get("/{name}", response_model=McpServerView)
async def get_mcp_server(
    request: Request, name: Name, key: Reader, services: ServicesDep, principal: OwnerQuery = None
) -> Response:
    """One server and its state."""
    return _respond(request, masked(_visible(services, key, name, principal)))


@router.delete("/{name}", status_code=204, responses=CONFIGURED)
async def delete_mcp_server(name: Name, key: ToolWriter, services: ServicesDep, owner: Owner) -> Response:
    """Disconnect from a server and remove it, with its tools, the secrets stored for it alone, and its OAuth tokens."""
    refuse_bound(key)
    before = _of_owner(services, name, owner)
    if not await services.servers.remove(name, owner):
        if before is None:
            raise not_found(f"MCP server {name} of yours")
        raise Problem(409, "NotRegistered", f"{name} was not added over HTTP, so it cannot be removed here.")
    await delete_secrets(services, owner, before and before.get("definition"))
    await services.oauth.forget(name, owner)
    return Response(status_code=204)


@router.post("/{name}/reconnect", response_model=McpServerView, responses=DISABLED)
async def reconnect_mcp_server(
    request: Request,
    name: Name,
    key: ToolWriter,
    services: ServicesDep,
    owner: Owner,
    wait: Wait = DEFAULT_WAIT,
) -> Response:
    """Reconnect now, without waiting for the next retry. Its running calls end `McpDisconnected`."""
    refuse_bound(key)
    before = _of_owner(services, name, owner)
    if before is None:
        raise not_found(f"MCP server {name} of yours")
    try:
        await services.servers.reconnect(name, owner)
    except InvalidServer as error:
        raise Problem(409, "Disabled", str(error)) from None
    return _respond(request, masked(await _wait_connected(services, name, owner, wait)))


@router.get("/{name}/log", response_class=PlainTextResponse)
async def get_mcp_server_log(
    request: Request, name: Name, key: Reader, services: ServicesDep, principal: OwnerQuery = None
) -> PlainTextResponse:
    """The last lines of its stderr, and its connection errors; for its owner and admins."""
    view = _visible(services, key, name, principal)
    if not _is_admin(key) and view["owner"] != key.principal:
        raise forbidden()
    owner = principal if principal is not None and _is_admin(key) else key.principal
    text = services.servers.log_of(name, owner, is_admin=_is_admin(key))
    return PlainTextResponse(request.app.state.redactor.text(text or ""))


async def _add(request: Request, services: Services, key: Key, plan: ServerPlan, owner: str | None) -> bool:
    """Add the server, its rules and secrets first, all or nothing. Returns whether it is new."""
    name = plan.server.name
    before = _of_owner(services, name, owner)
    if before is not None and not plan.replace:
        raise NameTaken(name, "is the name of a server already")
    refuse_secrets(request, *plan.ask_patterns)
    rules = [await _store_rule(services, key, owner, pattern) for pattern in plan.ask_patterns]
    try:
        async with stored_secrets(services, owner, plan.server, before and before.get("definition")) as server:
            is_new = await services.servers.add(server, owner, replace=plan.replace)
    except BaseException:
        for id in filter(None, rules):
            await services.rules.drop(id)
        raise
    if before is not None and server != plan.server and _is_unchanged(services, name, owner, before):
        await services.servers.reconnect(name, owner)  # only the credentials have changed
    return is_new


def _is_unchanged(services: Services, name: str, owner: str | None, before: Raw) -> bool:
    after = _of_owner(services, name, owner)
    return after is not None and after["enabled"] and after["definition"] == before["definition"]


async def _store_rule(services: Services, key: Key, owner: str | None, pattern: str) -> str | None:
    """Store a rule that calls matching the pattern ask, unless there is one. Returns the new rule's id."""
    principal, rule = owner or GLOBAL_PRINCIPAL, Rule("mcp", pattern, Action.ASK)
    if any(stored.rule == rule and stored.scope is RuleScope.GLOBAL for stored in services.rules.listed(principal)):
        return None
    id, at = services.ids.new("rule")
    new = StoredRule(id=id, principal=principal, rule=rule, scope=RuleScope.GLOBAL, created_by=key.id, created_at=at)
    await services.rules.add(new)
    return id


def refuse_bound(key: Key) -> None:
    """A key that is bound to some tools must not add others."""
    if key.bounds.tools:
        raise forbidden()


def _check_allowed(services: Services, key: Key, plan: ServerPlan) -> None:
    """The operator decides whether keys may add stdio servers."""
    refuse_bound(key)
    if isinstance(plan.server, StdioServer) and not (services.stdio_over_rest and _is_admin(key)):
        raise Problem(403, "Forbidden", "A stdio server needs an admin key and the setting mcp.stdio_over_rest = true.")


async def _wait_connected(services: Services, name: str, owner: str | None, seconds: float) -> Raw:
    """The server once it is connected or has failed, or as it is after `seconds`."""
    await services.servers.wait_settled(name, owner, seconds)
    view = _of_owner(services, name, owner)
    if view is None:  # it was removed meanwhile
        raise not_found(f"MCP server {name}")
    return view


def _of_owner(services: Services, name: str, owner: str | None) -> Raw | None:
    views = services.servers.views(owner or GLOBAL_PRINCIPAL, is_admin=True)
    return next((view for view in views if view["name"] == name and view["owner"] == owner), None)


def _visible(services: Services, key: Key, name: str, principal: str | None) -> Raw:
    """The server, if this key may see it; else 404."""
    view = services.servers.view(name, key.principal, is_admin=_is_admin(key))
    if principal is not None and _is_admin(key):
        view = _of_owner(services, name, principal)
    if view is None or not _is_visible(services, key, view):
        raise not_found(f"MCP server {name}")
    return view


def _is_visible(services: Services, key: Key, view: Raw) -> bool:
    return _is_admin(key) or services.listing.shows_server(view["name"], Session(key.principal, DEFAULT_SESSION), key)


def _is_admin(key: Key) -> bool:
    return key.may(Scope.ADMIN)


def _respond(request: Request, body: Any, status: int = 200) -> Response:
    """Servers may send secrets in what they say of themselves, so it is redacted."""
    return Response(request.app.state.redactor.json(dumps(body).decode()), status, media_type=JSON)
