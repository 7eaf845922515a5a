"""The MCP servers that the operator configures: in the settings, and in a file as of Claude Desktop or VS Code.

An invalid entry keeps the service from starting, so that a typing error is noticed. A variable that is not set on this
machine disables only the server that needs it.
"""

import logging
import os
import shutil
import stat
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from app.config import Settings
from app.core.errors import Misconfigured
from app.core.mcp_servers import BearerAuth, HttpServer, InvalidServer, OAuth, StdioServer
from app.mcp.client.config_entries import define, legal_name, translate, validate
from app.mcp.client.plaintext_secrets import find_plaintext_secrets
from app.text import jsonc
from app.text.env_expand import Find, Unset, expand, has_variables

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 4 * 1024 * 1024
EXPANDED = ("command", "args", "env", "cwd", "url", "headers", "auth", "roots")
ENV_FILE = "envFile"
"""VS Code's field for a file with environment variables."""
SETTINGS_PLACE = "mcp.servers"
READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH

Server = StdioServer | HttpServer


@dataclass(slots=True)
class Configured:
    """The configured servers."""

    servers: list[Server] = field(default_factory=list)
    #: Why some of the servers cannot be used on this machine; they are disabled.
    unusable: dict[str, str] = field(default_factory=dict)
    #: Secrets in plain text, to be redacted wherever they appear.
    plaintext_secrets: set[str] = field(default_factory=set)
    #: Where each server is configured, by name.
    places: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def log_findings(self) -> None:
        for name, reason in self.unusable.items():
            log.warning("the MCP server %s is not started: %s", name, reason)
        for warning in self.warnings:
            log.warning("%s", warning)
        for note in self.notes:
            log.info("%s", note)


class Finding(NamedTuple):
    """A result of `examine`, and what to do about it."""

    name: str
    level: Literal["ok", "warning", "failure"]
    message: str
    advice: str | None = None


def read(settings: Settings, environ: Mapping[str, str] = os.environ) -> Configured:
    """Every configured server, with its variables expanded. Raises `Misconfigured`."""
    config, find = Configured(), _variable_finder(settings, environ)
    _add_all(config, SETTINGS_PLACE, settings.mcp.servers, find)
    if settings.mcp_config is not None:
        has_secrets = _add_all(config, str(settings.mcp_config), _read_entries(settings.mcp_config), find)
        if has_secrets and settings.mcp_config.stat().st_mode & READABLE_BY_OTHERS:
            config.warnings.append(
                f"{settings.mcp_config} contains secrets in plain text, and other users can read it: chmod 600 it."
            )
    config.servers.sort(key=lambda server: server.name)
    return config


