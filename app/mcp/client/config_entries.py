"""Entries: one server as somebody wrote it down, for us or for another program, read as a definition of ours.

The names of fields are those of Claude Desktop and Claude Code, Cursor, VS Code, Windsurf, Cline, Gemini, Codex and
OpenCode. What is only for their own windows is left out and told; what nobody knows is refused, because it may be a
slip of the pen in something that matters.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from app.core.mcp_servers import (
    MAX_NAME,
    SERVER_NAME,
    BearerAuth,
    HttpServer,
    InvalidServer,
    StdioServer,
    servers,
)
from app.core.util.headers import check_header, check_name
from app.core.util.json_codec import Raw
from app.core.util.urls import read_url

OURS = frozenset(StdioServer.model_fields) | frozenset(HttpServer.model_fields)
KINDS = {
    **dict.fromkeys(("stdio", "local"), "stdio"),
    **dict.fromkeys(("http", "streamable-http", "streamablehttp", "streamable_http", "remote"), "http"),
    "sse": "sse",
}
RENAMED = {
    **dict.fromkeys(("type", "transport", "transportType"), "kind"),
    **dict.fromkeys(("serverUrl", "server_url", "httpUrl", "baseUrl"), "url"),
    **dict.fromkeys(("http_headers", "requestHeaders"), "headers"),
    **dict.fromkeys(("environment",), "env"),
    **dict.fromkeys(("isActive",), "enabled"),
    **dict.fromkeys(("includeTools", "enabledTools", "enabled_tools", "tools"), "allowed_tools"),
    **dict.fromkeys(("excludeTools", "disabledTools", "disabled_tools"), "denied_tools"),
    **dict.fromkeys(("startupTimeout", "startup_timeout_sec", "initTimeout", "startup_timeout_ms"), "startup_timeout"),
    **dict.fromkeys(("timeout", "tool_timeout_sec", "requestTimeout"), "call_timeout"),
    "workingDirectory": "cwd",
}
SECONDS_OR_LESS = {"startupTimeout", "initTimeout", "timeout", "requestTimeout"}
"""Seconds for some clients and thousandths for others."""
THOUSANDTHS = {"startup_timeout_ms"}
WINDOW_DRESSING = frozenset(
    {"autoApprove", "alwaysAllow", "trust", "description", "title", "displayName", "icon", "logo", "version"}
    | {"gallery", "dev", "note", "comment", "_comment", "$schema", "provider", "providerUrl", "tags", "id"}
    | {"serverInstructions", "chatMenu", "iconPath", "fromGalleryId", "alwaysLoad", "defer_loading"}
)
"""What concerns the windows of a client, or its own way to ask people: rules say here what is allowed."""


class Entry(NamedTuple):
    """Fields of ours, and one sentence about each that was left out or could be read in two ways."""

    fields: Raw
    notes: list[str]


def legal_name(given: str) -> str:
    """A name that tools can be called after. Blanks and the like become dashes."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", given.strip()).strip("-._")
    if len(name) <= MAX_NAME and re.fullmatch(SERVER_NAME, name):
        return name
    if "__" in name:
        raise InvalidServer("two underscores in a row stand between server and tool; leave one of them out of the name")
    raise InvalidServer("a name needs 1 to 64 letters, digits, dots, dashes and underscores")


def translate(given: Mapping[str, Any]) -> Entry:
    """An entry in our words. Raises `InvalidServer`."""
    notes: list[str] = []
    fields: Raw = {}
    for name, value in given.items():
        if value is None or name in WINDOW_DRESSING:
            notes += [f"{name} is not used here"] if name in WINDOW_DRESSING else []
            continue
        for ours, meant in _read(name, value, notes):
            if ours in fields and fields[ours] != meant:
                raise InvalidServer(f"{name}: {ours} is said twice, and differently")
            fields[ours] = meant
    _split_command(fields)
    _choose_kind(fields, notes)
    return Entry(fields, notes)


def define(name: str, fields: Mapping[str, Any]) -> StdioServer | HttpServer:
    """The definition, checked as far as that can be done without reaching for anything. Raises `InvalidServer`."""
    made = shaped(name, fields)
    check(made)
    return made


def shaped(name: str, fields: Mapping[str, Any]) -> StdioServer | HttpServer:
    """A definition whose texts may hold variables still. Raises `InvalidServer`."""
    try:
        return servers.validate_python({**fields, "name": name})
    except ValidationError as error:
        raise InvalidServer("; ".join(_mistakes(error))) from None


