"""Sign-ins under way: begun here, finished by a person elsewhere. A restart voids them."""

from dataclasses import dataclass, field
from urllib.parse import urlencode

from app.core.mcp_servers import HttpServer
from app.core.principals import digest, new_token
from app.core.util.urls import read_url
from app.mcp.client.oauth.discovery import AuthorizationServer
from app.mcp.client.oauth.http import AuthFailed, is_loopback, require_safe
from app.mcp.client.oauth.registration import Client, RedirectTarget

SECONDS = 600
PER_SERVER = 16
OVERALL = 1024


class UnknownState(AuthFailed):
    """Nobody began this, or it was finished already, or it took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAuthorization:
    """What has to be known again when the person comes back."""

    server: HttpServer
    owner: str | None
    by: str
    issuer: AuthorizationServer
    client: Client
    scope: str | None
    redirect_uri: str
    verifier: str = field(repr=False)

    def url(self, state: str, challenge: str) -> str:
        """Where the person goes, with what they take along."""
        asked = {
            "response_type": "code",
            "client_id": self.client.id,
            "redirect_uri": self.redirect_uri,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "resource": self.issuer.resource,
        }
        if self.scope:
            asked["scope"] = self.scope
            if "offline_access" in self.scope.split():  # OpenID Connect gives no refresh token without it
                asked["prompt"] = "consent"
        endpoint = str(self.issuer.metadata.authorization_endpoint)
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"


class PendingAuthorizations:
    """Those begun and not finished, oldest first; of each state only the digest is kept."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[PendingAuthorization, float]] = {}

    def add(self, sign_in: PendingAuthorization, now: float) -> str:
        """Remember it; the answer is the state that finds it again. `now` is monotonic."""
        self._make_room(sign_in, now)
        state = new_token("")
        self._begun[digest(state)] = sign_in, now + SECONDS
        return state

    def take(self, state: str, now: float) -> PendingAuthorization:
        """The sign-in of a state, which is used up by asking. Raises `UnknownState`."""
        found = self._begun.pop(digest(state), None)
        if found is None or now >= found[1]:
            raise UnknownState("This sign-in is not known: it was finished already, it took too long, or it was ended.")
        return found[0]

    def drop(self, owner: str | None, server: str) -> None:
        """End all of a server."""
        self._begun = {
            state: one for state, one in self._begun.items() if (one[0].owner, one[0].server.name) != (owner, server)
        }

    def _make_room(self, sign_in: PendingAuthorization, now: float) -> None:
        self._begun = {state: one for state, one in self._begun.items() if now < one[1]}
        same = [
            state
            for state, (one, _) in self._begun.items()
            if (one.owner, one.server.name) == (sign_in.owner, sign_in.server.name)
        ]
        if len(same) >= PER_SERVER:
            del self._begun[same[0]]
        if len(self._begun) >= OVERALL:
            del self._begun[next(iter(self._begun))]


def require_usable(issuer: AuthorizationServer, home: RedirectTarget) -> None:
    """Whether a person can be sent there, and come back, without others taking over. Raises `AuthFailed`."""
    require_safe(str(issuer.metadata.authorization_endpoint))
    if "S256" not in (issuer.metadata.code_challenge_methods_supported or ()):
        raise AuthFailed(f"{issuer.name} does not say that it checks codes with PKCE (S256), so none is asked for.")
    where = read_url(home.callback)
    if where.scheme != "https" and not is_loopback(where.host):
        raise AuthFailed(f"Nobody is sent back to {where.origin}, which is not https; set public_url to one that is.")


def new_proof() -> tuple[str, str]:
    """What the person takes along, and what shows later that it was us who sent them (PKCE)."""
    from mcp.client.auth import PKCEParameters

    proof = PKCEParameters.generate()
    return proof.code_challenge, proof.code_verifier


def check_sender(iss: str | None, issuer: AuthorizationServer) -> None:
    """Another issuer could send its own code along (RFC 9207). Raises `AuthFailed`."""
    from mcp.client.auth import OAuthFlowError
    from mcp.client.auth.utils import validate_authorization_response_iss

    try:
        validate_authorization_response_iss(iss, issuer.metadata)
    except OAuthFlowError:
        raise AuthFailed(f"The answer is not from {issuer.name}, where the sign-in was begun.") from None
