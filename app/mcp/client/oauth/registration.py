"""Registrations: who we are at an issuer."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.core.util.json_codec import Raw
from app.mcp.client.oauth.discovery import AuthorizationServer, Send
from app.mcp.client.oauth.http import AuthFailed, is_loopback, require_safe

if TYPE_CHECKING:
    from mcp.shared.auth import OAuthMetadata

CALLBACK = "/oauth/callback"
DOCUMENT = "/oauth/client.json"
NAME = "Toolcrib"
METHODS = ("client_secret_basic", "client_secret_post", "none")
"""How we can prove who we are, the best way first."""
GRANTS = ["authorization_code", "refresh_token"]


@dataclass(frozen=True, slots=True)
class RedirectTarget:
    """Where people come back to after signing in, and where an issuer can read about us, if it can reach us."""

    callback: str
    document: str | None

    @classmethod
    def at(cls, base: str, *, is_public: bool) -> "RedirectTarget":
        return cls(f"{base}{CALLBACK}", f"{base}{DOCUMENT}" if is_public and base.startswith("https://") else None)


@dataclass(frozen=True, slots=True)
class Client:
    """Who we are at an issuer, and how we prove it. A configured secret is looked up anew each time, and not kept."""

    id: str
    method: str
    secret: str | None = field(default=None, repr=False)
    redirect_uri: str | None = None
    secret_expires_at: int = 0

    def kept(self) -> Raw:
        return {
            "client_id": self.id,
            "method": self.method,
            "client_secret": self.secret,
            "redirect_uri": self.redirect_uri,
            "secret_expires_at": self.secret_expires_at,
        }

    def is_good_for(self, home: RedirectTarget, now: int) -> bool:
        """Whether it can be used again. `now` is in seconds."""
        return self.redirect_uri == home.callback and not 0 < self.secret_expires_at <= now + 600


def read_kept(client: Raw) -> Client | None:
    if not client.get("client_id"):
        return None
    return Client(
        client["client_id"],
        client["method"],
        client.get("client_secret"),
        client.get("redirect_uri"),
        client.get("secret_expires_at") or 0,
    )


def configured(id: str, *, has_secret: bool, metadata: "OAuthMetadata") -> Client:
    """The operator registered us; only the way to prove it is chosen."""
    return Client(id, _method(metadata, has_secret=has_secret))


def document(home: RedirectTarget) -> Raw:
    """What issuers read about us where we say our name is this document's address."""
    return {
        "client_id": home.document,
        "client_name": NAME,
        "redirect_uris": [home.callback],
        "grant_types": GRANTS,
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "web",
    }


def documented(issuer: AuthorizationServer, home: RedirectTarget) -> Client | None:
    """Our document as our name, where the issuer takes that and can reach it."""
    from mcp.client.auth.utils import should_use_client_metadata_url

    if home.document is None or not should_use_client_metadata_url(issuer.metadata, home.document):
        return None
    return Client(home.document, "none", redirect_uri=home.callback)


async def register(send: Send, issuer: AuthorizationServer, home: RedirectTarget, scope: str | None) -> Client:
    """Register ourselves (RFC 7591). Raises `AuthFailed`, never with what was answered: it may hold a secret."""
    from mcp.client.auth import OAuthRegistrationError
    from mcp.client.auth.oauth2 import check_registration_usable
    from mcp.client.auth.utils import create_client_registration_request, handle_registration_response
    from mcp.shared.auth import OAuthClientMetadata

    if issuer.metadata.registration_endpoint is None:
        raise AuthFailed(f"{issuer.name} registers nobody by itself; give the server's `auth` a `client_id`.")
    where = require_safe(str(issuer.metadata.registration_endpoint))
    about = OAuthClientMetadata.model_validate(
        {
            "client_name": NAME,
            "redirect_uris": [home.callback],
            "grant_types": GRANTS,
            "scope": scope,
            "token_endpoint_auth_method": _method(issuer.metadata, has_secret=True),
            "application_type": "native" if is_loopback(require_safe(home.callback).host) else "web",
        }
    )
    answer = await send(create_client_registration_request(issuer.metadata, about, where.origin))
    try:
        made = await handle_registration_response(answer)
        check_registration_usable(made)
    except OAuthRegistrationError:
        raise AuthFailed(f"{where.origin} did not register us (HTTP {answer.status_code}).") from None
    # Where the answer does not say how, a secret goes into the header.
    method = made.token_endpoint_auth_method or ("client_secret_basic" if made.client_secret else "none")
    return Client(made.client_id, method, made.client_secret, home.callback, made.client_secret_expires_at or 0)


def _method(metadata: "OAuthMetadata", *, has_secret: bool) -> str:
    if not has_secret:
        return "none"
    offered = metadata.token_endpoint_auth_methods_supported or ["client_secret_basic"]
    return next((method for method in METHODS if method in offered), "client_secret_basic")
