"""MCP servers as the operator describes them: in the settings, and in a file as Claude Desktop and VS Code have it.

What is written wrong keeps the service from starting, with one sentence: a slip of the pen is not to be found out
when a tool is missing. What is only missing on this machine, a variable, costs the one server that needs it.
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
from app.mcp.client.config_entries import define, legal_name, shaped, translate
from app.mcp.client.plaintext_secrets import clear_values
from app.text import jsonc
from app.text.env_expand import Find, Unset, expand, has_variables

log = logging.getLogger(__name__)

MAX_FILE = 4 * 1024 * 1024
EXPANDED = ("command", "args", "env", "cwd", "url", "headers", "auth", "roots")
ENV_FILE = "envFile"
"""Where VS Code looks for more of a program's environment."""
IN_SETTINGS = "mcp.servers"
SHARED = stat.S_IRGRP | stat.S_IROTH

Server = StdioServer | HttpServer


@dataclass(slots=True)
class Configured:
    """What the operator describes.

    `unusable` are servers that are written right and cannot be had on this machine, each with a sentence; they are
    among `servers`, switched off. `clear` are secrets that stand there in clear, to be redacted wherever they turn up.
    """

    servers: list[Server] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)
    clear: set[str] = field(default_factory=set)
    places: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def tell(self) -> None:
        """Put into the log what is not as it may have been meant."""
        for name, sentence in self.unusable.items():
            log.warning("the MCP server %s is not started: %s", name, sentence)
        for sentence in self.warnings:
            log.warning("%s", sentence)
        for sentence in self.notes:
            log.info("%s", sentence)


class Finding(NamedTuple):
    """Something to know about a server before the service is started, and what to do about it."""

    name: str
    level: Literal["ok", "warning", "failure"]
    message: str
    advice: str | None = None


def load(settings: Settings) -> list[Server]:
    """Only the servers; what else there is to say goes into the log."""
    found = read(settings)
    found.tell()
    return found.servers


def read(settings: Settings, environ: Mapping[str, str] = os.environ) -> Configured:
    """Every server there is, with its variables filled in. Raises `Misconfigured`."""
    found, find = Configured(), _finder(settings, environ)
    _add_all(found, IN_SETTINGS, settings.mcp.servers, find)
    if settings.mcp_config is not None:
        has_secrets = _add_all(found, str(settings.mcp_config), _entries(settings.mcp_config), find)
        if has_secrets and settings.mcp_config.stat().st_mode & SHARED:
            found.warnings.append(
                f"{settings.mcp_config} holds secrets in clear, and others can read it: chmod 600 it."
            )
    found.servers.sort(key=lambda server: server.name)
    return found


