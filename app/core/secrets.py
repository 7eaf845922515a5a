"""Secrets: values that are used by name and never shown."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from app.core.util.clocks import rfc3339
from app.core.util.urls import MAX_HOST, to_ascii

GLOBAL_PRINCIPAL = "*"
"""The principal of secrets, rules, tools and MCP servers that all principals share."""
NAME = r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"
MIN_VALUE = 6
MAX_VALUE = 65_536
MAX_DOMAINS = 32

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
DOMAIN = rf"^(\*\.)?{_LABEL}(\.{_LABEL})*$"


def owner_of(principal: str) -> str | None:
    """The owner of a stored row; None when all principals share it."""
    return None if principal == GLOBAL_PRINCIPAL else principal


class InvalidSecret(ValueError):
    """An invalid name, value or domain; the message never holds the value."""


class SecretConfigured(Exception):
    """The secret comes from the configuration and can be changed only there."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The secret {name} comes from the configuration; change it there.")


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret without its value. A configured one has no times: it is read at each start."""

    principal: str
    name: str
    domains: tuple[str, ...]
    created_at: int | None
    updated_at: int | None
    source: Literal["store", "config"] = "store"

    @property
    def is_global(self) -> bool:
        return self.principal == GLOBAL_PRINCIPAL

    def view(self) -> dict[str, Any]:
        """The secret as API clients see it."""
        return {
            "name": self.name,
            "global": self.is_global,
            "domains": list(self.domains),
            "source": self.source,
            "created_at": None if self.created_at is None else rfc3339(self.created_at),
            "updated_at": None if self.updated_at is None else rfc3339(self.updated_at),
        }


def check_name(name: str) -> None:
    if not re.fullmatch(NAME, name):
        raise InvalidSecret(f"name: it must match {NAME}.")


def check_value(value: str) -> None:
    if len(value) < MIN_VALUE:
        raise InvalidSecret(
            f"value: at least {MIN_VALUE} characters are needed; "
            "a shorter one cannot be redacted without wrecking every text."
        )
    if len(value) > MAX_VALUE:
        raise InvalidSecret(f"value: at most {MAX_VALUE:,} characters are allowed.")
    if value.isspace():
        raise InvalidSecret("value: blanks alone cannot be redacted without wrecking every text.")
    if "\0" in value or not _is_unicode(value):
        raise InvalidSecret("value: text without NUL characters is needed.")


def read_domains(names: Iterable[str]) -> tuple[str, ...]:
    """Host names in canonical form: lower case, ASCII, without duplicates."""
    domains = tuple(dict.fromkeys(_read_domain(name) for name in names))
    if len(domains) > MAX_DOMAINS:
        raise InvalidSecret(f"domains: at most {MAX_DOMAINS} are allowed.")
    return domains


def _read_domain(name: str) -> str:
    star = "*." if name.startswith("*.") else ""
    host = to_ascii(name.removeprefix("*.")).lower()
    if len(host) > MAX_HOST or not re.fullmatch(DOMAIN, star + host):
        raise InvalidSecret(
            f"domains: {name[:80]!r} is not a host name like api.example.com or *.example.com; "
            "scheme, port and path are not allowed."
        )
    return star + host


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
