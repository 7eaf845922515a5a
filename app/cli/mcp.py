"""The `mcp` commands: list and manage the MCP servers of a running service."""

import json
from dataclasses import replace as replace_fields
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from app.cli.asks import escaped, printable
from app.cli.options import Target, err, out, user_errors, with_target

View = dict[str, Any]

PATH = "/v1/mcp/servers"
COLORS = {"connected": "green", "failed": "red", "needs_auth": "yellow", "starting": "cyan"}
BAD_STATES = {"failed", "needs_auth"}

app = typer.Typer(no_args_is_help=True, help="MCP servers whose tools are offered.")

Name = Annotated[str, typer.Argument(help="The server's name.")]
IsOwn = Annotated[
    bool, typer.Option("--own", help="A server of the key's owner; without it, servers of admins are global.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
@with_target()
def list_servers(target: Target, as_json: AsJson = False) -> None:
    """List all servers and their states."""
    with user_errors():
        servers = target.client().request("GET", PATH)["data"]
    if as_json:
        typer.echo(json.dumps(servers, indent=2, ensure_ascii=False))
        return
    table = Table("server", "owner", "kind", "state", "tools", "source", "info", box=None, header_style="bold")
    for view in servers:
        state = f"[{COLORS.get(view['state'], 'dim')}]{view['state']}[/]"
        row = (escaped(view["owner"] or "global"), view["kind"], state, str(view["tools"]), view["source"])
        table.add_row(escaped(view["name"]), *row, escaped(_info(view)))
    out.print(table)


@app.command("add")
@with_target("key", "data_dir", "config_file")
def add_server(
    target: Target,
    name: Name,
    command: Annotated[
        list[str] | None, typer.Argument(help="Program and arguments, after --", metavar="-- COMMAND ARGS")
    ] = None,
    address: Annotated[str | None, typer.Option("--url", help="URL of an HTTP server.")] = None,
    is_sse: Annotated[bool, typer.Option("--sse", help="Use the legacy HTTP+SSE transport.")] = False,
    header: Annotated[
        list[str] | None, typer.Option(help="Header to send, such as 'X-Team: blue'; repeatable.")
    ] = None,
    bearer_secret: Annotated[str | None, typer.Option(help="Name of the secret that holds its token.")] = None,
    oauth: Annotated[bool, typer.Option("--oauth", help="Use OAuth; see `toolcrib mcp auth`.")] = False,
    env: Annotated[list[str] | None, typer.Option(help="Environment variable, as NAME=value; repeatable.")] = None,
    env_secret: Annotated[
        list[str] | None, typer.Option(help="Environment variable with a secret, as NAME=SECRET; repeatable.")
    ] = None,
    cwd: Annotated[str | None, typer.Option(help="Working directory of the program.")] = None,
    per_session: Annotated[bool, typer.Option("--per-session", help="One connection per session.")] = False,
    parallel: Annotated[bool, typer.Option("--parallel", help="Its tools may run in parallel.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the server of this name.")] = False,
    own: IsOwn = False,
    service: Annotated[
        str | None, typer.Option("--service", envvar="TOOLCRIB_URL", help="URL of another Toolcrib service.")
    ] = None,
) -> None:
    """Add a server: `toolcrib mcp add time -- uvx mcp-server-time`, or one with --url. Exit code 1 when it fails."""
    if (address is None) == (not command):
        raise typer.BadParameter("use either --url or, after --, a command")
    body: dict[str, Any] = {"name": name, "per_session": per_session, "parallel": parallel, "replace": replace}
    if command:
        body |= {"command": command[0], "args": command[1:], "env": _variables(env, env_secret), "cwd": cwd}
    else:
        body |= {"url": address, "kind": "sse" if is_sse else "http", "headers": dict(map(_header, header or []))}
        body["auth"] = _auth(bearer_secret, oauth)
    with user_errors():
        view = replace_fields(target, url=service).client().request("POST", PATH, body, own=own)
    _print_state(view)


@app.command("remove")
@with_target()
def remove_server(target: Target, name: Name, own: IsOwn = False) -> None:
    """Disconnect from a server and remove it."""
    with user_errors():
        target.client().request("DELETE", f"{PATH}/{quote(name, safe='')}", own=own)
    err.print(f"[dim]{escaped(name)} is removed[/]")


@app.command("reconnect")
@with_target()
def reconnect_server(target: Target, name: Name, own: IsOwn = False) -> None:
    """Reconnect to a server. Exit code 1 when it fails."""
    with user_errors():
        view = target.client().request("POST", f"{PATH}/{quote(name, safe='')}/reconnect", own=own)
    _print_state(view)


@app.command("log")
@with_target()
def show_log(target: Target, name: Name) -> None:
    """Print the last stderr output of a server's program."""
    with user_errors():
        text = target.client().text(f"{PATH}/{quote(name, safe='')}/log")
    for line in text.splitlines():
        typer.echo(printable(line))


@app.command("auth")
@with_target()
def authorize(target: Target, name: Name, own: IsOwn = False) -> None:
    """Print the URL for the OAuth authorization; the server is connected afterwards."""
    with user_errors():
        response = target.client().request("POST", f"{PATH}/{quote(name, safe='')}/auth", own=own)
    if response.get("url"):
        typer.echo(printable(response["url"]))
    else:
        err.print(f"[dim]{escaped(name)} is already signed in[/]")


def _info(view: View) -> str:
    """The error, or the name and version of the server."""
    if view["error"]:
        return str(view["error"])
    info = view["server_info"] or {}
    return " ".join(str(info[part]) for part in ("name", "version") if info.get(part))


def _print_state(view: View) -> None:
    """Print the state of a server; exit with 1 if it does not work."""
    info = f"{view['tools']} tools" if view["state"] == "connected" else _info(view)
    err.print(
        f"{escaped(view['name'])}: [{COLORS.get(view['state'], 'dim')}]{view['state']}[/] {escaped(info)}".rstrip()
    )
    if view["state"] == "needs_auth":
        err.print(f"[dim]sign in with `toolcrib mcp auth {escaped(view['name'])}`[/]")
    if view["state"] in BAD_STATES:
        raise typer.Exit(1)


def _variables(values: list[str] | None, secrets: list[str] | None) -> dict[str, Any]:
    env: dict[str, Any] = dict(_pair(value, "--env") for value in values or [])
    return env | {name: {"secret": secret} for name, secret in (_pair(one, "--env-secret") for one in secrets or [])}


def _pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise typer.BadParameter(f"{option} takes NAME=value")
    return name, value


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    if not name.strip() or not separator:
        raise typer.BadParameter("--header takes 'Name: value'")
    return name.strip(), value.strip()


def _auth(secret: str | None, oauth: bool) -> View | None:
    if secret is not None and oauth:
        raise typer.BadParameter("use either --bearer-secret or --oauth")
    if oauth:
        return {"type": "oauth"}
    return None if secret is None else {"type": "bearer", "secret": secret}
