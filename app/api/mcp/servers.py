"""MCP servers over HTTP: added, looked at, connected anew, removed."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import PlainTextResponse, Response

from app.api.auth import Reader, Services, ServicesDep, ToolWriter
from app.api.http.body import JSON, JsonRoute
from app.api.http.problems import Problem, forbidden, not_found
from app.api.mcp.plaintext_secrets import forget_secrets, kept_secrets, shown
from app.api.mcp.requests import ServerRequest, Wanted, wanted
from app.api.rules import refuse_secrets
from app.api.schemas.mcp import McpServerView
from app.api.schemas.views import Page
from app.core.mcp_servers import MAX_NAME, SERVER_NAME, InvalidServer, ServerState, StdioServer
from app.core.principals import Key, Scope
from app.core.rules import Action, Rule, RuleScope, StoredRule
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.util.json_codec import Raw, dumps
from app.dispatch.tools.registry import NameTaken

router = APIRouter(prefix="/v1/mcp/servers", tags=["mcp"], route_class=JsonRoute)

DEFAULT_SETTLE, MAX_SETTLE = 10.0, 60.0
FIRST_LOOK, LAST_LOOK = 0.01, 0.25
"""Seconds between two looks at a server that is just starting."""

Name = Annotated[
    str, Path(pattern=SERVER_NAME, max_length=MAX_NAME, description="The server's name.", examples=["docs"])
]
IsOwn = Annotated[bool, Query(description="An admin's own server instead of everybody's.")]
Whose = Annotated[str | None, Query(description="Whose server, for admins; otherwise everybody's.")]
Settle = Annotated[
    float,
    Query(ge=0, le=MAX_SETTLE, description="Seconds to wait until it is connected, or is not; 0 answers at once."),
]
CREATED: dict[int | str, dict[str, Any]] = {201: {"description": "It is new.", "model": McpServerView}}
TAKEN: dict[int | str, dict[str, Any]] = {409: {"description": "Another server, or a secret, has this name."}}
DISABLED: dict[int | str, dict[str, Any]] = {409: {"description": "It is switched off."}}
CONFIGURED: dict[int | str, dict[str, Any]] = {409: {"description": "It was not added over HTTP."}}


async def _owner(key: ToolWriter, own: IsOwn = False, principal: Whose = None) -> str | None:
    """Whose server is to be changed."""
    if not key.may(Scope.ADMIN):
        return key.principal
    return key.principal if own else principal


Owner = Annotated[str | None, Depends(_owner)]


@router.get("", response_model=Page[McpServerView])
async def list_mcp_servers(request: Request, key: Reader, services: ServicesDep) -> Response:
    """Everybody's servers and one's own by name, and how each is; for an admin all there are."""
    views = [
        view for view in services.servers.views(key.principal, is_admin=_is_admin(key)) if _is_seen(services, key, view)
    ]
    return _answer(request, {"data": [shown(view) for view in views], "next_cursor": None})


@router.post("", response_model=McpServerView, responses=CREATED | TAKEN)
async def create_mcp_server(
    request: Request,
    asked: ServerRequest,
    key: ToolWriter,
    services: ServicesDep,
    own: IsOwn = False,
    wait: Settle = DEFAULT_SETTLE,
) -> Response:
    """Add a server: one's own, or everybody's with an admin key. It is kept, connected to, and connected to again
    after every start of the service; whether that works out is in `state`. What lets us in is best named by a secret;
    what comes in clear becomes one. A program to start takes an admin key and `mcp.stdio_over_rest`."""
    owner = await _owner(key, own)
    try:
        plan = wanted(asked)
        _check_may(services, key, plan)
        is_new, before = await _add(request, services, key, plan, owner)
    except InvalidServer as error:
        raise Problem(422, "InvalidServer", f"The server cannot be added: {str(error).rstrip('.')}.") from None
    except NameTaken as error:
        raise Problem(409, "NameTaken", str(error)) from None
    view = await _settled(services, plan.server.name, owner, wait, before)
    return _answer(request, shown(view), 201 if is_new else 200)


@router.get("/{name}", response_model=McpServerView)
async def get_mcp_server(
    request: Request, name: Name, key: Reader, services: ServicesDep, principal: Whose = None
) -> Response:
    """One server, and how it is."""
    return _answer(request, shown(_seen(services, key, name, principal)))


@router.delete("/{name}", status_code=204, responses=CONFIGURED)
async def delete_mcp_server(name: Name, key: ToolWriter, services: ServicesDep, owner: Owner) -> Response:
    """Disconnect from a server and forget it, with its tools, the secrets that were kept for it alone, and what was
    got by signing in there."""
    refuse_bound(key)
    before = _of_owner(services, name, owner)
    if not await services.servers.remove(name, owner):
        raise _no_such(name, before)
    await forget_secrets(services, owner, before and before.get("definition"))
    await services.oauth.forget(name, owner)
    return Response(status_code=204)


@router.post("/{name}/reconnect", response_model=McpServerView, responses=DISABLED)
async def reconnect_mcp_server(
    request: Request, name: Name, key: ToolWriter, services: ServicesDep, owner: Owner, wait: Settle = DEFAULT_SETTLE
) -> Response:
    """Connect anew, now and not when the next try would be. Calls it has end `McpDisconnected`."""
    refuse_bound(key)
    before = _of_owner(services, name, owner)
    if before is None:
        raise not_found(f"MCP server {name} of yours")
    try:
        await services.servers.reconnect(name, owner)
    except InvalidServer as error:
        raise Problem(409, "Disabled", str(error)) from None
    return _answer(request, shown(await _settled(services, name, owner, wait, before)))


@router.get("/{name}/log", response_class=PlainTextResponse)
async def get_mcp_server_log(
    request: Request, name: Name, key: Reader, services: ServicesDep, principal: Whose = None
) -> PlainTextResponse:
    """The last of what its program wrote to stderr, and what went wrong with it; for its owner and admins."""
    view = _seen(services, key, name, principal)
    if not _is_admin(key) and view["owner"] != key.principal:
        raise forbidden()
    text = services.servers.log_of(name, _whose(key, principal), is_admin=_is_admin(key))
    return PlainTextResponse(request.app.state.redactor.text(text or ""))


async def _add(
    request: Request, services: Services, key: Key, plan: Wanted, owner: str | None
) -> tuple[bool, Raw | None]:
    """Rules and secrets first, so that there is no moment without them; all or nothing. The answer is whether it is
    new, and how it was if it is the same and only has to be connected to anew."""
    name = plan.server.name
    before = _of_owner(services, name, owner)
    if before is not None and not plan.replace:
        raise NameTaken(name, "is the name of a server already")
    refuse_secrets(request, *plan.asking)
    rules = [await _keep_rule(services, key, owner, pattern) for pattern in plan.asking]
    try:
        async with kept_secrets(services, owner, plan.server, before and before.get("definition")) as server:
            is_new = await services.servers.add(server, owner, replace=plan.replace)
    except BaseException:
        for id in filter(None, rules):
            await services.rules.drop(id)
        raise
    if before is not None and server != plan.server and _is_unchanged(services, name, owner, before):
        await services.servers.reconnect(name, owner)  # only what lets us in is another
        return is_new, before
    return is_new, None


def _is_unchanged(services: Services, name: str, owner: str | None, before: Raw) -> bool:
    after = _of_owner(services, name, owner)
    return after is not None and after["enabled"] and after["definition"] == before["definition"]


async def _keep_rule(services: Services, key: Key, owner: str | None, pattern: str) -> str | None:
    """Calls that fit ask from now on; a rule that says so already is enough. The answer is the new one's id."""
    principal, rule = owner or GLOBAL_PRINCIPAL, Rule("mcp", pattern, Action.ASK)
    if any(kept.rule == rule and kept.scope is RuleScope.GLOBAL for kept in services.rules.listed(principal)):
        return None
    id, at = services.ids.new("rule")
    kept = StoredRule(id=id, principal=principal, rule=rule, scope=RuleScope.GLOBAL, created_by=key.id, created_at=at)
    await services.rules.add(kept)
    return id


