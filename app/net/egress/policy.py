"""Checks whether a sandboxed process may connect to a host, and returns the allowed addresses."""

import asyncio
from collections.abc import Collection, Iterable
from ipaddress import ip_address

from app.core.errors import DNSError, NetworkError
from app.core.network_policy import NetworkPolicy, allow
from app.core.sandbox import EgressGrant
from app.net.egress.errors import Refused, failed, timed_out
from app.net.egress.target import is_literal
from app.net.resolver import Address, Resolver

LOOKUP_SECONDS = 10.0
MAX_LOOKUPS = 4
"""Concurrent name lookups of a grant: each one uses a thread of a shared pool."""


class EgressPolicy:
    """The policy of one grant. Its errors say what would have to change."""

    def __init__(self, resolver: Resolver, ports: Collection[int], grant: EgressGrant) -> None:
        self._resolver = resolver
        self._ports = frozenset(ports)
        self._grant = grant
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)

    async def check(self, host: str, port: int) -> list[Address]:
        """The allowed addresses of a host. Raises `Refused`."""
        if port not in self._ports:
            ports = ", ".join(map(str, sorted(self._ports)))
            raise Refused(403, "port-not-allowed", f"Port {port} is not allowed, only {ports}.")
        check_host(host, self._grant.policies)
        try:
            async with asyncio.timeout(LOOKUP_SECONDS), self._lookups:
                return await self._resolver.find(host, port)
        except TimeoutError:
            raise timed_out(f"Resolving {host} timed out.") from None
        except DNSError as error:
            raise failed("unknown-host", error.message) from None
        except NetworkError as error:
            raise Refused(403, "private-address", error.message) from None


def check_host(host: str, layers: Iterable[NetworkPolicy | None]) -> None:
    """Every policy must allow the host, and at least one must be a list; an address must be listed itself.

    Raises `Refused`.
    """
    policies = [policy for policy in layers if policy is not None]
    lists = [policy for policy in policies if policy.type == "allowlist"]
    if any(policy.type == "disabled" for policy in policies):
        raise Refused(403, "blocked-by-policy", f"The network policy allows no hosts, so {host} is blocked.")
    if not lists:
        raise Refused(403, "blocked-by-policy", f"No network policy lists allowed hosts, so {host} is blocked.")
    if is_literal(host):
        if not all(_lists_address(policy, host) for policy in lists):
            raise _unlisted(f"{host} is an address that is not on the allow-list; use an allowed host name.")
    elif not allow(host, policies):
        raise _unlisted(
            f"{host} is not on the allow-list; the client can add it to the allowed_domains of the session's "
            "network_policy, within the operator's own list."
        )


def _lists_address(policy: NetworkPolicy, host: str) -> bool:
    """`*.` matches names only, not addresses."""
    listed = (domain.strip("[]") for domain in policy.allowed_domains)
    return any(is_literal(domain) and ip_address(domain) == ip_address(host) for domain in listed)


def _unlisted(sentence: str) -> Refused:
    return Refused(403, "blocked-by-allowlist", sentence)
