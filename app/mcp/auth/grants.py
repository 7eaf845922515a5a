"""Grants: what the token endpoint of an issuer gives for a code, for a refresh token, or for our own name."""

import base64
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from app.mcp.auth.couriers import AuthFailed, Unreachable, require_safe
from app.mcp.auth.issuers import Send
from app.mcp.auth.registrations import Client

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
