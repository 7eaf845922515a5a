"""OAuth token requests: authorization_code, refresh_token and client_credentials; stores the grants."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from app.core.errors import CallError
from app.core.mcp_servers import HttpServer, OAuth
from app.core.ports import Clock
from app.core.principals import ADMIN_PRINCIPAL
from app.mcp.client.oauth import registration
from app.mcp.client.oauth.authorization import PendingAuthorization
from app.mcp.client.oauth.discovery import AuthorizationServer, Send
from app.mcp.client.oauth.http import AuthFailed, OAuthHttp, Unreachable, require_https
from app.mcp.client.oauth.registration import Client, RedirectTarget
from app.store.mcp import Grant, TokenStore

if TYPE_CHECKING:
    from httpx2 import Response

BEARER_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,16384}=*")
"""A token that a header can carry (RFC 6750)."""
ERROR_CODE = re.compile(r"[a-z_]{1,64}")
MAX_LIFETIME_SECONDS = 10 * 366 * 86_400
REFRESH_LEEWAY = 60_000_000
"""Microseconds before its expiry at which a token is refreshed; for short-lived tokens it is a tenth of their life."""
GRANT_ENDED = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
"""Error codes after which the grant is of no use."""
DEFAULT_AUTH = OAuth(type="oauth")

SecretFor = Callable[[str, str, str], str]
"""An owner's secret by name, for a host. Raises `CallError`."""


class Declined(AuthFailed):
    """The authorization server refused. `code` is its error code."""

    def __init__(self, origin: str, code: str) -> None:
        super().__init__(f"{origin} declined: {code}.")
        self.code = code


@dataclass(frozen=True, slots=True)
class Tokens:
    """A token response. `seconds` is None when the lifetime is unknown."""

    access: str = field(repr=False)
    refresh: str | None = field(default=None, repr=False)
    scope: str | None = None
    seconds: int | None = None


