"""Network policies: which hosts a session's tools may reach. The shape is the one OpenAI's hosted shell takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class DomainSecret:
    """A secret that requests to a domain may carry, by name."""

    domain: str
    name: str


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """`open` reaches every public host, `allowlist` only the listed ones, `disabled` none.

    A domain is a host name, or `*.` and a host name for everything below it.
    """

    type: Literal["open", "allowlist", "disabled"] = "open"
    allowed_domains: tuple[str, ...] = ()
    domain_secrets: tuple[DomainSecret, ...] = ()

    def allows(self, host: str) -> bool:
        if self.type == "allowlist":
            return any(is_within(host, domain) for domain in self.allowed_domains)
        return self.type == "open"

    def covers(self, domain: str) -> bool:
        """Whether every host a domain stands for is allowed."""
        if self.type == "allowlist":
            return any(includes(allowed, domain) for allowed in self.allowed_domains)
        return self.type == "open"

    def view(self) -> dict[str, Any]:
        """As shown and stored. Secrets appear by name only."""
        body: dict[str, Any] = {"type": self.type}
        if self.type == "allowlist":
            secrets = [{"domain": one.domain, "name": one.name} for one in self.domain_secrets]
            body |= {"allowed_domains": list(self.allowed_domains), "domain_secrets": secrets}
        return body


OPEN = NetworkPolicy()


@dataclass(frozen=True, slots=True)
class BoundSecret:
    """A secret for requests to one domain, and the placeholder that the sandbox sees instead."""

    name: str
    domain: str
    placeholder: str


@dataclass(frozen=True, slots=True)
class SessionSecrets:
    """The secrets that requests of a session's tools may use, with their placeholders."""

    owner: str
    bound: tuple[BoundSecret, ...]


def is_within(host: str, domain: str) -> bool:
    """Whether a host is the domain, or below it when the domain starts with `*.`; ignoring case."""
    host, domain = host.lower().rstrip("."), domain.lower().rstrip(".")
    if domain.startswith("*."):
        return host.endswith(domain[1:]) and len(host) > len(domain) - 1
    return host == domain


def includes(wide: str, domain: str) -> bool:
    """Whether one domain covers all of another; only one with `*.` covers more than itself."""
    if domain.startswith("*."):
        return wide.startswith("*.") and is_within(f"any{domain[1:]}", wide)
    return is_within(domain, wide)


def allow(host: str, policies: Iterable[NetworkPolicy | None]) -> bool:
    """A host has to be allowed by every policy, so that each can only narrow the others."""
    return all(policy is None or policy.allows(host) for policy in policies)


def to_policy(given: dict[str, Any]) -> NetworkPolicy:
    """A policy from its stored JSON."""
    secrets = tuple(DomainSecret(one["domain"], one["name"]) for one in given.get("domain_secrets", ()))
    return NetworkPolicy(given["type"], tuple(given.get("allowed_domains", ())), secrets)
