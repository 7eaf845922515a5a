"""Placeholders: what stands for a secret where its value must not be, and how it becomes the value on its way out."""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from app.core.errors import PermissionDenied, ToolUnavailable
from app.core.network_policy import BoundSecret, is_within
from app.core.util.headers import UNWRITABLE

Find = Callable[[str, str], tuple[Sequence[str], str] | None]
"""An owner's secret by name: the domains it may go to (none: all of them) and its value."""


def value_for(find: Find, owner: str, name: str, host: str) -> str:
    """A secret that may go to this host. Raises `ToolUnavailable`, `PermissionDenied`."""
    found = find(owner, name)
    if found is None:
        raise ToolUnavailable(f"The secret {name} is not set; the tool needs it to call {host}.")
    domains, value = found
    if domains and not any(is_within(host, domain) for domain in domains):
        raise PermissionDenied(
            f"The secret {name} is kept for other hosts and is not sent to {host}.",
            details={"secret": name, "host": host},
        )
    return value


def require_writable(name: str, value: str) -> None:
    """A line break would begin another header. Raises `ToolUnavailable`."""
    if UNWRITABLE.search(value):
        raise ToolUnavailable(f"The secret {name} holds characters that a header cannot carry.")


def bound_to(host: str, placed: Iterable[BoundSecret]) -> list[BoundSecret]:
    """The secrets that are placed for a host."""
    return [one for one in placed if is_within(host, one.domain)]


def is_in(placeholder: str, header: str, text: str) -> bool:
    """Whether a header says it, as it is or as the user or password of Basic."""
    pattern = _any_of([placeholder])
    return bool(pattern.search(text) or pattern.search(_basic(header, text)))


def put(values: Mapping[str, str], header: str, text: str) -> str:
    """A header with the values in place of their placeholders."""
    pattern = _any_of(values)

    def swap(given: str) -> str:
        return pattern.sub(lambda found: values[found[0]], given)

    inner = _basic(header, text)
    if pattern.search(inner):
        return f"{text[:6]}{base64.b64encode(swap(inner).encode('utf-8', 'surrogateescape')).decode()}"
    return swap(text)


def _any_of(placeholders: Iterable[str]) -> re.Pattern[str]:
    """All in one pass, so that what a value says is not looked at again; a longer word is another one."""
    return re.compile(f"(?:{'|'.join(map(re.escape, sorted(placeholders, key=len, reverse=True)))})(?![A-Za-z0-9_])")


def _basic(header: str, text: str) -> str:
    """What an Authorization of the kind Basic says in base64; empty for any other."""
    if header.lower() != "authorization" or text[:6].lower() != "basic ":
        return ""
    try:
        return base64.b64decode(text[6:].strip(), validate=True).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        return ""
