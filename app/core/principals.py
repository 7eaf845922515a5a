"""Principals and keys: who owns things, and how they show it."""

import base64
import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.core.clocks import rfc3339
from app.core.ids import Ids

ADMIN_PRINCIPAL = "admin"
PRINCIPAL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"


class Scope(StrEnum):
    """What a key may do. `admin` may do everything and sees everything."""

    CALLS_RUN = "calls:run"
    CALLS_READ = "calls:read"
    ASKS_ANSWER = "asks:answer"
    TOOLS_WRITE = "tools:write"
    RULES_WRITE = "rules:write"
    SECRETS_WRITE = "secrets:write"
    METRICS = "metrics"
    ADMIN = "admin"


DEFAULT_SCOPES = frozenset({Scope.CALLS_RUN, Scope.CALLS_READ})


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is kept: never the token itself, only its digest."""

    id: str
    principal: str
    name: str
    scopes: frozenset[Scope]
    digest: str
    created_at: int
    revoked_at: int | None = None

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    @property
    def sees(self) -> str | None:
        """Whose things this key sees: one principal's, or everybody's (None)."""
        return None if Scope.ADMIN in self.scopes else self.principal

    def view(self) -> dict[str, Any]:
        """The key as the world sees it: never its digest."""
        return {
            "id": self.id,
            "principal": self.principal,
            "name": self.name,
            "scopes": sorted(self.scopes),
            "created_at": rfc3339(self.created_at),
            "revoked_at": None if self.revoked_at is None else rfc3339(self.revoked_at),
        }


def make_key(ids: Ids, principal: str, name: str, scopes: Iterable[Scope]) -> tuple[Key, str]:
    """A new key, and the token that will never be seen again."""
    token = new_token()
    id, at = ids.new("key")
    return Key(id, principal, name, frozenset(scopes), digest(token), at), token


def new_token(prefix: str = "tk_") -> str:
    """256 random bits behind a prefix that secret scanners can find."""
    return prefix + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()


def digest(token: str) -> str:
    """Tokens are random, so one plain hash is enough; nothing to guess, nothing to salt."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