class TokenClient:
    """Gets tokens and stores them. Raises `AuthFailed`, and `Declined` where the authorization server refused."""

    def __init__(self, store: TokenStore, http: OAuthHttp, clock: Clock, secret: SecretFor) -> None:
        self._store = store
        self._http = http
        self._clock = clock
        self._secret = secret

    def send(self, server: HttpServer, owner: str | None) -> Send:
        """Sends requests on behalf of this MCP server."""
        return lambda request: self._http.send(request, server, owner)

    def expires_soon(self, grant: Grant) -> bool:
        if grant.expires_at is None:
            return False
        leeway = min(REFRESH_LEEWAY, (grant.expires_at - grant.granted_at) // 10)
        return self._clock.now() >= grant.expires_at - leeway

    async def refresh(self, server: HttpServer, grant: Grant) -> Grant | None:
        """New tokens for the refresh token; None where there is none. A grant that has ended is cleared."""
        client = registration.from_stored(grant.client)
        if grant.refresh_token is None or client is None:
            return None
        data = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token, "resource": grant.resource}
        try:
            tokens = await self._request(server, grant, client, data)
        except Declined as error:
            if error.code in GRANT_ENDED:
                await self._store.put(grant.without_tokens(keep_client=error.code != "invalid_client"))
            raise
        return await self._save(grant, tokens, grant.scope)

    async def client_credentials(
        self, server: HttpServer, owner: str | None, issuer: AuthorizationServer, scope: str | None
    ) -> Grant:
        """A token for the client itself; no person has to sign in."""
        auth = auth_of(server)
        if auth.client_id is None or auth.client_secret is None:
            raise AuthFailed("The grant client_credentials needs a `client_id` and a `client_secret`.")
        client = registration.configured_client(auth.client_id, has_secret=True, metadata=issuer.metadata)
        data = {"grant_type": "client_credentials", "resource": issuer.resource} | ({"scope": scope} if scope else {})
        grant = _new_grant(server, owner, issuer, client)
        return await self._save(grant, await self._request(server, grant, client, data), scope)

    async def exchange_code(self, pending: PendingAuthorization, code: str) -> Grant:
        """Tokens for the authorization code of a person."""
        data = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
            "resource": pending.authorization_server.resource,
        }
        grant = _new_grant(pending.server, pending.owner, pending.authorization_server, pending.client)
        return await self._save(grant, await self._request(pending.server, grant, pending.client, data), pending.scope)

    async def client(
        self,
        server: HttpServer,
        owner: str | None,
        issuer: AuthorizationServer,
        redirect: RedirectTarget,
        *,
        scope: str | None,
    ) -> Client:
        """The client to use: configured, by metadata document, registered before, or registered now."""
        auth = auth_of(server)
        if auth.client_id is not None:
            has_secret = auth.client_secret is not None
            return registration.configured_client(auth.client_id, has_secret=has_secret, metadata=issuer.metadata)
        if client := registration.document_client(issuer, redirect):
            return client
        stored = self._store.find(owner, server.name, issuer.issuer)
        known = registration.from_stored(stored.client) if stored is not None and stored.url == server.url else None
        if known is not None and known.is_valid_for(redirect, self._clock.now() // 1_000_000):
            return known
        client = await registration.register(self.send(server, owner), issuer, redirect, scope)
        if stored is None or stored.access_token is None:  # else its tokens belong to the former client
            await self._store.put(_new_grant(server, owner, issuer, client))
        return client

    async def _request(self, server: HttpServer, grant: Grant, client: Client, data: dict[str, str]) -> Tokens:
        secret = auth_of(server).client_secret
        if client.secret is None and client.method != "none" and secret is not None:
            host = require_https(grant.token_endpoint).host
            try:
                client = replace(client, secret=self._secret(grant.owner or ADMIN_PRINCIPAL, secret.secret, host))
            except CallError as error:
                raise AuthFailed(str(error)) from None
        return await request_tokens(self.send(server, grant.owner), grant.token_endpoint, client, data)

    async def _save(self, grant: Grant, tokens: Tokens, scope: str | None) -> Grant:
        """A response without a refresh token or scope leaves them as they were."""
        now = self._clock.now()
        saved = replace(
            grant,
            access_token=tokens.access,
            refresh_token=tokens.refresh or grant.refresh_token,
            scope=tokens.scope or scope,
            granted_at=now,
            expires_at=None if tokens.seconds is None else now + tokens.seconds * 1_000_000,
        )
        await self._store.put(saved)
        return saved


def auth_of(server: HttpServer) -> OAuth:
    return server.auth if isinstance(server.auth, OAuth) else DEFAULT_AUTH


def _new_grant(server: HttpServer, owner: str | None, issuer: AuthorizationServer, client: Client) -> Grant:
    return Grant(
        owner=owner,
        server=server.name,
        issuer=issuer.issuer,
        url=server.url,
        resource=issuer.resource,
        token_endpoint=str(issuer.metadata.token_endpoint),
        client=client.to_stored(),
    )


async def request_tokens(send: Send, endpoint: str, client: Client, data: dict[str, str]) -> Tokens:
    """One request to the token endpoint. Raises `Declined`, `Unreachable`, `AuthFailed`; none quotes the response."""
    from httpx2 import Request

    origin = require_https(endpoint).origin
    form, headers = _authenticate(client, data)
    response = await send(Request("POST", endpoint, data=form, headers=headers))
    if response.status_code in (200, 201):
        return await _read_tokens(response, origin)
    if response.status_code == 429 or response.status_code >= 500:
        raise Unreachable(f"{origin} answered {response.status_code} to the token request.")
    try:
        body: Any = json.loads(response.content)
    except ValueError:
        body = None
    code = error_code(body.get("error") if isinstance(body, dict) else None)
    raise Declined(origin, code or f"HTTP {response.status_code}")


async def _read_tokens(response: "Response", origin: str) -> Tokens:
    from mcp.client.auth import OAuthTokenError
    from mcp.client.auth.utils import handle_token_response_scopes

    try:
        token = await handle_token_response_scopes(response)
    except OAuthTokenError:  # it quotes the response
        raise AuthFailed(f"The token response of {origin} contains no bearer token.") from None
    if not BEARER_TOKEN.fullmatch(token.access_token):
        raise AuthFailed(f"The token of {origin} has characters that a header cannot carry.")
    seconds = None if token.expires_in is None else max(0, min(token.expires_in, MAX_LIFETIME_SECONDS))
    return Tokens(token.access_token, token.refresh_token or None, token.scope, seconds)


def error_code(value: Any) -> str | None:
    """An OAuth error code, if it is one."""
    return value if isinstance(value, str) and ERROR_CODE.fullmatch(value) else None


def _authenticate(client: Client, data: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The form and the headers with the client authentication (RFC 6749, section 2.3.1)."""
    data, headers = data | {"client_id": client.id}, {"Accept": "application/json"}
    if client.secret is None or client.method == "none":
        return data, headers
    if client.method == "client_secret_post":
        return data | {"client_secret": client.secret}, headers
    pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
    return data, headers | {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
