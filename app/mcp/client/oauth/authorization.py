"""Authorization code flows in progress: started here, finished by a person in a browser. A restart ends them."""

from dataclasses import dataclass, field
from urllib.parse import urlencode

from app.core.mcp_servers import HttpServer
from app.core.principals import digest, new_token
from app.core.util.urls import read_url
from app.mcp.client.oauth.discovery import AuthorizationServer
from app.mcp.client.oauth.http import AuthFailed, is_loopback, require_https
from app.mcp.client.oauth.registration import Client, RedirectTarget

TTL_SECONDS = 600
MAX_PER_SERVER = 16
MAX_PENDING = 1024


class UnknownState(AuthFailed):
    """The `state` is unknown, was used already, or has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAuthorization:
    """What is needed when the person comes back."""

    server: HttpServer
    owner: str | None
    by: str
    authorization_server: AuthorizationServer
    client: Client
    scope: str | None
    redirect_uri: str
    verifier: str = field(repr=False)

    def url(self, state: str, challenge: str) -> str:
        """The URL that the person opens."""
        params = {
            "response_type": "code",
            "client_id": self.client.id,
            "redirect_uri": self.redirect_uri,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "resource": self.authorization_server.resource,
        }
        if self.scope:
            params["scope"] = self.scope
            if "offline_access" in self.scope.split():  # OpenID Connect gives no refresh token without it
                params["prompt"] = "consent"
        endpoint = str(self.authorization_server.metadata.authorization_endpoint)
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(params)}"


class PendingAuthorizations:
    """The pending authorizations, oldest first, by the digest of their `state`."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[PendingAuthorization, float]] = {}

    def add(self, authorization: PendingAuthorization, now: float) -> str:
        """Store it and return its `state`. `now` is monotonic."""
        self._make_room(authorization, now)
        state = new_token("")
        self._pending[digest(state)] = authorization, now + TTL_SECONDS
        return state

    def take(self, state: str, now: float) -> PendingAuthorization:
        """The authorization of a `state`, which can be used once. Raises `UnknownState`."""
        authorization, expires_at = self._pending.pop(digest(state), (None, 0.0))
        if authorization is None or now >= expires_at:
            raise UnknownState("This sign-in is unknown: it was finished already, it expired, or it was canceled.")
        return authorization

    def drop(self, owner: str | None, server: str) -> None:
        """Remove all of a server."""
        for state in self._states_of(owner, server):
            del self._pending[state]

    def _make_room(self, new: PendingAuthorization, now: float) -> None:
        self._pending = {state: entry for state, entry in self._pending.items() if now < entry[1]}
        same = self._states_of(new.owner, new.server.name)
        if len(same) >= MAX_PER_SERVER:
            del self._pending[same[0]]
        if len(self._pending) >= MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    def _states_of(self, owner: str | None, server: str) -> list[str]:
        return [state for state, (one, _) in self._pending.items() if (one.owner, one.server.name) == (owner, server)]


def require_pkce(server: AuthorizationServer, redirect: RedirectTarget) -> None:
    """Raises `AuthFailed` unless the flow is protected by PKCE and https."""
    require_https(str(server.metadata.authorization_endpoint))
    if "S256" not in (server.metadata.code_challenge_methods_supported or ()):
        raise AuthFailed(f"{server.issuer} does not support PKCE (S256), which is required.")
    url = read_url(redirect.callback)
    if url.scheme != "https" and not is_loopback(url.host):
        raise AuthFailed(f"The redirect to {url.origin} is not https; set public_url to an https URL.")


def new_pkce() -> tuple[str, str]:
    """A code challenge and its verifier."""
    from mcp.client.auth import PKCEParameters

    pkce = PKCEParameters.generate()
    return pkce.code_challenge, pkce.code_verifier


def check_issuer(iss: str | None, server: AuthorizationServer) -> None:
    """Check the `iss` parameter against mix-up attacks (RFC 9207). Raises `AuthFailed`."""
    from mcp.client.auth import OAuthFlowError
    from mcp.client.auth.utils import validate_authorization_response_iss

    try:
        validate_authorization_response_iss(iss, server.metadata)
    except OAuthFlowError:
        raise AuthFailed(f"The authorization response is not from {server.issuer}, where it was started.") from None
