"""Finds plaintext values in a server's definition that look like secrets."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from app.core.mcp_servers import BearerAuth, HttpServer, StdioServer
from app.core.redaction import MARK, Redactor

SECRET_NAME = re.compile(
    r"token|secret|passw|pwd$|api[-_]?key|access[-_]?key|private[-_]?key|credential|authorization|cookie"
    r"|(^|[-_])(key|pat|auth|bearer)$",
    re.IGNORECASE,
)
HARMLESS = re.compile(r"(~|\.{0,2})/|true$|false$|\d{1,6}$|https?://|$", re.IGNORECASE)
"""Values that are no secrets, whatever their name: a path, a boolean, a number, a URL, nothing."""
SCHEME = re.compile(r"(?P<scheme>bearer|basic|token)\s+(?P<token>\S.*)", re.IGNORECASE | re.DOTALL)
OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
HEADER = re.compile(r"(?P<name>[A-Za-z][\w-]*):\s*(?P<value>\S.*)", re.DOTALL)

_shapes = Redactor()


class PlaintextSecret(NamedTuple):
    """A value that looks like a secret, the field it is in, and its name there."""

    field: str
    name: str
    value: str

    @property
    def token(self) -> str:
        """The secret part of the value: what follows `Bearer`."""
        match = SCHEME.fullmatch(self.value)
        return match["token"] if match else self.value


def find_plaintext_secrets(server: StdioServer | HttpServer) -> list[PlaintextSecret]:
    if isinstance(server, StdioServer):
        return [*_find_named("env", server.env), *_find_in_args(server.args)]
    found = [*_find_named("headers", server.headers), *_find_in_query(server.url)]
    if isinstance(server.auth, BearerAuth) and server.auth.token is not None:
        found.append(PlaintextSecret("auth", "token", server.auth.token))
    return found


def mask_secrets(definition: Mapping[str, Any], secrets: Iterable[PlaintextSecret]) -> dict[str, Any]:
    """A definition as it may be shown, with a mark in place of these values."""
    tokens = sorted({one.token for one in secrets}, key=len, reverse=True)
    masked: dict[str, Any] = _mask(dict(definition), tokens)
    return masked


def _mask(value: Any, tokens: list[str]) -> Any:
    match value:
        case str():
            for token in tokens:
                value = value.replace(token, MARK)
            return value
        case dict():
            return {name: _mask(item, tokens) for name, item in value.items()}
        case list():
            return [_mask(item, tokens) for item in value]
        case _:
            return value


def _find_named(field: str, values: Mapping[str, Any]) -> Iterator[PlaintextSecret]:
    for name, value in values.items():
        if isinstance(value, str) and _is_secret(name, value):
            yield PlaintextSecret(field, name, value)


def _find_in_args(args: list[str]) -> Iterator[PlaintextSecret]:
    """`--token VALUE`, `--token=VALUE`, `--header 'Authorization: Bearer VALUE'`, and values that look like a key."""
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


def _find_in_query(url: str) -> Iterator[PlaintextSecret]:
    for pair in url.partition("?")[2].partition("#")[0].split("&"):
        name, _, value = pair.partition("=")
        if value and _is_secret(name, value):
            yield PlaintextSecret("url", name, value)


def _is_secret(name: str, value: str) -> bool:
    return (SECRET_NAME.search(name) is not None and not HARMLESS.match(value)) or _shapes.finds(value)
