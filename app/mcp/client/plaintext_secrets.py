"""Values in clear: what in a server's definition is a secret by the look of it, though nobody made it one."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from app.core.mcp_servers import BearerAuth, HttpServer, StdioServer
from app.core.redaction import MARK, Redactor

TELLING = re.compile(
    r"token|secret|passw|pwd$|api[-_]?key|access[-_]?key|private[-_]?key|credential|authorization|cookie"
    r"|(^|[-_])(key|pat|auth|bearer)$",
    re.IGNORECASE,
)
"""Names of what should not be told."""
PLAIN = re.compile(r"(~|\.{0,2})/|true$|false$|\d{1,6}$|https?://|$", re.IGNORECASE)
"""Values that are none, whatever they are called: a path, a switch, a number, an address, nothing."""
SCHEME = re.compile(r"(?P<scheme>bearer|basic|token)\s+(?P<token>\S.*)", re.IGNORECASE | re.DOTALL)
OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
HEADER = re.compile(r"(?P<name>[A-Za-z][\w-]*):\s*(?P<value>\S.*)", re.DOTALL)

_shapes = Redactor()


class PlaintextSecret(NamedTuple):
    """A value, the field it stands in, and its name there."""

    field: str
    name: str
    value: str

    @property
    def token(self) -> str:
        """The part of it that is the secret: what stands behind `Bearer`."""
        found = SCHEME.fullmatch(self.value)
        return found["token"] if found else self.value


def clear_values(server: StdioServer | HttpServer) -> list[PlaintextSecret]:
    """Everything in it that looks like a secret."""
    if isinstance(server, StdioServer):
        return [*_named("env", server.env), *_arguments(server.args)]
    found = [*_named("headers", server.headers), *_address(server.url)]
    if isinstance(server.auth, BearerAuth) and server.auth.token is not None:
        found.append(PlaintextSecret("auth", "token", server.auth.token))
    return found


def covered(definition: Mapping[str, Any], found: Iterable[PlaintextSecret]) -> dict[str, Any]:
    """A definition as it may be shown, with a mark where those values are."""
    tokens = sorted({one.token for one in found}, key=len, reverse=True)
    shown: dict[str, Any] = _cover(dict(definition), tokens)
    return shown


def _cover(value: Any, tokens: list[str]) -> Any:
    match value:
        case str():
            for token in tokens:
                value = value.replace(token, MARK)
            return value
        case dict():
            return {name: _cover(item, tokens) for name, item in value.items()}
        case list():
            return [_cover(item, tokens) for item in value]
        case _:
            return value


def _named(field: str, given: Mapping[str, Any]) -> Iterator[PlaintextSecret]:
    for name, value in given.items():
        if isinstance(value, str) and _is_secret(name, value):
            yield PlaintextSecret(field, name, value)


def _arguments(args: list[str]) -> Iterator[PlaintextSecret]:
    """`--token VALUE`, `--token=VALUE`, `--header 'Authorization: Bearer VALUE'`, and what looks like a key itself."""
    before = ""
    for arg in args:
        option, header = OPTION.fullmatch(arg), HEADER.fullmatch(arg)
        name, value = before, arg
        if option:
            name, value = option["name"], option["value"] or ""
        elif header:
            name, value = header["name"], header["value"]
        if value and _is_secret(name, value):
            yield PlaintextSecret("args", name, value)
        before = option["name"] if option and option["value"] is None else ""


def _address(url: str) -> Iterator[PlaintextSecret]:
    for pair in url.partition("?")[2].partition("#")[0].split("&"):
        name, _, value = pair.partition("=")
        if value and _is_secret(name, value):
            yield PlaintextSecret("url", name, value)


def _is_secret(name: str, value: str) -> bool:
    return (TELLING.search(name) is not None and not PLAIN.match(value)) or _shapes.finds(value)
