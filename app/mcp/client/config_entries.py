"""Reads one server entry, written for Toolcrib or for another MCP client, as a server definition.

The field names are those of Claude Desktop and Claude Code, Cursor, VS Code, Windsurf, Cline, Gemini, Codex and
OpenCode. Fields that only concern their user interface are ignored with a note; unknown fields are refused, because
they may be typing errors.
"""

import re
from collections.abc import Iterator, Mapping
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

FIELDS = frozenset(StdioServer.model_fields) | frozenset(HttpServer.model_fields)
KINDS = {
    **dict.fromkeys(("stdio", "local"), "stdio"),
    **dict.fromkeys(("http", "streamable-http", "streamablehttp", "streamable_http", "remote"), "http"),
    "sse": "sse",
}
SYNONYMS = {
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
AMBIGUOUS_UNITS = {"startupTimeout", "initTimeout", "timeout", "requestTimeout"}
"""Seconds for some clients and milliseconds for others."""
MILLISECONDS = {"startup_timeout_ms"}
IGNORED = frozenset(
    {"autoApprove", "alwaysAllow", "trust", "description", "title", "displayName", "icon", "logo", "version"}
    | {"gallery", "dev", "note", "comment", "_comment", "$schema", "provider", "providerUrl", "tags", "id"}
    | {"serverInstructions", "chatMenu", "iconPath", "fromGalleryId", "alwaysLoad", "defer_loading"}
)
"""Fields of a client's user interface or approval; here rules say what is allowed."""


class Entry(NamedTuple):
    """The fields of a definition, and a note on each that was ignored or is ambiguous."""

    fields: Raw
    notes: list[str]


def legal_name(name: str) -> str:
    """A valid server name. Blanks and the like become dashes. Raises `InvalidServer`."""
    legal = re.sub(r"[^A-Za-z0-9._-]+", "-", name.strip()).strip("-._")
    if len(legal) <= MAX_NAME and re.fullmatch(SERVER_NAME, legal):
        return legal
    if "__" in legal:
        raise InvalidServer("two underscores in a row separate server and tool; remove one of them from the name")
    raise InvalidServer("a name needs 1 to 64 alphanumeric characters, dots, dashes and underscores")


def translate(entry: Mapping[str, Any]) -> Entry:
    """An entry with the field names of a definition. Raises `InvalidServer`."""
    notes: list[str] = []
    fields: Raw = {}
    for name, value in entry.items():
        if name in IGNORED:
            notes.append(f"{name} is not used here")
        elif value is not None:
            field, translated = _translate_field(name, value, notes)
            if field in fields and fields[field] != translated:
                raise InvalidServer(f"{name}: {field} is given twice, with different values")
            fields[field] = translated
    _split_command(fields)
    _choose_kind(fields, notes)
    return Entry(fields, notes)


def define(name: str, fields: Mapping[str, Any]) -> StdioServer | HttpServer:
    """The validated definition. Raises `InvalidServer`."""
    server = validate(name, fields)
    check(server)
    return server


def validate(name: str, fields: Mapping[str, Any]) -> StdioServer | HttpServer:
    """A definition whose values may still contain variables. Raises `InvalidServer`."""
    try:
        return servers.validate_python({**fields, "name": name})
    except ValidationError as error:
        raise InvalidServer("; ".join(_messages(error))) from None


def check(server: StdioServer | HttpServer) -> None:
    """Check what a schema cannot express. Raises `InvalidServer`."""
    try:
        if isinstance(server, StdioServer):
            _check_program(server)
            return
        if server.kind == "sse" and server.era == "newer":
            raise InvalidServer("era: a server of the kind sse only supports older")
        read_url(server.url)
        for name, value in server.headers.items():
            if isinstance(value, str):
                check_header(name, value)
            else:
                check_name(name)
    except InvalidServer:
        raise
    except ValueError as error:
        raise InvalidServer(str(error).rstrip(".")) from None
    if isinstance(server.auth, BearerAuth) and (server.auth.secret is None) == (server.auth.token is None):
        raise InvalidServer("auth: give either the `secret` that holds the token, or the `token`")


def _check_program(server: StdioServer) -> None:
    values = (value for value in server.env.values() if isinstance(value, str))
    if any("\0" in text for text in (server.command, *server.args, server.cwd or "", *server.env, *values)):
        raise InvalidServer("a program, its arguments and its environment cannot contain NUL characters")
    if bad := next((name for name in server.env if not name or "=" in name), None):
        raise InvalidServer(f"env: {bad[:80]!r} is not a valid variable name")


def _translate_field(name: str, value: Any, notes: list[str]) -> tuple[str, Any]:
    """A field's name and value in a definition."""
    if name == "disabled":
        if not isinstance(value, bool):
            raise InvalidServer(f"{name}: true or false is needed")
        return "enabled", not value
    if name == "bearer_token_env_var":
        return "auth", {"type": "bearer", "token": f"${{{value}}}"}
    field = SYNONYMS.get(name, name)
    if field not in FIELDS - {"name"}:
        raise InvalidServer(f"{name} is an unknown field; remove or correct it")
    match field:
        case "kind":
            if (kind := KINDS.get(str(value).lower())) is None:
                raise InvalidServer(f"{name}: {str(value)[:40]!r} is not one of stdio, http, streamable-http and sse")
            return field, kind
        case "call_timeout" | "startup_timeout":
            return field, _to_seconds(name, value, notes)
        case "env" | "headers" if isinstance(value, dict):
            return field, {key: _to_text(item) for key, item in value.items() if item is not None}
        case "allowed_tools" if value == ["*"]:
            return field, None
    return field, value


def _to_seconds(name: str, value: Any, notes: list[str]) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (name in MILLISECONDS or (name in AMBIGUOUS_UNITS and value >= 1000)):
        notes.append(f"{name} {value} is read as milliseconds")
        return value / 1000
    return value


def _to_text(value: Any) -> Any:
    """Numbers and booleans as text, as editors do it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _split_command(fields: Raw) -> None:
    """Some clients write the program and its arguments as one list."""
    command = fields.get("command")
    if isinstance(command, list):
        if not command or not all(isinstance(word, str) for word in command):
            raise InvalidServer("command: a list needs a program, and then its arguments as text")
        fields["command"], fields["args"] = command[0], [*command[1:], *fields.get("args", [])]


def _choose_kind(fields: Raw, notes: list[str]) -> None:
    has_command, has_url = "command" in fields, "url" in fields
    if has_command == has_url:
        raise InvalidServer("give either a `command` to start or a `url` to connect to")
    kind = fields.get("kind")
    if has_command and kind not in (None, "stdio"):
        raise InvalidServer(f"a command needs the kind stdio, not {kind}")
    if has_url and kind == "stdio":
        raise InvalidServer("a url needs the kind http or sse, not stdio")
    if kind is None:
        is_sse = has_url and str(fields["url"]).partition("?")[0].rstrip("/").endswith("/sse")
        fields["kind"] = "stdio" if has_command else "sse" if is_sse else "http"
        notes += ["its url ends in /sse, so its kind is sse"] if is_sse else []


def _messages(error: ValidationError) -> Iterator[str]:
    """Each field and what is wrong with it, never its value."""
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in one["loc"] if part not in ("stdio", "http", "sse"))
        yield f"{where}: {one['msg'][0].lower()}{one['msg'][1:]}"
