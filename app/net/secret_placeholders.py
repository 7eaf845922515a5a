"""Replaces placeholders of secrets by their values in outgoing headers."""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from app.core.errors import PermissionDenied, ToolUnavailable
from app.core.network_policy import BoundSecret, is_within
from app.core.util.headers import UNWRITABLE

Find = Callable[[str, str], tuple[Sequence[str], str] | None]
"""An owner's secret by name: the domains it may be sent to (empty: all) and its value."""


def value_for(find: Find, owner: str, name: str, host: str) -> str:
    """The value of a secret for this host. Raises `ToolUnavailable`, `PermissionDenied`."""
    secret = find(owner, name)
    if secret is None:
        raise ToolUnavailable(f"The secret {name} is not set; the tool needs it to call {host}.")
    domains, value = secret
    if domains and not any(is_within(host, domain) for domain in domains):
        raise PermissionDenied(
            f"The secret {name} is bound to other hosts and is not sent to {host}.",
            details={"secret": name, "host": host},
        )
    return value


def require_writable(name: str, value: str) -> None:
    """Refuse line breaks, which would start another header. Raises `ToolUnavailable`."""
    if UNWRITABLE.search(value):
        raise ToolUnavailable(f"The secret {name} holds characters that are not allowed in a header.")


def bound_to(host: str, secrets: Iterable[BoundSecret]) -> list[BoundSecret]:
    """The secrets that are bound to a host."""
    return [secret for secret in secrets if is_within(host, secret.domain)]


def contains(placeholder: str, header: str, text: str) -> bool:
    """Whether a header contains the placeholder, also as user or password of Basic authentication."""
    pattern = _any_of([placeholder])
    return bool(pattern.search(text) or pattern.search(_basic(header, text)))


def substitute(values: Mapping[str, str], header: str, text: str) -> str:
    """The header's text with placeholders replaced by values."""
    pattern = _any_of(values)

    def replace(text: str) -> str:
        return pattern.sub(lambda match: values[match[0]], text)

    credentials = _basic(header, text)
    if pattern.search(credentials):
        return f"{text[:6]}{base64.b64encode(replace(credentials).encode('utf-8', 'surrogateescape')).decode()}"
    return replace(text)


def _any_of(placeholders: Iterable[str]) -> re.Pattern[str]:
    """All in one pass, so that values are not searched again; a longer word does not match."""
    return re.compile(f"(?:{'|'.join(map(re.escape, sorted(placeholders, key=len, reverse=True)))})(?![A-Za-z0-9_])")


def _basic(header: str, text: str) -> str:
    """The decoded credentials of Basic authentication; empty for other headers."""
    if header.lower() != "authorization" or text[:6].lower() != "basic ":
        return ""
    try:
        return base64.b64decode(text[6:].strip(), validate=True).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        return ""
