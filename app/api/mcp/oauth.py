"""Signing in at MCP servers: an address to go to, and the page one comes back to."""

from html import escape
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from app.api.auth import Services, ServicesDep, ToolWriter
from app.api.http.body import JsonRoute
from app.api.http.problems import Problem, not_found
from app.api.http.responses import json_response
from app.api.mcp.servers import Name, Owner, refuse_bound
from app.api.schemas.mcp import SignInView
from app.core.mcp_servers import HttpServer
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.util.clocks import rfc3339
from app.mcp.client.oauth.authorization import UnknownState
from app.mcp.client.oauth.discovery import NoAuthorizationServer
from app.mcp.client.oauth.http import AuthFailed
from app.mcp.client.oauth.registration import CALLBACK, DOCUMENT
from app.mcp.client.oauth.tokens import Declined

router = APIRouter(prefix="/v1/mcp/servers", tags=["mcp"], route_class=JsonRoute)
pages = APIRouter(include_in_schema=False)

LONGEST = 4096
STATUSES: dict[type[AuthFailed], int] = {UnknownState: 400, Declined: 403}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    409: {"description": "Nobody signs in at this server."},
    502: {"description": "The server, or who signs people in for it, did not answer as it should."},
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title} - Toolcrib</title></head>
<body><h1>{title}</h1><p>{text}</p></body>
</html>
"""

Brought = Annotated[str | None, Query(max_length=LONGEST)]


@router.post("/{name}/auth", response_model=SignInView, responses=PROBLEMS)
async def create_mcp_sign_in(name: Name, key: ToolWriter, services: ServicesDep, owner: Owner) -> Response:
    """Begin to sign in at a server: `url` is for a browser, and leads back here when the person is done there. It is
    good once, for ten minutes. A server with the grant `client_credentials` needs nobody, and is signed in to now."""
    refuse_bound(key)
    server = _server(services, name, owner)
    try:
        door = await services.oauth.begin(server, owner, key.principal)
    except NoAuthorizationServer as error:
        raise _none(str(error)) from None
    except AuthFailed as error:
        raise Problem(502, "SignInFailed", str(error)) from None
    body = {"url": None, "expires_at": None} if door is None else {"url": door.url, "expires_at": rfc3339(door.until)}
    return json_response(body, 200, {"Cache-Control": "no-store"})


@router.delete("/{name}/auth", status_code=204)
async def delete_mcp_sign_in(name: Name, key: ToolWriter, services: ServicesDep, owner: Owner) -> Response:
    """Forget what was got by signing in at a server, and who we are there. It is connected to anew, without."""
    refuse_bound(key)
    _server(services, name, owner)
    await services.oauth.forget(name, owner)
    return Response(status_code=204)


@pages.get(CALLBACK)
async def finish_sign_in(
    request: Request,
    services: ServicesDep,
    state: Brought = None,
    code: Brought = None,
    iss: Brought = None,
    error: Brought = None,
) -> Response:
    """Where a person comes back to. The state, which is good once, shows that they were sent by us."""
    try:
        signed = await services.oauth.complete(state or "", code, iss, error)
    except AuthFailed as failed:
        text = f"{request.app.state.redactor.text(str(failed))} You can close this window, and begin anew."
        return _page("Not signed in", text, STATUSES.get(type(failed), 502))
    return _page("Signed in", f"Toolcrib can use the MCP server {signed.server.name} now. You can close this window.")


@pages.get(DOCUMENT)
async def get_client_document(services: ServicesDep) -> Response:
    """What issuers read about us, where our name there is the address of this document."""
    about = services.oauth.document()
    if about is None:
        raise not_found("such document without a public_url that is https")
    return json_response(about)


def _server(services: Services, name: str, owner: str | None) -> HttpServer:
    found = services.servers.get(name, owner or GLOBAL_PRINCIPAL)
    if found is None or found.owner != owner:
        raise not_found(f"MCP server {name} of yours")
    if not isinstance(found.definition, HttpServer):
        raise _none(f"{name} is a program of this machine, and nobody signs in there.")
    return found.definition


def _none(sentence: str) -> Problem:
    return Problem(409, "NoSignIn", sentence)


def _page(title: str, text: str, status: int = 200) -> Response:
    return HTMLResponse(PAGE.format(title=escape(title), text=escape(text)), status, PAGE_HEADERS)