def examine(settings: Settings, secrets: Container[str], environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """What keeps servers from being had; nothing is started. `secrets` are the names of those there are."""
    try:
        found = read(settings, environ)
    except Misconfigured as error:
        yield Finding("mcp servers", "failure", str(error), "Correct it; the service does not start like this.")
        return
    for server in found.servers:
        if message := found.unusable.get(server.name):
            advice = "Set it where the service is started, or take the server out."
            yield Finding(f"mcp server {server.name}", "warning", f"It is not started: {message}", advice)
        elif server.enabled and (trouble := next(_troubles(server, secrets, environ), None)):
            yield Finding(f"mcp server {server.name}", "warning", *trouble)
    for sentence in found.warnings:
        yield Finding("mcp config", "warning", sentence, f"Run `chmod 600 {settings.mcp_config}`.")
    if found.servers:
        names = ", ".join(server.name for server in found.servers)
        yield Finding("mcp servers", "ok", f"{len(found.servers)} can be read: {names}.")


def _troubles(server: Server, secrets: Container[str], environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is missing, and what to do about it."""
    for secret in sorted(secrets_of(server)):
        if secret not in secrets:
            yield (
                f"There is no secret {secret} of everybody's or the admin's.",
                f"Keep it with `toolcrib secret set {secret}`.",
            )
    if not isinstance(server, StdioServer):
        return
    if server.cwd is not None and not Path(server.cwd).is_dir():
        yield f"Its folder {server.cwd} is not there.", "Make it, or correct `cwd`."
    path = server.env.get("PATH", environ.get("PATH"))
    program = os.path.join(server.cwd or "", server.command) if os.sep in server.command else server.command
    if shutil.which(program, path=path if isinstance(path, str) else None) is None:
        yield f"The program {server.command} is not there, or not executable.", "Install it, or correct `command`."


def secrets_of(server: Server) -> set[str]:
    """The names of the secrets it needs."""
    given = [*(server.env if isinstance(server, StdioServer) else server.headers).values()]
    found = {one.secret for one in given if not isinstance(one, str)}
    auth = server.auth if isinstance(server, HttpServer) else None
    if isinstance(auth, BearerAuth) and auth.secret is not None:
        found.add(auth.secret)
    elif isinstance(auth, OAuth) and auth.client_secret is not None:
        found.add(auth.client_secret.secret)
    return found


def _add_all(found: Configured, place: str, entries: Mapping[str, Any], find: Find) -> bool:
    """Take up the servers of one place; the answer is whether a secret stands there in clear."""
    has_secrets = False
    for given, entry in entries.items():
        try:
            written = _written(found, place, given, entry)
            has_secrets |= any(not has_variables(one.value) for one in clear_values(written))
            server = _usable(found, written, entry.get(ENV_FILE), find)
        except InvalidServer as error:
            raise Misconfigured(f"{place}: the MCP server {given!r} cannot be had: {error}.") from None
        found.servers.append(server)
        found.clear |= {one.token for one in clear_values(server) if not has_variables(one.value)}
    return has_secrets


def _written(found: Configured, place: str, given: str, entry: Any) -> Server:
    """A server as it is written down, variables and all."""
    if not isinstance(entry, dict):
        raise InvalidServer("an object with a `command` or a `url` is needed")
    name = legal_name(given)
    if name in found.places:
        raise InvalidServer(f"{found.places[name]} has one called {name} already")
    found.places[name] = place
    if name != given:
        found.notes.append(f"{place}: the MCP server {given!r} is called {name} here.")
    fields, notes = translate({field: value for field, value in entry.items() if field != ENV_FILE})
    found.notes += [f"{place}: the MCP server {name}: {note}." for note in notes]
    return shaped(name, fields)


def _usable(found: Configured, written: Server, env_file: Any, find: Find) -> Server:
    """The server with its variables filled in; where that cannot be done it is switched off, and said why."""
    if not written.enabled:
        return written
    try:
        more = _environment(env_file, find)
        fields = {name: _expanded(value, find) for name, value in _given(written).items()}
    except Unset as error:
        found.unusable[written.name] = str(error)
        return written.model_copy(update={"enabled": False})
    if more:
        fields["env"] = more | fields.get("env", {})
    return define(written.name, written.model_dump(exclude={*fields, "name"}, exclude_unset=True) | fields)


def _given(written: Server) -> dict[str, Any]:
    return written.model_dump(include=set(EXPANDED), exclude_unset=True)


def _expanded(value: Any, find: Find) -> Any:
    match value:
        case str():
            return expand(value, find)
        case list():
            return [_expanded(item, find) for item in value]
        case dict():
            return {name: _expanded(item, find) for name, item in value.items()}
        case _:
            return value


def _finder(settings: Settings, environ: Mapping[str, str]) -> Find:
    """Variables of the environment, and those that editors know by themselves."""
    known = {"userHome": str(Path.home()), "pathSeparator": os.sep, "/": os.sep}
    if settings.workspace is not None:
        folder = settings.workspace.absolute()
        known |= {"workspaceFolder": str(folder), "workspaceFolderBasename": folder.name}

    def find(name: str) -> str | None:
        return known[name] if name in known else environ.get(name)

    return find


def _entries(path: Path) -> dict[str, Any]:
    """The servers of a file: `mcpServers` as most have it, or `servers` as VS Code does."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE + 1).decode()
        given = jsonc.loads(text)
    except OSError as error:
        raise Misconfigured(f"The file with MCP servers {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Misconfigured(f"The file with MCP servers {path} cannot be read: it is no text in UTF-8.") from None
    except jsonc.NotJson as error:
        raise Misconfigured(f"The file with MCP servers {path} cannot be read: {error}.") from None
    return _lists(path, given)


def _lists(path: Path, given: Any) -> dict[str, Any]:
    settings = given if isinstance(given, dict) else {}
    inner = settings.get("mcp")
    lists = [
        settings.get("mcpServers"),
        settings.get("servers"),
        inner.get("servers") if isinstance(inner, dict) else None,
    ]
    there = [one for one in lists if one is not None]
    if len(there) != 1 or not isinstance(there[0], dict):
        raise Misconfigured(
            f"The file with MCP servers {path} cannot be used: "
            'one object {"mcpServers": {name: {"command": …} or {"url": …}}} is needed in it.'
        )
    found: dict[str, Any] = there[0]
    return found


def _environment(path: Any, find: Find) -> dict[str, str]:
    """What a file of `NAME=value` lines says."""
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
