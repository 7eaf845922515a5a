"""OAuth authorization at MCP servers: the URL for the browser, and the redirect page."""

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

MAX_PARAMETER_LENGTH = 4096
STATUSES: dict[type[AuthFailed], int] = {UnknownState: 400, Declined: 403}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    409: {"description": "This server has no OAuth authorization."},
    502: {"description": "The server, or its authorization server, gave no valid response."},
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

Parameter = Annotated[str | None, Query(max_length=MAX_PARAMETER_LENGTH)]


@router.post("/{name}/auth", response_model=SignInView, responses=PROBLEMS)
async def create_mcp_sign_in(name: Name, key: ToolWriter, services: ServicesDep, owner: Owner) -> Response:
    """Begin the authorization at a server: a person opens `url` in a browser, which is redirected back here at the end.
    It is valid once, for ten minutes. With the grant `client_credentials` no person is needed, and it is done now."""
    refuse_bound(key)
    server = _server(services, name, owner)
    try:
        sign_in = await services.oauth.start(server, owner, key.principal)
    except NoAuthorizationServer as error:
        raise _no_sign_in(str(error)) from None
    except AuthFailed as error:
        raise Problem(502, "SignInFailed", str(error)) from None
    view = {"url": sign_in and sign_in.url, "expires_at": sign_in and rfc3339(sign_in.expires_at)}
    return json_response(view, headers={"Cache-Control": "no-store"})


@router.delete("/{name}/auth", status_code=204)
async def delete_mcp_sign_in(name: Name, key: ToolWriter, services: ServicesDep, owner: Owner) -> Response:
    """Delete the tokens and the client registration of a server, and reconnect to it without them."""
    refuse_bound(key)
    _server(services, name, owner)
    await services.oauth.forget(name, owner)
    return Response(status_code=204)


@pages.get(CALLBACK)
async def finish_sign_in(
    request: Request,
    services: ServicesDep,
    state: Parameter = None,
    code: Parameter = None,
    iss: Parameter = None,
    error: Parameter = None,
) -> Response:
    """The redirect URI. The state, which is valid once, shows that Toolcrib began this authorization."""
    try:
        signed = await services.oauth.complete(state or "", code, iss, error)
    except AuthFailed as failed:
        text = f"{request.app.state.redactor.text(str(failed))} You can close this window and begin again."
        return _page("Not signed in", text, STATUSES.get(type(failed), 502))
    return _page("Signed in", f"Toolcrib can use the MCP server {signed.server.name} now. You can close this window.")


@pages.get(DOCUMENT)
async def get_client_document(services: ServicesDep) -> Response:
    """The client metadata document; its URL is the client id at authorization servers that support that."""
    document = services.oauth.document()
    if document is None:
        raise not_found("such document without an https public_url")
    return json_response(document)


def _server(services: Services, name: str, owner: str | None) -> HttpServer:
    server = services.servers.get(name, owner or GLOBAL_PRINCIPAL)
    if server is None or server.owner != owner:
        raise not_found(f"MCP server {name} of yours")
    if not isinstance(server.definition, HttpServer):
        raise _no_sign_in(f"{name} is a stdio server, which has no OAuth authorization.")
    return server.definition


def _no_sign_in(message: str) -> Problem:
    return Problem(409, "NoSignIn", message)


def _page(title: str, text: str, status: int = 200) -> Response:
    return HTMLResponse(PAGE.format(title=escape(title), text=escape(text)), status, PAGE_HEADERS)
