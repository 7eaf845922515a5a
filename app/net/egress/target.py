"""Request targets of the proxy: host and port, parsed strictly."""

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
    """The path is unchanged and never empty."""

    host: str
    port: int
    path: bytes = b"/"


def read_connect(target: bytes) -> Target:
    """The `host:port` of a CONNECT. Raises `Refused`."""
    text = _text(target)
    match = _PORT.fullmatch(text)
    if match is None or set(text) & set("/?#") or not 0 < int(match["port"]) < 65_536:
        raise _bad("CONNECT needs a host and a port, such as example.com:443.")
    return Target(_parse(f"https://{text}/").host, int(match["port"]))


def read_absolute(target: bytes) -> Target:
    """The URL of any other request. Raises `Refused`."""
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise _bad("Only http:// URLs without a fragment are supported; use CONNECT for https.")
    where, rest = _parse(f"http://{_text(match[1])}/"), match[2]
    if _FORBIDDEN.search(rest):
        raise Refused(400, "bad-request", "Spaces and control characters in a URL must be percent-encoded.")
    return Target(where.host, where.port, rest if rest.startswith(b"/") else b"/" + rest)


def read_name(text: str) -> str | None:
    """The canonical form of a host; None if it is invalid."""
    try:
        return read_host(text)
    except InvalidUrl:
        return None


def is_literal(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def guess_target(target: bytes) -> Target:
    """The likely host of an unparsed target, in printable characters, for the report."""
    text = _SCHEME.sub("", target.decode("utf-8", "replace"), count=1)
    text = re.split(r"[/?#\\]", text, maxsplit=1)[0].rpartition("@")[2]
    match = _PORT.fullmatch(text)
    port = int(match["port"]) if match else 0
    host = match["host"] if match else text
    printable = "".join(char if "!" <= char <= "~" else "?" for char in host)
    return Target(printable[:MAX_HOST] or "?", port if port < 65_536 else 0)


def _parse(url: str) -> Target:
    try:
        where = read_url(url)
    except InvalidUrl as error:
        raise _bad(str(error)) from None
    return Target(where.host, where.port)


def _text(target: bytes) -> str:
    try:
        return target.decode("utf-8")
    except UnicodeDecodeError:
        raise _bad("The host is not UTF-8.") from None


def _bad(sentence: str) -> Refused:
    return Refused(403, "bad-host", sentence)
