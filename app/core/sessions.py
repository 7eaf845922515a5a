"""Sessions: the scope a call runs in. Ids are unique per principal; `default` exists for each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.core.network_policy import NetworkPolicy
from app.core.rules import Approval, Rule
from app.core.util.clocks import rfc3339

DEFAULT_SESSION = "default"
SESSION_ID = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"


class Profile(StrEnum):
    """What a sandboxed process may write, from the narrowest on."""

    READ_ONLY = "read-only"
    WORKSPACE_WRITE = "workspace-write"


def narrower(*profiles: Profile | None) -> Profile:
    """The narrowest of the profiles that are set."""
    return min((profile for profile in profiles if profile is not None), key=list(Profile).index)


class InvalidSession(ValueError):
    """An invalid session, with a sentence for the client."""


@dataclass(frozen=True, slots=True)
class Session:
    """`workspace` None is the default one. `is_trusted`: the rules were written by a key that may loosen permissions.

    A value of `env` is text, or `{"secret": name}`. `profile` can only narrow the operator's sandbox profile.
    """

    principal: str
    id: str
    agent: str | None = None
    model: str | None = None
    workspace: str | None = None
    approval: Approval | None = None
    rules: tuple[Rule, ...] = ()
    is_trusted: bool = False
    network_policy: NetworkPolicy | None = None
    profile: Profile | None = None
    env: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: int = 0
    updated_at: int = 0

    @property
    def is_default(self) -> bool:
        return self.id == DEFAULT_SESSION

    def view(self) -> dict[str, Any]:
        """The session as API clients see it."""
        return {
            "id": self.id,
            "principal": self.principal,
            "agent": self.agent,
            "model": self.model,
            "workspace": self.workspace,
            "approval": self.approval,
            "rules": [rule.view() for rule in self.rules],
            "network_policy": self.network_policy and self.network_policy.view(),
            "profile": self.profile,
            "env": dict(self.env),
            "labels": dict(self.labels),
            "created_at": rfc3339(self.created_at),
            "updated_at": rfc3339(self.updated_at),
        }


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is the folder or lies in it. Both are absolute and have their symlinks resolved."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
