"""`http://secrets.internal/<name>/...` is an alias of an HTTPS host that a secret is bound to.

A sandboxed process cannot put a placeholder into a request that it encrypts
itself. It uses this URL instead, and the proxy sends the request by verified TLS
with the secret in its headers. For a secret that is bound to exactly one host,
the path follows its name; for one that is bound to several hosts or to a
wildcard, the host comes first: `http://secrets.internal/<name>/<host>/<path>`.
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
    """The host behind an alias, and the path on it."""

    secret: BoundSecret
    host: str
    path: bytes
    domains: tuple[str, ...]
    has_host: bool

    def rewrite(self, location: str, port: int) -> str:
        """Rewrite a redirect to the alias, if the alias covers its target."""
        try:
            where = read_url(urljoin(f"https://{self.host}:{port}{self.path.decode('latin-1')}", location))
        except ValueError:  # also raised by urljoin
            return location
        if (where.scheme, where.port) != ("https", port) or not any(
            is_within(where.host, domain) for domain in self.domains
        ):
            return location
        host = f"/{where.host}" if self.has_host else ""
        return f"http://{HOST}/{self.secret.name}{host}{where.target}"


def find_alias(path: bytes, secrets: Sequence[BoundSecret]) -> SecretHost:
    """The host that a path of `secrets.internal` stands for. Raises `Refused`."""
    name, rest = _split_first(path)
    bound = [secret for secret in secrets if secret.name == name]
    if not bound:
        known = ", ".join(sorted({one.name for one in secrets})) or "none"
        raise Refused(
            404, "unknown-secret", f"http://{HOST}/ must be followed by the name of a secret; available: {known}."
        )
    domains = tuple(one.domain for one in bound)
    if len(bound) == 1 and not bound[0].domain.startswith("*."):
        return SecretHost(bound[0], bound[0].domain.lower(), rest, domains, has_host=False)
    segment, rest = _split_first(rest)
    host = read_name(segment)
    secret = next((one for one in bound if host is not None and is_within(host, one.domain)), None)
    if host is None or secret is None:
        raise Refused(
            404,
            "alias-needs-host",
            f"http://{HOST}/{name}/ must be followed by a host within {' or '.join(domains)}.",
        )
    return SecretHost(secret, host, rest, domains, has_host=True)


def _split_first(path: bytes) -> tuple[str, bytes]:
    """The first segment of a path, and the rest, which starts with a slash."""
    end = next((index for index, byte in enumerate(path[1:], 1) if byte in b"/?"), len(path))
    rest = path[end:]
    return path[1:end].decode("latin-1"), rest if rest.startswith(b"/") else b"/" + rest
