"""The OAuth client that Toolcrib is at an authorization server: configured, a metadata document, or registered."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.core.util.json_codec import Raw
from app.mcp.client.oauth.discovery import AuthorizationServer, Send
from app.mcp.client.oauth.http import AuthFailed, is_loopback, require_https

if TYPE_CHECKING:
    from mcp.shared.auth import OAuthMetadata

CALLBACK = "/oauth/callback"
DOCUMENT = "/oauth/client.json"
NAME = "Toolcrib"
AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")
"""How the client authenticates at the token endpoint, preferred first."""
GRANT_TYPES = ["authorization_code", "refresh_token"]
SECRET_EXPIRY_SECONDS = 600


@dataclass(frozen=True, slots=True)
class RedirectTarget:
    """The redirect URI, and the URL of the client metadata document if authorization servers can reach it."""

    callback: str
    document: str | None

    @classmethod
    def at(cls, base: str, *, is_public: bool) -> "RedirectTarget":
        return cls(f"{base}{CALLBACK}", f"{base}{DOCUMENT}" if is_public and base.startswith("https://") else None)


@dataclass(frozen=True, slots=True)
class Client:
    """An OAuth client. A configured secret is looked up for each request, and not stored."""

    id: str
    method: str
    secret: str | None = field(default=None, repr=False)
    redirect_uri: str | None = None
    secret_expires_at: int = 0

    def to_stored(self) -> Raw:
        return {
            "client_id": self.id,
            "method": self.method,
            "client_secret": self.secret,
            "redirect_uri": self.redirect_uri,
            "secret_expires_at": self.secret_expires_at,
        }

    def is_valid_for(self, redirect: RedirectTarget, now: int) -> bool:
        """Whether it can be used again. `now` is in seconds."""
        is_expiring = 0 < self.secret_expires_at <= now + SECRET_EXPIRY_SECONDS
        return self.redirect_uri == redirect.callback and not is_expiring


def from_stored(client: Raw) -> Client | None:
    if not client.get("client_id"):
        return None
    return Client(
        client["client_id"],
        client["method"],
        client.get("client_secret"),
        client.get("redirect_uri"),
        client.get("secret_expires_at") or 0,
    )


def configured_client(id: str, *, has_secret: bool, metadata: "OAuthMetadata") -> Client:
    """The client that the operator registered."""
    return Client(id, _auth_method(metadata, has_secret=has_secret))


def metadata_document(redirect: RedirectTarget) -> Raw:
    """The client metadata document, whose URL is the client id."""
    return {
        "client_id": redirect.document,
        "client_name": NAME,
        "redirect_uris": [redirect.callback],
        "grant_types": GRANT_TYPES,
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "web",
    }


def document_client(server: AuthorizationServer, redirect: RedirectTarget) -> Client | None:
    """The client of our metadata document, where the authorization server supports that and can reach it."""
    from mcp.client.auth.utils import should_use_client_metadata_url

    if redirect.document is None or not should_use_client_metadata_url(server.metadata, redirect.document):
        return None
    return Client(redirect.document, "none", redirect_uri=redirect.callback)


async def register(send: Send, server: AuthorizationServer, redirect: RedirectTarget, scope: str | None) -> Client:
    """Register a client (RFC 7591). Raises `AuthFailed`, never with the response: it may contain a secret."""
    from mcp.client.auth import OAuthRegistrationError
    from mcp.client.auth.oauth2 import check_registration_usable
    from mcp.client.auth.utils import create_client_registration_request, handle_registration_response
    from mcp.shared.auth import OAuthClientMetadata

    if server.metadata.registration_endpoint is None:
        raise AuthFailed(f"{server.issuer} has no dynamic registration; give the server's `auth` a `client_id`.")
    url = require_https(str(server.metadata.registration_endpoint))
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": NAME,
            "redirect_uris": [redirect.callback],
            "grant_types": GRANT_TYPES,
            "scope": scope,
            "token_endpoint_auth_method": _auth_method(server.metadata, has_secret=True),
            "application_type": "native" if is_loopback(require_https(redirect.callback).host) else "web",
        }
    )
    response = await send(create_client_registration_request(server.metadata, metadata, url.origin))
    try:
        info = await handle_registration_response(response)
        check_registration_usable(info)
    except OAuthRegistrationError:
        raise AuthFailed(f"{url.origin} refused the registration (HTTP {response.status_code}).") from None
    method = info.token_endpoint_auth_method or ("client_secret_basic" if info.client_secret else "none")
    return Client(info.client_id, method, info.client_secret, redirect.callback, info.client_secret_expires_at or 0)


def _auth_method(metadata: "OAuthMetadata", *, has_secret: bool) -> str:
    if not has_secret:
        return "none"
    offered = metadata.token_endpoint_auth_methods_supported or ["client_secret_basic"]
    return next((method for method in AUTH_METHODS if method in offered), "client_secret_basic")
