"""The resolver: a name becomes addresses that may be connected to, looked up once and each of them checked."""

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
# Said in full: what `ipaddress` takes for private differs from one Python to the next.
CLOSED: tuple[Network, ...] = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # behind a carrier's NAT; Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's wire server, for its guests only
        "169.254.0.0/16",  # link-local; the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",
        "3fff::/20",
    )
)
GONE = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


async def resolve(host: str, port: int) -> list[str]:
    """What the system's resolver says, in the order it prefers."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class Resolver:
    """Gives out checked addresses only; private ones where the operator opened their network."""

    def __init__(self, opened: Iterable[str] = (), resolve: Resolve = resolve) -> None:
        self._opened = tuple(ip_network(network) for network in opened)
        self._resolve = resolve

    async def find(self, host: str, port: int) -> list[Address]:
        """The addresses of a host that may be connected to, each once, at least one."""
        found = dict.fromkeys(await self._look_up(host, port))
        if not found:
            raise _unknown(host)
        allowed = [address for address in found if self.allows(address)]
        if not allowed:
            error = NetworkError(
                f"{host} is a private address or leads to one, and those cannot be reached; the operator opens "
                "networks with the setting private_networks."
            )
            error.retryable = False
            raise error
        return allowed

    def allows(self, address: Address) -> bool:
        inner = _inner(address)
        return is_public(inner) or any(one in network for network in self._opened for one in (address, inner))

    async def _look_up(self, host: str, port: int) -> list[Address]:
        try:
            return [ip_address(host)]
        except ValueError:
            pass
        try:
            found = await self._resolve(host, port)
        except socket.gaierror as error:
            raise _unknown(host, is_gone=error.errno in GONE) from None
        except (OSError, UnicodeError):
            raise _unknown(host) from None
        # An address with a zone is a neighbour on one of our own links.
        return [ip_address(address) for address in found if "%" not in address]


def is_public(address: Address) -> bool:
    """Whether an address is anybody's on the internet; one that holds another inside is what that is."""
    address = _inner(address)
    if isinstance(address, IPv6Address) and address not in GLOBAL_IPV6:
        return False
    return not any(address in network for network in CLOSED)


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in SIX_TO_FOUR:
        return IPv4Address(int(address) >> 80 & 0xFFFF_FFFF)
    return address


def _unknown(host: str, *, is_gone: bool = False) -> DNSError:
    error = DNSError(f"The name {host} has no address." if is_gone else f"The name {host} could not be looked up.")
    error.retryable = not is_gone
    return error
