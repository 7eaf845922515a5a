"""The `mcp` commands: the MCP servers of a running service, looked at and looked after from a terminal."""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from app.cli.asks import plain, printable
from app.cli.options import Config, DataDir, KeyOption, Url, client, err, out, plainly

View = dict[str, Any]

PATH = "/v1/mcp/servers"
COLORS = {"connected": "green", "failed": "red", "needs_auth": "yellow", "starting": "cyan"}
BAD_STATES = {"failed", "needs_auth"}

app = typer.Typer(no_args_is_help=True, help="MCP servers: whose tools are offered.")

Name = Annotated[str, typer.Argument(help="The server's name.")]
IsOwn = Annotated[bool, typer.Option("--own", help="The key owner's own server; an admin's is everybody's otherwise.")]
Service = Annotated[
    str | None, typer.Option(envvar="TOOLCRIB_URL", help="A Toolcrib elsewhere; other commands say --url.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_servers(
    as_json: AsJson = False,
    url: Url = None,
    key: KeyOption = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """List all servers, and how each is."""
    with plainly():
        known = client(url, key, data_dir, config_file).request("GET", PATH)["data"]
    if as_json:
        typer.echo(json.dumps(known, indent=2, ensure_ascii=False))
        return
    table = Table("server", "whose", "kind", "state", "tools", "source", "about", box=None, header_style="bold")
    for view in known:
        state = f"[{COLORS.get(view['state'], 'dim')}]{view['state']}[/]"
        row = (plain(view["owner"] or "everybody"), view["kind"], state, str(view["tools"]), view["source"])
        table.add_row(plain(view["name"]), *row, plain(_about(view)))
    out.print(table)


@app.command("add")
def add_server(
    name: Name,
    command: Annotated[
        list[str] | None, typer.Argument(help="The program and its arguments, behind --", metavar="-- COMMAND ARGS")
    ] = None,
    address: Annotated[str | None, typer.Option("--url", help="Where a server elsewhere is.")] = None,
    is_sse: Annotated[bool, typer.Option("--sse", help="It speaks the older way, with two addresses.")] = False,
    header: Annotated[list[str] | None, typer.Option(help="A header to send, as in 'X-Team: blue'; again.")] = None,
    bearer_secret: Annotated[str | None, typer.Option(help="The secret that holds its token.")] = None,
    oauth: Annotated[bool, typer.Option("--oauth", help="Somebody signs in there; see `toolcrib mcp auth`.")] = False,
    env: Annotated[list[str] | None, typer.Option(help="A variable of the program, as in NAME=value; again.")] = None,
    env_secret: Annotated[
        list[str] | None, typer.Option(help="A variable that holds a secret, as in NAME=SECRET; again.")
    ] = None,
    cwd: Annotated[str | None, typer.Option(help="The folder the program starts in.")] = None,
    per_session: Annotated[bool, typer.Option("--per-session", help="One connection for each session.")] = False,
    parallel: Annotated[bool, typer.Option("--parallel", help="Its tools may run together.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in place of the one of this name.")] = False,
    own: IsOwn = False,
    service: Annotated[
        str | None, typer.Option("--service", envvar="TOOLCRIB_URL", help="A service elsewhere.")
    ] = None,
    key: KeyOption = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Add a server: `toolcrib mcp add time -- uvx mcp-server-time`, or one with --url. Exit code 1 when it fails."""
    if (address is None) == (not command):
        raise typer.BadParameter("give either --url or, behind --, a command")
    body: dict[str, Any] = {"name": name, "per_session": per_session, "parallel": parallel, "replace": replace}
    if command:
        body |= {"command": command[0], "args": command[1:], "env": _variables(env, env_secret), "cwd": cwd}
    else:
        body |= {"url": address, "kind": "sse" if is_sse else "http", "headers": dict(map(_header, header or []))}
        body["auth"] = _auth(bearer_secret, oauth)
    with plainly():
        view = client(service, key, data_dir, config_file).request("POST", PATH, body, own=own)
    _tell(view)


@app.command("remove")
def remove_server(
    name: Name,
    own: IsOwn = False,
    url: Url = None,
    key: KeyOption = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Disconnect from a server and forget it."""
    with plainly():
        client(url, key, data_dir, config_file).request("DELETE", f"{PATH}/{_quoted(name)}", own=own)
    err.print(f"[dim]{plain(name)} is removed[/]")


@app.command("reconnect")
def reconnect_server(
    name: Name,
    own: IsOwn = False,
    url: Url = None,
    key: KeyOption = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Connect to a server anew, now. Exit code 1 when that does not work."""
    with plainly():
        view = client(url, key, data_dir, config_file).request("POST", f"{PATH}/{_quoted(name)}/reconnect", own=own)
    _tell(view)


@app.command("log")
def show_log(
    name: Name, url: Url = None, key: KeyOption = None, data_dir: DataDir = None, config_file: Config = None
) -> None:
    """Print the last of what a server's program wrote to stderr."""
    with plainly():
        text = client(url, key, data_dir, config_file).text(f"{PATH}/{_quoted(name)}/log")
    for line in text.splitlines():
        typer.echo(printable(line))


@app.command("auth")
def sign_in(
    name: Name,
    own: IsOwn = False,
    url: Url = None,
    key: KeyOption = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Print the address where to sign in at a server; it is connected to as soon as that is done."""
    with plainly():
        answer = client(url, key, data_dir, config_file).request("POST", f"{PATH}/{_quoted(name)}/auth", own=own)
    if answer.get("url"):
        typer.echo(printable(answer["url"]))
    else:
        err.print(f"[dim]{plain(name)} lets us in already[/]")


def _about(view: View) -> str:
    """What there is to say: what went wrong, or what the server says it is."""
    if view["error"]:
        return str(view["error"])
    info = view["server_info"] or {}
    return " ".join(str(info[part]) for part in ("name", "version") if info.get(part))


def _tell(view: View) -> None:
    """How a server is; whether it works is the exit code."""
    known = f"{view['tools']} tools" if view["state"] == "connected" else _about(view)
    err.print(f"{plain(view['name'])}: [{COLORS.get(view['state'], 'dim')}]{view['state']}[/] {plain(known)}".rstrip())
    if view["state"] == "needs_auth":
        err.print(f"[dim]sign in with `toolcrib mcp auth {plain(view['name'])}`[/]")
    if view["state"] in BAD_STATES:
        raise typer.Exit(1)


def _variables(plain_ones: list[str] | None, secrets: list[str] | None) -> dict[str, Any]:
    env: dict[str, Any] = dict(_pair(given, "--env") for given in plain_ones or [])
    return env | {name: {"secret": secret} for name, secret in (_pair(one, "--env-secret") for one in secrets or [])}


def _pair(given: str, option: str) -> tuple[str, str]:
    name, mark, value = given.partition("=")
    if not name or not mark:
        raise typer.BadParameter(f"{option} takes NAME=value")
    return name, value


def _header(given: str) -> tuple[str, str]:
    name, mark, value = given.partition(":")
    if not name.strip() or not mark:
        raise typer.BadParameter("--header takes 'Name: value'")
    return name.strip(), value.strip()


def _auth(secret: str | None, oauth: bool) -> View | None:
    if secret is not None and oauth:
        raise typer.BadParameter("give either --bearer-secret or --oauth")
    if oauth:
        return {"type": "oauth"}
    return None if secret is None else {"type": "bearer", "secret": secret}


def _quoted(name: str) -> str:
    return quote(name, safe="")
