"""Admission: whether a process behind walls may reach a host, and at which addresses."""

import asyncio
from collections.abc import Collection, Iterable
from ipaddress import ip_address

from app.core.errors import DNSError, NetworkError
from app.core.network_policy import NetworkPolicy, allow
from app.core.sandbox import EgressGrant
from app.net.egress.errors import Refused, failed, late
from app.net.egress.target import is_literal
from app.net.resolver import Address, Resolver

LOOKUP_SECONDS = 10.0
LOOKUPS = 4
"""Names that are looked up at the same time: each of them holds a thread that others need, too."""


class EgressPolicy:
    """Judges the hosts of one leave. A refusal says what would have to change for it to be none."""

    def __init__(self, resolver: Resolver, ports: Collection[int], leave: EgressGrant) -> None:
        self._resolver = resolver
        self._ports = frozenset(ports)
        self._leave = leave
        self._lookups = asyncio.Semaphore(LOOKUPS)

    async def admit(self, host: str, port: int) -> list[Address]:
        """The checked addresses of a host that may be reached. Raises `Refused`."""
        if port not in self._ports:
            ports = ", ".join(map(str, sorted(self._ports)))
            raise Refused(403, "port-not-allowed", f"Port {port} cannot be reached from here, only {ports}.")
        judge(host, self._leave.policies)
        try:
            async with asyncio.timeout(LOOKUP_SECONDS), self._lookups:
                return await self._resolver.find(host, port)
        except TimeoutError:
            raise late(f"The name {host} could not be looked up in time.") from None
        except DNSError as error:
            raise failed("unknown-host", error.message) from None
        except NetworkError as error:
            raise Refused(403, "private-address", error.message) from None


def judge(host: str, given: Iterable[NetworkPolicy | None]) -> None:
    """Whether every policy allows the host and one lists it; an address only as itself. Raises `Refused`."""
    policies = [policy for policy in given if policy is not None]
    lists = [policy for policy in policies if policy.type == "allowlist"]
    if any(policy.type == "disabled" for policy in policies):
        raise Refused(403, "blocked-by-policy", f"The network policy allows no host, and so not {host}.")
    if not lists:
        raise Refused(403, "blocked-by-policy", f"No network policy lists the hosts to be reached, and so not {host}.")
    if is_literal(host):
        if not all(_lists_address(policy, host) for policy in lists):
            raise _unlisted(f"{host} is an address and not on the allow-list; use the name of a host that is.")
    elif not allow(host, policies):
        raise _unlisted(
            f"{host} is not on the allow-list; whoever set up the session can add it to the allowed_domains of its "
            "network_policy, as far as the operator's own list reaches."
        )


def _lists_address(policy: NetworkPolicy, host: str) -> bool:
    """A `*.` stands for names only."""
    listed = (domain.strip("[]") for domain in policy.allowed_domains)
    return any(is_literal(one) and ip_address(one) == ip_address(host) for one in listed)


def _unlisted(sentence: str) -> Refused:
    return Refused(403, "blocked-by-allowlist", sentence)
