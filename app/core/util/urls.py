"""Strict parsing of http and https URLs, the same for the policy check and for the connection."""

import re
import unicodedata
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote

MAX_HOST = 253
PORTS = {"http": 80, "https": 443}

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/?#]*))?(?P<target>[^#]*)(?:#.*)?")
_AUTHORITY = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{1,5}))?")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_SAFE = "/?:@!$&'()*+,;=%-._~"


class InvalidUrl(ValueError):
    """The text is not a URL to send a request to; says why."""


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """The parts of a URL. The host is in ASCII and lower case, without brackets and without a dot at its end."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The host as a request names it: with its port only when that is not the usual one."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == PORTS[self.scheme] else f"{name}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    def __str__(self) -> str:
        return self.origin + self.target


def read_url(url: str) -> ParsedUrl:
    """The parts of an http or https URL; a fragment does not count. Raises `InvalidUrl`."""
    if _FORBIDDEN.search(url):
        raise InvalidUrl("A URL cannot hold blanks, control characters or backslashes; percent-encode them.")
    found = _URL.fullmatch(url)
    if found is None or found["authority"] is None or found["scheme"].lower() not in PORTS:
        raise InvalidUrl("A URL that starts with http:// or https:// is needed.")
    scheme, authority, target = found["scheme"].lower(), found["authority"], found["target"]
    if "@" in authority:
        raise InvalidUrl("A user name or password cannot stand in a URL; send it as a header, by secret name.")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None or (parts["port"] is not None and not 0 < int(parts["port"]) < 65_536):
        raise InvalidUrl("The host and port of the URL cannot be read; like example.com:8443 or [2001:db8::1]:8443.")
    port = int(parts["port"]) if parts["port"] else PORTS[scheme]
    # Encoded here and only once, so that the request line, the log and the answer tell the same URL.
    path = quote(target if target.startswith("/") else f"/{target}", safe=_SAFE)
    return ParsedUrl(scheme, read_host(parts["host"]), port, path)


def read_host(given: str) -> str:
    """A host name or address as it is compared and looked up. Raises `InvalidUrl`."""
    if given.startswith("["):
        return _ipv6(given[1:-1])
    host = to_ascii(given).lower().removesuffix(".")
    labels = host.split(".")
    if not host or len(host) > MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidUrl(f"{given[:80]!r} is not a host name or address.")
    # Resolvers take 127.1, 0x7f.0.0.1 and 2130706433 for addresses; a policy check should not have to.
    if _NUMBER.fullmatch(labels[-1]) and not _is_ipv4(host):
        raise InvalidUrl(f"{given[:80]!r} is not a host; write an address as four decimal numbers.")
    return host


def to_ascii(host: str) -> str:
    """A name in other letters as the network knows it; empty when it is none."""
    if host.isascii():
        return host
    import idna  # the rules of the outgoing client; loaded by the few names that need it

    try:
        return idna.encode(unicodedata.normalize("NFC", host.lower())).decode()
    except idna.IDNAError:
        return ""


def _ipv6(given: str) -> str:
    try:
        address = IPv6Address(given)
    except ValueError:
        raise InvalidUrl(f"{given[:80]!r} is not an IPv6 address.") from None
    if address.scope_id is not None:
        raise InvalidUrl("An IPv6 address with a zone means something on one machine only, and cannot be used.")
    return str(address)


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True
