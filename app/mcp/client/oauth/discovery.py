"""Issuers: who signs people in for a server, found from what the server and the issuer publish about themselves."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.core.util.urls import read_url
from app.mcp.client.oauth.http import AuthFailed, Unreachable, require_safe

if TYPE_CHECKING:
    from httpx2 import Request, Response
    from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata

Send = Callable[["Request"], Awaitable["Response"]]
LONGEST_CHALLENGE = 8192


class NoAuthorizationServer(AuthFailed):
    """The server says nothing about how to sign in."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a server said when it let us not in."""

    error: str | None = None
    scope: str | None = None
    metadata_url: str | None = None


@dataclass(frozen=True, slots=True)
class AuthorizationServer:
    """One authorization server as it describes itself, and the resource that its tokens shall be good for."""

    metadata: "OAuthMetadata"
    resource: str
    about: "ProtectedResourceMetadata | None"

    @property
    def name(self) -> str:
        return str(self.metadata.issuer)

    def scopes(self, asked: str | None, kinds: list[str]) -> str | None:
        """What to ask for: what the server wants, else all it has; with what makes tokens last, where there is such."""
        from mcp.client.auth.utils import get_client_metadata_scopes

        return get_client_metadata_scopes(asked, self.about, self.metadata, kinds)


def read_challenge(header: str | None) -> Challenge:
    """The parts of a `WWW-Authenticate` header that matter here."""
    if not header or not header.isascii() or len(header) > LONGEST_CHALLENGE:
        return Challenge()
    from httpx2 import Response
    from mcp.client.auth.utils import extract_field_from_www_auth

    answer = Response(401, headers={"WWW-Authenticate": header})
    return Challenge(*(extract_field_from_www_auth(answer, name) for name in ("error", "scope", "resource_metadata")))


def union(before: str | None, more: str | None) -> str | None:
    """Scopes of both, each once."""
    from mcp.client.auth.utils import union_scopes

    return union_scopes(before, more)


async def discover(send: Send, url: str, challenge: Challenge, wanted: str | None) -> AuthorizationServer:
    """The issuer for the server at `url`; of several the `wanted` one. Raises `AuthFailed`."""
    from mcp.shared.auth_utils import resource_url_from_server_url

    about = await _resource(send, url, challenge.metadata_url)
    if about is None:
        # Without its query, which may hold a key of another kind.
        resource = resource_url_from_server_url(url.partition("?")[0])
        return AuthorizationServer(await _legacy(send, url, wanted), resource, None)
    name = _choose([str(one) for one in about.authorization_servers], wanted)
    metadata = await _metadata(send, name, url)
    if metadata is None:
        raise Unreachable(f"{_origin(name)} publishes no metadata of an authorization server.")
    return AuthorizationServer(metadata, str(about.resource), about)


async def _resource(send: Send, url: str, hint: str | None) -> "ProtectedResourceMetadata | None":
    """What the server publishes (RFC 9728). It must be about this server, or somebody else's tokens could be had."""
    from mcp.client.auth import utils
    from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url

    failed = None
    for candidate in utils.build_protected_resource_metadata_discovery_urls(hint, url):
        answer = await send(utils.create_oauth_metadata_request(candidate))
        about = await utils.handle_protected_resource_response(answer)
        if about is not None:
            if not check_resource_allowed(resource_url_from_server_url(url), str(about.resource)):
                raise AuthFailed(f"What {_origin(candidate)} publishes is about another server than this one.")
            return about
        if answer.status_code >= 500 or answer.status_code == 429:
            failed = answer.status_code
    if failed is not None:  # it may well publish something, and only cannot at the moment
        raise Unreachable(f"{_origin(url)} answered {failed} when it was asked how to sign in.")
    return None


async def _legacy(send: Send, url: str, wanted: str | None) -> "OAuthMetadata":
    """Before servers said who signs people in, it was their own origin."""
    name = _choose([_origin(url)], wanted)
    metadata = await _metadata(send, None, url)
    if metadata is None:
        raise NoAuthorizationServer(f"{name} says nothing about how to sign in.")
    return metadata


async def _metadata(send: Send, name: str | None, url: str) -> "OAuthMetadata | None":
    """What the issuer publishes (RFC 8414, OpenID Connect). It must be about itself."""
    from mcp.client.auth import utils

    expected = name or _origin(url)
    for candidate in utils.build_oauth_authorization_server_metadata_discovery_urls(name, url):
        answer = await send(utils.create_oauth_metadata_request(candidate))
        may_go_on, metadata = await utils.handle_auth_metadata_response(answer)
        if not may_go_on:
            raise Unreachable(f"{_origin(candidate)} answered {answer.status_code} when it was asked for its metadata.")
        if metadata is not None:
            if not utils.issuers_match(str(metadata.issuer), expected):
                raise AuthFailed(f"{expected} publishes the metadata of another issuer.")
            return metadata
    return None


def _choose(offered: list[str], wanted: str | None) -> str:
    from mcp.client.auth.utils import issuers_match

    if wanted is None:
        return offered[0]
    found = next((one for one in offered if issuers_match(one, wanted)), None)
    if found is None:
        raise AuthFailed(f"The server does not name {wanted} as its issuer, and no other is taken.")
    return found


def _origin(url: str) -> str:
    """The part of a URL that may be told."""
    require_safe(url)
    return read_url(url).origin
