"""Finds the authorization server of an MCP server from the metadata that both publish."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.mcp.client.oauth.http import AuthFailed, Unreachable, require_https

if TYPE_CHECKING:
    from httpx2 import Request, Response
    from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata

Send = Callable[["Request"], Awaitable["Response"]]
MAX_CHALLENGE = 8192


class NoAuthorizationServer(AuthFailed):
    """The MCP server publishes no authorization server."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The parts of a `WWW-Authenticate` header that matter here."""

    error: str | None = None
    scope: str | None = None
    metadata_url: str | None = None


@dataclass(frozen=True, slots=True)
class AuthorizationServer:
    """An authorization server's metadata, and the resource that its tokens are for."""

    metadata: "OAuthMetadata"
    resource: str
    resource_metadata: "ProtectedResourceMetadata | None"

    @property
    def issuer(self) -> str:
        return str(self.metadata.issuer)

    def scopes(self, requested: str | None, grant_types: list[str]) -> str | None:
        """The scopes to request: those of the challenge, else all that the server has, with `offline_access`."""
        from mcp.client.auth.utils import get_client_metadata_scopes

        return get_client_metadata_scopes(requested, self.resource_metadata, self.metadata, grant_types)


def read_challenge(header: str | None) -> Challenge:
    if not header or not header.isascii() or len(header) > MAX_CHALLENGE:
        return Challenge()
    from httpx2 import Response
    from mcp.client.auth.utils import extract_field_from_www_auth

    response = Response(401, headers={"WWW-Authenticate": header})
    return Challenge(
        error=extract_field_from_www_auth(response, "error"),
        scope=extract_field_from_www_auth(response, "scope"),
        metadata_url=extract_field_from_www_auth(response, "resource_metadata"),
    )


def union(first: str | None, second: str | None) -> str | None:
    """The scopes of both, each once."""
    from mcp.client.auth.utils import union_scopes

    return union_scopes(first, second)


async def discover(send: Send, url: str, challenge: Challenge, issuer: str | None) -> AuthorizationServer:
    """The authorization server for the MCP server at `url`; with `issuer` only that one. Raises `AuthFailed`."""
    from mcp.shared.auth_utils import resource_url_from_server_url

    about = await _resource_metadata(send, url, challenge.metadata_url)
    if about is None:  # before RFC 9728 the MCP server's own origin was the authorization server
        name = _choose([_origin(url)], issuer)
        metadata = await _server_metadata(send, None, url)
        if metadata is None:
            raise NoAuthorizationServer(f"{name} does not publish an authorization server.")
        # Without its query, which may contain another kind of key.
        return AuthorizationServer(metadata, resource_url_from_server_url(url.partition("?")[0]), None)
    name = _choose([str(one) for one in about.authorization_servers], issuer)
    metadata = await _server_metadata(send, name, url)
    if metadata is None:
        raise Unreachable(f"{_origin(name)} publishes no authorization server metadata.")
    return AuthorizationServer(metadata, str(about.resource), about)


async def _resource_metadata(send: Send, url: str, hint: str | None) -> "ProtectedResourceMetadata | None":
    """The protected resource metadata (RFC 9728). It must be about this server, or tokens for another one could be
    requested."""
    from mcp.client.auth import utils
    from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url

    failure = None
    for candidate in utils.build_protected_resource_metadata_discovery_urls(hint, url):
        response = await send(utils.create_oauth_metadata_request(candidate))
        about = await utils.handle_protected_resource_response(response)
        if about is not None:
            if not check_resource_allowed(resource_url_from_server_url(url), str(about.resource)):
                raise AuthFailed(f"The metadata that {_origin(candidate)} publishes is about another server.")
            return about
        if response.status_code >= 500 or response.status_code == 429:
            failure = response.status_code
    if failure is not None:  # it may publish metadata later
        raise Unreachable(f"{_origin(url)} answered {failure} to the request for its metadata.")
    return None


async def _server_metadata(send: Send, issuer: str | None, url: str) -> "OAuthMetadata | None":
    """The authorization server metadata (RFC 8414, OpenID Connect). Its issuer must be this one."""
    from mcp.client.auth import utils

    expected = issuer or _origin(url)
    for candidate in utils.build_oauth_authorization_server_metadata_discovery_urls(issuer, url):
        response = await send(utils.create_oauth_metadata_request(candidate))
        may_continue, metadata = await utils.handle_auth_metadata_response(response)
        if not may_continue:
            status = response.status_code
            raise Unreachable(f"{_origin(candidate)} answered {status} to the request for its metadata.")
        if metadata is not None:
            if not utils.issuers_match(str(metadata.issuer), expected):
                raise AuthFailed(f"{expected} publishes the metadata of another issuer.")
            return metadata
    return None


def _choose(offered: list[str], issuer: str | None) -> str:
    from mcp.client.auth.utils import issuers_match

    if issuer is None:
        return offered[0]
    match = next((one for one in offered if issuers_match(one, issuer)), None)
    if match is None:
        raise AuthFailed(f"The server does not name {issuer} as its issuer, and no other is accepted.")
    return match


def _origin(url: str) -> str:
    """The part of a URL that may be shown in messages."""
    return require_https(url).origin
