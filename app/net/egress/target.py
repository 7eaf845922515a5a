"""Targets of requests to a proxy: the host and port, read once and strictly, and what is told of an unreadable one."""

import re
from ipaddress import ip_address
from typing import NamedTuple

from app.core.util.urls import MAX_HOST, InvalidUrl, read_host, read_url
from app.net.egress.errors import Refused

_PORT = re.compile(r"(?P<host>.+):(?P<port>[0-9]{1,5})", re.DOTALL)
_ABSOLUTE = re.compile(rb"[Hh][Tt][Tt][Pp]://([^/?#]*)([^#]*)")
_FORBIDDEN = re.compile(rb"[\x00-\x20\x7f]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Target(NamedTuple):
    """Where a request is to go. The path is as it was sent, and never empty."""

    host: str
    port: int
    path: bytes = b"/"


def read_connect(target: bytes) -> Target:
    """The `host:port` of a CONNECT. Raises `Refused`."""
    text = _text(target)
    found = _PORT.fullmatch(text)
    if found is None or set(text) & set("/?#") or not 0 < int(found["port"]) < 65_536:
        raise _bad("CONNECT takes a host and a port, like example.com:443.")
    return Target(_host(f"https://{text}/"), int(found["port"]))


def read_absolute(target: bytes) -> Target:
    """The URL of any other request. Raises `Refused`."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise _bad("Only URLs that start with http:// and have no fragment are taken; for https, CONNECT is used.")
    where, rest = _where(f"http://{_text(found[1])}/"), found[2]
    if _FORBIDDEN.search(rest):
        raise Refused(400, "bad-request", "A URL cannot hold blanks or control characters; percent-encode them.")
    return Target(where.host, where.port, rest if rest.startswith(b"/") else b"/" + rest)


def read_name(given: str) -> str | None:
    """A host as it is compared; None when it is none."""
    try:
        return read_host(given)
    except InvalidUrl:
        return None


def is_literal(host: str) -> bool:
    """Whether a host that was read is an address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def told(target: bytes) -> Target:
    """What may be told of a target that cannot be read: nothing but the likely host, in harmless letters."""
    text = _SCHEME.sub("", target.decode("utf-8", "replace"), count=1)
    text = re.split(r"[/?#\\]", text, maxsplit=1)[0].rpartition("@")[2]
    found = _PORT.fullmatch(text)
    port = int(found["port"]) if found else 0
    host = found["host"] if found else text
    safe = "".join(one if "!" <= one <= "~" else "?" for one in host)
    return Target(safe[:MAX_HOST] or "?", port if port < 65_536 else 0)


def _host(url: str) -> str:
    return _where(url).host


def _where(url: str) -> Target:
    try:
        where = read_url(url)
    except InvalidUrl as error:
        raise _bad(str(error)) from None
    return Target(where.host, where.port)


def _text(target: bytes) -> str:
    try:
        return target.decode("utf-8")
    except UnicodeDecodeError:
        raise _bad("The host is not text.") from None


def _bad(sentence: str) -> Refused:
    return Refused(403, "bad-host", sentence)
