"""The cashier: gets tokens from issuers, proving who we are, and keeps them.

Grants: what the token endpoint of an issuer gives for a code, for a refresh token, or for our own name.
"""

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
from app.mcp.client.oauth.http import AuthFailed, OAuthHttp, Unreachable, require_safe
from app.mcp.client.oauth.registration import Client, RedirectTarget
from app.store.mcp import Grant, TokenStore

if TYPE_CHECKING:
    from httpx2 import Response


BEARER = re.compile(r"[A-Za-z0-9._~+/-]{1,16384}=*")
"""A token that a header can carry (RFC 6750)."""
ERROR = re.compile(r"[a-z_]{1,64}")
LONGEST = 10 * 366 * 86_400
"""Seconds: a token that is said to last longer is taken to last this long."""


class Declined(AuthFailed):
    """The issuer answered, and the answer is no. `code` is its word for why."""

    def __init__(self, origin: str, code: str) -> None:
        super().__init__(f"{origin} declined: {code}.")
        self.code = code


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an issuer gave. Without `seconds` nobody knows how long it lasts."""

    access: str = field(repr=False)
    refresh: str | None = field(default=None, repr=False)
    scope: str | None = None
    seconds: int | None = None


async def ask(send: Send, endpoint: str, client: Client, data: dict[str, str]) -> Tokens:
    """One request to the token endpoint. Raises `Declined`, `Unreachable`, `AuthFailed`; none quotes the answer."""
    from httpx2 import Request

    origin = require_safe(endpoint).origin
    form, headers = _proven(client, data)
    answer = await send(Request("POST", endpoint, data=form, headers=headers))
    if answer.status_code in (200, 201):
        return await _tokens(answer, origin)
    if answer.status_code == 429 or answer.status_code >= 500:
        raise Unreachable(f"{origin} answered {answer.status_code} when it was asked for a token.")
    raise Declined(origin, _code(answer))


async def _tokens(answer: "Response", origin: str) -> Tokens:
    from mcp.client.auth import OAuthTokenError
    from mcp.client.auth.utils import handle_token_response_scopes

    try:
        token = await handle_token_response_scopes(answer)
    except OAuthTokenError:  # it quotes what it cannot read
        raise AuthFailed(f"{origin} answered with what is no bearer token.") from None
    if not BEARER.fullmatch(token.access_token):
        raise AuthFailed(f"{origin} answered with a token that no header can carry.")
    seconds = None if token.expires_in is None else max(0, min(token.expires_in, LONGEST))
    return Tokens(token.access_token, token.refresh_token or None, token.scope, seconds)


def _code(answer: "Response") -> str:
    """The issuer's word for what is wrong, if it is one."""
    try:
        body: Any = json.loads(answer.content)
    except ValueError:
        body = None
    return known_code(body.get("error") if isinstance(body, dict) else None) or f"HTTP {answer.status_code}"


def known_code(given: Any) -> str | None:
    return given if isinstance(given, str) and ERROR.fullmatch(given) else None