def examine(settings: Settings, secrets: Container[str], environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """What keeps servers from being usable; none is started. `secrets` are the names of the existing ones."""
    try:
        config = read(settings, environ)
    except Misconfigured as error:
        yield Finding("mcp servers", "failure", str(error), "Correct it; the service does not start like this.")
        return
    for server in config.servers:
        if reason := config.unusable.get(server.name):
            advice = "Set it where the service is started, or remove the server."
            yield Finding(f"mcp server {server.name}", "warning", f"It is not started: {reason}", advice)
        elif server.enabled and (problem := next(_problems(server, secrets, environ), None)):
            message, advice = problem
            yield Finding(f"mcp server {server.name}", "warning", message, advice)
    for warning in config.warnings:
        yield Finding("mcp config", "warning", warning, f"Run `chmod 600 {settings.mcp_config}`.")
    if config.servers:
        names = ", ".join(server.name for server in config.servers)
        yield Finding("mcp servers", "ok", f"{len(config.servers)} can be read: {names}.")


def _problems(server: Server, secrets: Container[str], environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is missing, and what to do about it."""
    for secret in sorted(secrets_of(server)):
        if secret not in secrets:
            yield (
                f"There is no shared secret {secret}, and none of the admin.",
                f"Store it with `toolcrib secret set {secret}`.",
            )
    if not isinstance(server, StdioServer):
        return
    if server.cwd is not None and not Path(server.cwd).is_dir():
        yield f"Its working directory {server.cwd} does not exist.", "Create it, or correct `cwd`."
    path = server.env.get("PATH", environ.get("PATH"))
    program = os.path.join(server.cwd or "", server.command) if os.sep in server.command else server.command
    if shutil.which(program, path=path if isinstance(path, str) else None) is None:
        yield (
            f"The program {server.command} does not exist or is not executable.",
            "Install it, or correct `command`.",
        )


def secrets_of(server: Server) -> set[str]:
    """The names of the secrets it needs."""
    values = [*(server.env if isinstance(server, StdioServer) else server.headers).values()]
    names = {value.secret for value in values if not isinstance(value, str)}
    auth = server.auth if isinstance(server, HttpServer) else None
    if isinstance(auth, BearerAuth) and auth.secret is not None:
        names.add(auth.secret)
    elif isinstance(auth, OAuth) and auth.client_secret is not None:
        names.add(auth.client_secret.secret)
    return names


def _add_all(config: Configured, place: str, entries: Mapping[str, Any], find: Find) -> bool:
    """Add the servers of one place; returns whether they contain a secret in plain text."""
    has_secrets = False
    for name, entry in entries.items():
        try:
            unexpanded = _read_entry(config, place, name, entry)
            has_secrets |= any(not has_variables(one.value) for one in find_plaintext_secrets(unexpanded))
            server = _expand_server(config, unexpanded, entry.get(ENV_FILE), find)
        except InvalidServer as error:
            raise Misconfigured(f"{place}: the MCP server {name!r} is invalid: {error}.") from None
        config.servers.append(server)
        found = find_plaintext_secrets(server)
        config.plaintext_secrets |= {one.token for one in found if not has_variables(one.value)}
    return has_secrets


def _read_entry(config: Configured, place: str, key: str, entry: Any) -> Server:
    """A server with its variables not expanded."""
    if not isinstance(entry, dict):
        raise InvalidServer("an object with a `command` or a `url` is needed")
    name = legal_name(key)
    if name in config.places:
        raise InvalidServer(f"{config.places[name]} already has one called {name}")
    config.places[name] = place
    if name != key:
        config.notes.append(f"{place}: the MCP server {key!r} is called {name} here.")
    fields, notes = translate({field: value for field, value in entry.items() if field != ENV_FILE})
    config.notes += [f"{place}: the MCP server {name}: {note}." for note in notes]
    return validate(name, fields)


def _expand_server(config: Configured, server: Server, env_file: Any, find: Find) -> Server:
    """The server with its variables expanded; it is disabled when one is not set."""
    if not server.enabled:
        return server
    try:
        file_env = _read_env_file(env_file, find)
        configured = server.model_dump(include=set(EXPANDED), exclude_unset=True)
        fields = {name: _expand(value, find) for name, value in configured.items()}
    except Unset as error:
        config.unusable[server.name] = str(error)
        return server.model_copy(update={"enabled": False})
    if file_env:
        fields["env"] = file_env | fields.get("env", {})
    return define(server.name, server.model_dump(exclude={*fields, "name"}, exclude_unset=True) | fields)


def _expand(value: Any, find: Find) -> Any:
    match value:
        case str():
            return expand(value, find)
        case list():
            return [_expand(item, find) for item in value]
        case dict():
            return {name: _expand(item, find) for name, item in value.items()}
        case _:
            return value


def _variable_finder(settings: Settings, environ: Mapping[str, str]) -> Find:
    """Environment variables, and those that editors define."""
    known = {"userHome": str(Path.home()), "pathSeparator": os.sep, "/": os.sep}
    if settings.workspace is not None:
        folder = settings.workspace.absolute()
        known |= {"workspaceFolder": str(folder), "workspaceFolderBasename": folder.name}
    return lambda name: known[name] if name in known else environ.get(name)


def _read_entries(path: Path) -> dict[str, Any]:
    """The servers of a file: `mcpServers` as in most clients, `servers` or `mcp.servers` as in VS Code."""
    try:
        with path.open("rb") as file:
            document = jsonc.loads(file.read(MAX_FILE_BYTES + 1).decode())
    except OSError as error:
        raise Misconfigured(f"The MCP server file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Misconfigured(f"The MCP server file {path} cannot be read: it is not UTF-8.") from None
    except jsonc.NotJson as error:
        raise Misconfigured(f"The MCP server file {path} cannot be read: {error}.") from None
    root = document if isinstance(document, dict) else {}
    inner = root.get("mcp")
    candidates = [
        root.get("mcpServers"),
        root.get("servers"),
        inner.get("servers") if isinstance(inner, dict) else None,
    ]
    found = [one for one in candidates if one is not None]
    if len(found) != 1 or not isinstance(found[0], dict):
        raise Misconfigured(
            f"The MCP server file {path} is invalid: "
            'it needs one object {"mcpServers": {name: {"command": …} or {"url": …}}}.'
        )
    return dict(found[0])


def _read_env_file(path: Any, find: Find) -> dict[str, str]:
    """The variables of a file of `NAME=value` lines."""
    if path is None:
        return {}
    if not isinstance(path, str):
        raise InvalidServer(f"{ENV_FILE}: the path of a file is needed")
    file = Path(expand(path, find))
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        raise Unset(f"its {ENV_FILE} {file} cannot be read.") from None
    pairs = [line.strip().removeprefix("export ").partition("=") for line in lines]
    return {
        name.strip(): value.strip().strip("\"'") for name, mark, value in pairs if mark and not name.startswith("#")
    }