def check(made: StdioServer | HttpServer) -> None:
    """What a schema cannot say. Raises `InvalidServer`."""
    try:
        if isinstance(made, StdioServer):
            _check_program(made)
            return
        if made.kind == "sse" and made.era == "newer":
            raise InvalidServer("era: a server of the kind sse is of the older one")
        read_url(made.url)
        for name, value in made.headers.items():
            if isinstance(value, str):
                check_header(name, value)
            else:
                check_name(name)
    except InvalidServer:
        raise
    except ValueError as error:
        raise InvalidServer(str(error).rstrip(".")) from None
    if isinstance(made.auth, BearerAuth) and (made.auth.secret is None) == (made.auth.token is None):
        raise InvalidServer("auth: name either the `secret` that holds the token, or the `token`")


def _check_program(made: StdioServer) -> None:
    texts = [made.command, *made.args, made.cwd or "", *made.env, *(v for v in made.env.values() if isinstance(v, str))]
    if any("\0" in text for text in texts):
        raise InvalidServer("a program, its arguments and its environment cannot hold NUL characters")
    if bad := next((name for name in made.env if not name or "=" in name), None):
        raise InvalidServer(f"env: {bad[:80]!r} cannot be the name of a variable")


def _read(name: str, value: Any, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """A field in our words."""
    if name == "disabled":
        yield "enabled", not _yes_or_no(name, value)
    elif name == "bearer_token_env_var":
        yield "auth", {"type": "bearer", "token": f"${{{value}}}"}
    elif name in READERS:
        yield READERS[name](name, value, notes)
    elif name in RENAMED:
        ours = RENAMED[name]
        yield ours, READERS[ours](name, value, notes)[1] if ours in READERS else value
    elif name in OURS - {"name"}:
        yield name, value
    else:
        raise InvalidServer(f"{name} is no field that is known; take it out, or correct it")


def _read_kind(name: str, value: Any, notes: list[str]) -> tuple[str, Any]:
    kind = KINDS.get(str(value).lower())
    if kind is None:
        raise InvalidServer(f"{name}: {str(value)[:40]!r} is not one of stdio, http, streamable-http and sse")
    return "kind", kind


def _read_seconds(name: str, value: Any, notes: list[str]) -> tuple[str, Any]:
    ours = RENAMED.get(name, name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (name in THOUSANDTHS or (name in SECONDS_OR_LESS and value >= 1000)):
        notes.append(f"{name} {value} is taken for thousandths of a second")
        return ours, value / 1000
    return ours, value


def _read_texts(name: str, value: Any, notes: list[str]) -> tuple[str, Any]:
    """Numbers and yes or no are written out, as the editors do; what is null is not set."""
    if not isinstance(value, dict):
        return RENAMED.get(name, name), value
    return RENAMED.get(name, name), {key: _written(item) for key, item in value.items() if item is not None}


def _read_allowed(name: str, value: Any, notes: list[str]) -> tuple[str, Any]:
    return "allowed_tools", None if value == ["*"] else value


READERS: dict[str, Callable[[str, Any, list[str]], tuple[str, Any]]] = {
    "kind": _read_kind,
    "call_timeout": _read_seconds,
    "startup_timeout": _read_seconds,
    "env": _read_texts,
    "headers": _read_texts,
    "allowed_tools": _read_allowed,
}


def _written(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidServer(f"{name}: true or false is needed")
    return value


def _split_command(fields: Raw) -> None:
    """Some write the program and its arguments as one list."""
    command = fields.get("command")
    if isinstance(command, list):
        if not command or not all(isinstance(word, str) for word in command):
            raise InvalidServer("command: a list needs a program, and then its arguments as text")
        fields["command"], fields["args"] = command[0], [*command[1:], *fields.get("args", [])]


def _choose_kind(fields: Raw, notes: list[str]) -> None:
    has_command, has_url = "command" in fields, "url" in fields
    if has_command == has_url:
        raise InvalidServer("name either a `command` to start or a `url` to connect to")
    kind = fields.get("kind")
    if has_command and kind not in (None, "stdio"):
        raise InvalidServer(f"a command is spoken to over stdio, not {kind}")
    if has_url and kind == "stdio":
        raise InvalidServer("a url is spoken to over http or sse, not stdio")
    if kind is None:
        is_old = has_url and str(fields["url"]).partition("?")[0].rstrip("/").endswith("/sse")
        fields["kind"] = "stdio" if has_command else "sse" if is_old else "http"
        notes += ["its url ends in /sse, so it is spoken to as a server of the older kind is"] if is_old else []


def _mistakes(error: ValidationError) -> Iterator[str]:
    """Each field and what is wrong with it, never what it holds."""
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in one["loc"] if part not in ("stdio", "http", "sse"))
        yield f"{where}: {one['msg'][0].lower()}{one['msg'][1:]}"