def _proven(client: Client, data: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The form and the headers with what proves who we are (RFC 6749, section 2.3.1)."""
    data, headers = data | {"client_id": client.id}, {"Accept": "application/json"}
    if client.secret is None or client.method == "none":
        return data, headers
    if client.method == "client_secret_post":
        return data | {"client_secret": client.secret}, headers
    pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
    return data, headers | {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


SecretFor = Callable[[str, str, str], str]
"""An owner's secret by name, for a host. Raises `CallError`."""

LEEWAY = 60_000_000
"""Microseconds before its end at which a token is renewed; of a short life it is a tenth."""
OVER = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
"""What an issuer says when nothing can be had with what we hold."""
PLAIN = OAuth(type="oauth")


class TokenClient:
    """What it gives out is committed. All of it raises `AuthFailed`, and `Declined` where the issuer said no."""

    def __init__(self, book: TokenStore, courier: OAuthHttp, clock: Clock, secret: SecretFor) -> None:
        self._book = book
        self._courier = courier
        self._clock = clock
        self._secret = secret

    def send(self, server: HttpServer, owner: str | None) -> Send:
        """How requests for this server go out."""
        return lambda request: self._courier.carry(request, server, owner)

    def is_due(self, grant: Grant) -> bool:
        """Whether a token runs out, or soon will."""
        if grant.expires_at is None:
            return False
        leeway = min(LEEWAY, (grant.expires_at - grant.granted_at) // 10)
        return self._clock.now() >= grant.expires_at - leeway

    async def renew(self, server: HttpServer, grant: Grant) -> Grant | None:
        """The same once more, with its refresh token; None where there is none. What is over is dropped."""
        client = registration.read_kept(grant.client)
        if grant.refresh_token is None or client is None:
            return None
        data = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token, "resource": grant.resource}
        try:
            tokens = await self._ask(server, grant, client, data)
        except Declined as error:
            if error.code in OVER:
                await self._book.put(grant.without_tokens(keep_client=error.code != "invalid_client"))
            raise
        return await self._keep(grant, tokens, grant.scope)

    async def take_alone(
        self, server: HttpServer, owner: str | None, issuer: AuthorizationServer, scope: str | None
    ) -> Grant:
        """A token for our own name; nobody has to sign in."""
        auth = auth_of(server)
        if auth.client_id is None or auth.client_secret is None:
            raise AuthFailed("The grant client_credentials needs a `client_id` and a `client_secret`.")
        client = registration.configured(auth.client_id, has_secret=True, metadata=issuer.metadata)
        data = {"grant_type": "client_credentials", "resource": issuer.resource} | ({"scope": scope} if scope else {})
        grant = _grant(server, owner, issuer, client)
        return await self._keep(grant, await self._ask(server, grant, client, data), scope)

    async def take_for(self, sign_in: PendingAuthorization, code: str) -> Grant:
        """Tokens for the code that a person brought."""
        data = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": sign_in.redirect_uri,
            "code_verifier": sign_in.verifier,
            "resource": sign_in.issuer.resource,
        }
        grant = _grant(sign_in.server, sign_in.owner, sign_in.issuer, sign_in.client)
        return await self._keep(grant, await self._ask(sign_in.server, grant, sign_in.client, data), sign_in.scope)

    async def client(
        self,
        server: HttpServer,
        owner: str | None,
        issuer: AuthorizationServer,
        home: RedirectTarget,
        *,
        scope: str | None,
    ) -> Client:
        """Who we are there: as configured, by our document, as registered before, or registered now."""
        auth = auth_of(server)
        if auth.client_id is not None:
            has_secret = auth.client_secret is not None
            return registration.configured(auth.client_id, has_secret=has_secret, metadata=issuer.metadata)
        if documented := registration.documented(issuer, home):
            return documented
        kept = self._book.find(owner, server.name, issuer.name)
        known = registration.read_kept(kept.client) if kept is not None and kept.url == server.url else None
        if known is not None and known.is_good_for(home, self._clock.now() // 1_000_000):
            return known
        client = await registration.register(self.send(server, owner), issuer, home, scope)
        if kept is None or kept.access_token is None:  # else the tokens there belong to who we were
            await self._book.put(_grant(server, owner, issuer, client))
        return client

    async def _ask(self, server: HttpServer, grant: Grant, client: Client, data: dict[str, str]) -> Tokens:
        secret = auth_of(server).client_secret
        if client.secret is None and client.method != "none" and secret is not None:
            host = require_safe(grant.token_endpoint).host
            try:
                client = replace(client, secret=self._secret(grant.owner or ADMIN_PRINCIPAL, secret.secret, host))
            except CallError as error:
                raise AuthFailed(str(error)) from None
        return await ask(self.send(server, grant.owner), grant.token_endpoint, client, data)

    async def _keep(self, grant: Grant, tokens: Tokens, scope: str | None) -> Grant:
        """What an issuer leaves out stays as it was: the refresh token, and the scope that was asked for."""
        now = self._clock.now()
        kept = replace(
            grant,
            access_token=tokens.access,
            refresh_token=tokens.refresh or grant.refresh_token,
            scope=tokens.scope or scope,
            granted_at=now,
            expires_at=None if tokens.seconds is None else now + tokens.seconds * 1_000_000,
        )
        await self._book.put(kept)
        return kept


def auth_of(server: HttpServer) -> OAuth:
    """How a server is signed in at; of one that does not say there is a usual way."""
    return server.auth if isinstance(server.auth, OAuth) else PLAIN


def _grant(server: HttpServer, owner: str | None, issuer: AuthorizationServer, client: Client) -> Grant:
    return Grant(
        owner=owner,
        server=server.name,
        issuer=issuer.name,
        url=server.url,
        resource=issuer.resource,
        token_endpoint=str(issuer.metadata.token_endpoint),
        client=client.kept(),
    )