def refuse_bound(key: Key) -> None:
    """A key that is bound to some tools must not make others."""
    if key.bounds.tools:
        raise forbidden()


def _check_may(services: Services, key: Key, plan: Wanted) -> None:
    """Who may start programs is the operator's say."""
    refuse_bound(key)
    if isinstance(plan.server, StdioServer) and not (services.stdio_over_rest and _is_admin(key)):
        raise Problem(
            403,
            "Forbidden",
            "A program is started for an admin key only, and only if the settings say mcp.stdio_over_rest = true.",
        )


async def _settled(services: Services, name: str, owner: str | None, seconds: float, before: Raw | None = None) -> Raw:
    """The server once it is connected or not, or after so many seconds as it is. With `before` it has just been told
    to connect anew, and is as it was until it does."""
    loop, pause = asyncio.get_running_loop(), FIRST_LOOK
    deadline = loop.time() + seconds
    view = _must(_of_owner(services, name, owner), name)
    while _is_under_way(view, before) and loop.time() < deadline:
        await asyncio.sleep(pause)
        pause = min(pause * 2, LAST_LOOK)
        view = _must(_of_owner(services, name, owner), name)
    return view


def _is_under_way(view: Raw, before: Raw | None) -> bool:
    if view["state"] == ServerState.STARTING:
        return True
    is_as_before = before is not None and (view["state"], view["since"]) == (before["state"], before["since"])
    return is_as_before and view["enabled"]


def _must(view: Raw | None, name: str) -> Raw:
    if view is None:  # somebody removed it meanwhile
        raise not_found(f"MCP server {name}")
    return view


def _of_owner(services: Services, name: str, owner: str | None) -> Raw | None:
    """The server of exactly this owner."""
    known = services.servers.views(owner or GLOBAL_PRINCIPAL, is_admin=True)
    return next((view for view in known if view["name"] == name and view["owner"] == owner), None)


def _seen(services: Services, key: Key, name: str, principal: str | None) -> Raw:
    """A server that this key sees."""
    view = services.servers.view(name, key.principal, is_admin=_is_admin(key))
    if principal is not None and _is_admin(key):
        view = _of_owner(services, name, principal)
    if view is None or not _is_seen(services, key, view):
        raise not_found(f"MCP server {name}")
    return view


def _is_seen(services: Services, key: Key, view: Raw) -> bool:
    return _is_admin(key) or services.listing.shows_server(view["name"], Session(key.principal, DEFAULT_SESSION), key)


def _whose(key: Key, principal: str | None) -> str:
    return principal if principal is not None and _is_admin(key) else key.principal


def _is_admin(key: Key) -> bool:
    return key.may(Scope.ADMIN)


def _no_such(name: str, before: Raw | None) -> Problem:
    if before is None:
        return not_found(f"MCP server {name} of yours")
    return Problem(409, "NotRegistered", f"{name} was not added over HTTP, so it cannot be removed here.")


def _answer(request: Request, body: Any, status: int = 200) -> Response:
    """What servers say of themselves is not ours, and may hold anything."""
    return Response(request.app.state.redactor.json(dumps(body).decode()), status, media_type=JSON)
