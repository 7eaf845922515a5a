"""Principals, which own sessions and calls, and their API keys."""

import base64
import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from app.core.rules import Approval, Rule, RuleScope, matches, to_rule
from app.core.sessions import is_inside
from app.core.util.clocks import rfc3339
from app.core.util.ids import Ids

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
OnAsk = Literal["wait", "deny"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a key is limited to, besides its scopes. Empty or None means no limit.

    `sessions` and `tools` are patterns, `workspaces` are directories.
    """

    sessions: tuple[str, ...] = ()
    workspaces: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    approval: Approval | None = None
    on_ask: OnAsk | None = None
    calls_per_minute: int | None = None
    concurrent_calls: int | None = None
    streams: int | None = None

    def allows_tool(self, name: str) -> bool:
        return not self.tools or any(matches(pattern, name) for pattern in self.tools)

    def allows_session(self, id: str) -> bool:
        return not self.sessions or any(matches(pattern, id) for pattern in self.sessions)

    def allows_workspace(self, root: str) -> bool:
        return not self.workspaces or any(is_inside(root, folder) for folder in self.workspaces)

    def allows_scope(self, scope: RuleScope) -> bool:
        """Whether rules of this scope stay within the bounds."""
        if scope is RuleScope.SESSION:
            return True
        return not self.sessions and (scope is RuleScope.WORKSPACE or not self.workspaces)

    def view(self) -> dict[str, Any]:
        """The JSON form, for the API and the database."""
        return {
            "sessions": list(self.sessions),
            "workspaces": list(self.workspaces),
            "tools": list(self.tools),
            "rules": [rule.view() for rule in self.rules],
            "approval": self.approval,
            "on_ask": self.on_ask,
            "calls_per_minute": self.calls_per_minute,
            "concurrent_calls": self.concurrent_calls,
            "streams": self.streams,
        }


UNBOUND = Bounds()


def to_bounds(view: dict[str, Any]) -> Bounds:
    """Bounds from their JSON form."""
    lists = {name: tuple(view[name]) for name in ("sessions", "workspaces", "tools")}
    return Bounds(**view | lists | {"rules": tuple(to_rule(rule) for rule in view["rules"])})


@dataclass(frozen=True, slots=True)
class Key:
    """A stored key: the digest of its token, never the token itself."""

    id: str
    principal: str
    name: str
    scopes: frozenset[Scope]
    digest: str
    created_at: int
    revoked_at: int | None = None
    bounds: Bounds = UNBOUND

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    @property
    def sees(self) -> str | None:
        """The principal whose data this key sees; None: all."""
        return None if Scope.ADMIN in self.scopes else self.principal

    def view(self) -> dict[str, Any]:
        """The key as API clients see it, without its digest."""
        return {
            "id": self.id,
            "principal": self.principal,
            "name": self.name,
            "scopes": sorted(self.scopes),
            "bounds": self.bounds.view(),
            "created_at": rfc3339(self.created_at),
            "revoked_at": None if self.revoked_at is None else rfc3339(self.revoked_at),
        }


def make_key(ids: Ids, principal: str, name: str, scopes: Iterable[Scope], bounds: Bounds = UNBOUND) -> tuple[Key, str]:
    """A new key and its token, which is not stored."""
    token = new_token()
    id, at = ids.new("key")
    return Key(id, principal, name, frozenset(scopes), digest(token), at, bounds=bounds), token


def new_token(prefix: str = "tk_") -> str:
    """256 random bits with a prefix that secret scanners can find."""
    return prefix + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()


def digest(token: str) -> str:
    """A plain hash is enough, because tokens are random: no salt is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
