"""The cashier: gets tokens from issuers, proving who we are, and keeps them."""

from collections.abc import Callable
from dataclasses import replace

from app.core.errors import CallError
from app.core.mcp_servers import HttpServer, OAuth
from app.core.ports import Clock
from app.core.principals import ADMIN_PRINCIPAL
from app.mcp.auth import grants, registrations
from app.mcp.auth.couriers import AuthFailed, Courier, require_safe
from app.mcp.auth.grants import Declined, Tokens
from app.mcp.auth.issuers import Issuer, Send
from app.mcp.auth.registrations import Client, Home
from app.mcp.auth.signins import SignIn
from app.store.mcp_tokens import Grant, TokenBook

SecretFor = Callable[[str, str, str], str]
"""An owner's secret by name, for a host. Raises `CallError`."""

LEEWAY = 60_000_000
"""Microseconds before its end at which a token is renewed; of a short life it is a tenth."""
OVER = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
"""What an issuer says when nothing can be had with what we hold."""
PLAIN = OAuth(type="oauth")


class Cashier:
    """What it gives out is committed. All of it raises `AuthFailed`, and `Declined` where the issuer said no."""

    def __init__(self, book: TokenBook, courier: Courier, clock: Clock, secret: SecretFor) -> None:
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
        client = registrations.read_kept(grant.client)
        if grant.refresh_token is None or client is None:
            return None
        data = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token, "resource": grant.resource}
        try:
            tokens = await self._ask(server, grant, client, data)
        except Declined as error:
            if error.code in OVER:
                await self._book.put(grant.emptied(registered=error.code != "invalid_client"))
            raise
        return await self._keep(grant, tokens, grant.scope)

    async def take_alone(self, server: HttpServer, owner: str | None, issuer: Issuer, scope: str | None) -> Grant:
        """A token for our own name; nobody has to sign in."""
        auth = auth_of(server)
        if auth.client_id is None or auth.client_secret is None:
            raise AuthFailed("The grant client_credentials needs a `client_id` and a `client_secret`.")
        client = registrations.configured(auth.client_id, has_secret=True, metadata=issuer.metadata)
        data = {"grant_type": "client_credentials", "resource": issuer.resource} | ({"scope": scope} if scope else {})
        grant = _grant(server, owner, issuer, client)
        return await self._keep(grant, await self._ask(server, grant, client, data), scope)

    async def take_for(self, sign_in: SignIn, code: str) -> Grant:
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
        self, server: HttpServer, owner: str | None, issuer: Issuer, home: Home, *, scope: str | None
    ) -> Client:
        """Who we are there: as configured, by our document, as registered before, or registered now."""
        auth = auth_of(server)
        if auth.client_id is not None:
            has_secret = auth.client_secret is not None
            return registrations.configured(auth.client_id, has_secret=has_secret, metadata=issuer.metadata)
        if documented := registrations.documented(issuer, home):
            return documented
        kept = self._book.at(owner, server.name, issuer.name)
        known = registrations.read_kept(kept.client) if kept is not None and kept.url == server.url else None
        if known is not None and known.is_good_for(home, self._clock.now() // 1_000_000):
            return known
        client = await registrations.register(self.send(server, owner), issuer, home, scope)
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
        return await grants.ask(self.send(server, grant.owner), grant.token_endpoint, client, data)

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


def _grant(server: HttpServer, owner: str | None, issuer: Issuer, client: Client) -> Grant:
    return Grant(
        owner=owner,
        server=server.name,
        issuer=issuer.name,
        url=server.url,
        resource=issuer.resource,
        token_endpoint=str(issuer.metadata.token_endpoint),
        client=client.kept(),
    )
