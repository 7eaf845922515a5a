"""Aliases: `http://secrets.internal/<name>/…` stands for a service by HTTPS that a secret is placed for.

A process behind walls cannot put a placeholder into what it encrypts itself.
It asks by this address instead, and the request goes on by verified TLS with
the secret in its headers. Where a secret is placed for exactly one host, the
path follows its name; where it is placed for several, or for all below one
(`*.`), the host comes first: `http://secrets.internal/<name>/<host>/<path>`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urljoin

from app.core.network_policy import BoundSecret, is_within
from app.core.util.urls import read_url
from app.net.egress.errors import Refused
from app.net.egress.target import read_name

HOST = "secrets.internal"


@dataclass(frozen=True, slots=True)
class SecretHost:
    """A service behind an alias, and what was asked of it."""

    secret: BoundSecret
    host: str
    path: bytes
    domains: tuple[str, ...]
    has_host: bool

    def rewrite(self, location: str, port: int) -> str:
        """Where a redirect leads, by the alias as far as that reaches."""
        try:
            where = read_url(urljoin(f"https://{self.host}:{port}{self.path.decode('latin-1')}", location))
        except ValueError:  # also what urljoin cannot read
            return location
        if (where.scheme, where.port) != ("https", port) or not any(is_within(where.host, one) for one in self.domains):
            return location
        between = f"/{where.host}" if self.has_host else ""
        return f"http://{HOST}/{self.secret.name}{between}{where.target}"


def find_alias(path: bytes, secrets: Sequence[BoundSecret]) -> SecretHost:
    """The service that a path of ours stands for. Raises `Refused`."""
    name, rest = _step(path)
    placed = [one for one in secrets if one.name == name]
    if not placed:
        known = ", ".join(sorted({one.name for one in secrets})) or "none"
        raise Refused(404, "unknown-secret", f"http://{HOST}/ is followed by the name of a secret; there are: {known}.")
    domains = tuple(one.domain for one in placed)
    if len(placed) == 1 and not placed[0].domain.startswith("*."):
        return SecretHost(placed[0], placed[0].domain.lower(), rest, domains, has_host=False)
    given, rest = _step(rest)
    host = read_name(given)
    fitting = next((one for one in placed if host is not None and is_within(host, one.domain)), None)
    if host is None or fitting is None:
        raise Refused(
            404,
            "alias-needs-host",
            f"http://{HOST}/{name}/ is followed by the host to ask, which is within {' or '.join(domains)}.",
        )
    return SecretHost(fitting, host, rest, domains, has_host=True)


def _step(path: bytes) -> tuple[str, bytes]:
    """The first step of a path, and the rest of it, which begins with a slash."""
    end = next((at for at, one in enumerate(path[1:], 1) if one in b"/?"), len(path))
    rest = path[end:]
    return path[1:end].decode("latin-1"), rest if rest.startswith(b"/") else b"/" + rest
