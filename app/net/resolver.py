"""Resolves host names once and returns only addresses that may be connected to (no SSRF to private networks)."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from app.core.errors import DNSError, NetworkError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""All addresses of a name. Raises `socket.gaierror`."""

GLOBAL_IPV6 = IPv6Network("2000::/3")
NAT64 = IPv6Network("64:ff9b::/96")
SIX_TO_FOUR = IPv6Network("2002::/16")
# Written out: `is_private` of `ipaddress` differs between Python versions.
PRIVATE: tuple[Network, ...] = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; Alibaba metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure wire server
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; Oracle metadata
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # protocol assignments, including Teredo
        "2001:db8::/32",
        "3fff::/20",
    )
)
NO_SUCH_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of the system resolver, in its order."""
    results = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in results]


class Resolver:
    """Returns public addresses, and private ones of networks that the operator allows."""

    def __init__(self, private_networks: Iterable[str] = (), resolve: Resolve = resolve) -> None:
        self._private_networks = tuple(ip_network(network) for network in private_networks)
        self._resolve = resolve

    async def find(self, host: str, port: int) -> list[Address]:
        """The allowed addresses of a host, without duplicates. Raises `DNSError`, `NetworkError`."""
        addresses = dict.fromkeys(await self._look_up(host, port))
        if not addresses:
            raise _unknown(host)
        allowed = [address for address in addresses if self.allows(address)]
        if not allowed:
            error = NetworkError(
                f"{host} is or resolves to a private address, which is not allowed; the operator can allow "
                "networks with the setting private_networks."
            )
            error.retryable = False
            raise error
        return allowed

    def allows(self, address: Address) -> bool:
        embedded = _embedded(address)
        return is_public(embedded) or any(
            one in network for network in self._private_networks for one in (address, embedded)
        )

    async def _look_up(self, host: str, port: int) -> list[Address]:
        try:
            return [ip_address(host)]
        except ValueError:
            pass
        try:
            addresses = await self._resolve(host, port)
        except socket.gaierror as error:
            raise _unknown(host, is_final=error.errno in NO_SUCH_NAME) from None
        except (OSError, UnicodeError):
            raise _unknown(host) from None
        # An address with a zone is link-local.
        return [ip_address(address) for address in addresses if "%" not in address]


def is_public(address: Address) -> bool:
    """Whether an address is public; an IPv6 address that embeds an IPv4 address counts as that one."""
    address = _embedded(address)
    if isinstance(address, IPv6Address) and address not in GLOBAL_IPV6:
        return False
    return not any(address in network for network in PRIVATE)


def _embedded(address: Address) -> Address:
    """The IPv4 address embedded in an IPv6 address, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in SIX_TO_FOUR:
        return IPv4Address(int(address) >> 80 & 0xFFFF_FFFF)
    return address


def _unknown(host: str, *, is_final: bool = False) -> DNSError:
    error = DNSError(f"The name {host} has no address." if is_final else f"The name {host} could not be looked up.")
    error.retryable = not is_final
    return error
