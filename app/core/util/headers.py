"""Headers of a request: which may be set, and what they can hold."""

import re

from app.core.ports import SecretUse

NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
UNWRITABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
OWN = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "keep-alive", "expect"}
    | {"proxy-connection", "proxy-authorization", "accept-encoding"}
)
"""What only the wire itself may say."""


def check_header(name: str, text: str) -> None:
    """Raises `ValueError` with a sentence: a line break would begin another header, or another request."""
    check_name(name)
    if UNWRITABLE.search(text):
        raise ValueError(f"The header {name} cannot hold line breaks or control characters; leave them out.")


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} cannot be the name of a header.")
    if name.lower() in OWN:
        raise ValueError(f"The header {name} is written by the service itself; leave it out.")


def check_secret(use: SecretUse) -> None:
    """Whether there can be a secret in this place."""
    if use.into == "header":
        check_name(use.name)
    elif use.into == "cookie" and not NAME.fullmatch(use.name):
        raise ValueError(f"{use.name[:80]!r} cannot be the name of a cookie.")
