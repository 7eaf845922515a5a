"""Signing in at an issuer we did not write: the SDK's own, as many Python servers have it."""

import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes, create_protected_resource_routes
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette

from app.core.mcp_servers import HttpServer
from tests.mcp.authorization_server import served
from tests.mcp.oauth_managers import Signing

SCOPES = ["docs:read"]


class Provider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Keeps what the SDK's handlers give it to keep, and agrees to everything they let through."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(24),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._give(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        return self._give(client.client_id, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)

    def _give(self, client: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access, refresh = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.access[access] = AccessToken(token=access, client_id=client, scopes=scopes, resource=resource)
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client, scopes=scopes, resource=resource)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=600, scope=" ".join(scopes))


@pytest.fixture
async def signing(data_dir: Path) -> AsyncIterator[Signing]:
    signing = await Signing(data_dir).open()
    yield signing
    await signing.close()


async def test_the_sdks_own_issuer_gives_and_renews_tokens(signing: Signing) -> None:
    provider = Provider()

    def app(origin: str) -> Starlette:
        registration = ClientRegistrationOptions(enabled=True, valid_scopes=SCOPES, default_scopes=SCOPES)
        at, issuer = AnyHttpUrl(f"{origin}/mcp"), AnyHttpUrl(origin)
        return Starlette(
            routes=[
                *create_auth_routes(provider, issuer, client_registration_options=registration),
                *create_protected_resource_routes(at, [issuer], SCOPES),
            ]
        )

    async with served(app) as origin:
        server = HttpServer(name="docs", kind="http", url=f"{origin}/mcp")
        await signing.sign_in(server, "alice")
        first = await signing.token(server, "alice")
        signing.clock.added = 700
        second = await signing.token(server, "alice")

    [client] = provider.clients.values()
    granted = provider.access[(second or "").removeprefix("Bearer ")]
    assert first != second
    assert (granted.client_id, granted.scopes, granted.resource) == (client.client_id, SCOPES, f"{origin}/mcp")
    assert client.token_endpoint_auth_method == "client_secret_basic"
