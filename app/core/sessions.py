"""Sessions: the scope a call runs in. Ids are unique per principal; `default` exists for each."""

from dataclasses import dataclass

DEFAULT_SESSION = "default"


@dataclass(frozen=True, slots=True)
class Session:
    principal: str
    id: str
    agent: str | None = None
    model: str | None = None
