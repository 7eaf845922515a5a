"""The `toolcrib` command: start the service, and use it from a terminal.

Heavy rooms are imported by the commands that need them, so that a plain call answers quickly.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from app import __version__, config, logs
from app.core.errors import StoreError
from app.core.principals import DEFAULT_SCOPES, Scope
from app.net.client import ServiceClient, ServiceProblem
from app.store import admin_key, lock

if TYPE_CHECKING:
    from app.keys import Keys

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tools for LLM agents: listed, run, recorded.")
key_app = typer.Typer(no_args_is_help=True, help="Keys: who may use the service.")
db_app = typer.Typer(no_args_is_help=True, help="The database.")
app.add_typer(key_app, name="key")
app.add_typer(db_app, name="db")

WIDE = 240  # where nobody looks, nothing is folded

out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, soft_wrap=True, highlight=False)

DataDir = Annotated[Path | None, typer.Option(help="Where the service keeps its records.")]
Config = Annotated[Path | None, typer.Option(help="Configuration file instead of ./toolcrib.toml.")]
Url = Annotated[str | None, typer.Option(envvar="TOOLCRIB_URL", help="A service elsewhere; its key with --key.")]
KeyOption = Annotated[str | None, typer.Option("--key", envvar="TOOLCRIB_API_KEY", help="The key to use.")]

COLORS = {"call.completed": "green", "call.error": "red", "call.running": "cyan", "call.pending": "dim"}


def main() -> None:
    app()


@contextmanager
def _plainly() -> Iterator[None]:
    """What the user can mend is one sentence and exit code 1, never a traceback."""
    try:
        yield
    except ValidationError as error:
        for item in error.errors(include_url=False):
            err.print(f"[red]setting {'.'.join(str(p) for p in item['loc'])}:[/] {item['msg']}")
        raise typer.Exit(1) from None
    except (StoreError, lock.AlreadyRunning, ServiceProblem, OSError) as error:
        err.print("[red]error:[/]", str(error), markup=True)
        raise typer.Exit(1) from None


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    data_dir: DataDir = None,
    workspace: Annotated[Path | None, typer.Option(help="The folder tools work in.")] = None,
    config_file: Annotated[Path | None, typer.Option("--config", help="Configuration file.")] = None,
) -> None:
    """Start the service."""
    import uvloop

    from app.server import serve as run

    with _plainly():
        settings = config.load(config_file, host=host, port=port, data_dir=data_dir, workspace=workspace)
        logs.configure(settings.log_level, settings.log_format)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(settings, lambda url: _announce(settings, url)))


def _announce(settings: config.Settings, url: str) -> None:
    """Where it is, the key, and a line to try."""
    if settings.api_key:
        key, shown = "$TOOLCRIB_API_KEY", "as set in TOOLCRIB_API_KEY"
    else:
        key = admin_key.read(settings.data_dir) or ""
        shown = f"{key}  (kept in {settings.data_dir / admin_key.FILE_NAME})"
    body: dict[str, Any] = {"tool": "read_file", "arguments": {"file_path": "hello.txt"}}
    if settings.workspace:
        body = {"tool": "list_dir", "arguments": {"dir_path": "."}}
    out.print(f"Toolcrib {__version__} is ready at {url} (docs: {url}/docs)", markup=False)
    out.print(f"key: {shown}", markup=False)
    out.print(
        f'try: curl -s {url}/v1/calls -H "Authorization: Bearer {key}" '
        f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'",
        markup=False,
    )
    sys.stdout.flush()


@app.command()
def tools(url: Url = None, key: KeyOption = None, data_dir: DataDir = None, config_file: Config = None) -> None:
    """List the tools of the running service."""
    with _plainly():
        listed = _client(url, key, data_dir, config_file).ask("GET", "/v1/tools")["data"]
    table = Table("tool", "effect", "what it does", box=None, header_style="bold")
    for tool in listed:
        table.add_row(tool["name"], tool["effect"], tool["description"].split("\n")[0])
    out.print(table)


@app.command()
def call(
    name: Annotated[str, typer.Argument(help="The tool.")],
    arguments: Annotated[str, typer.Argument(help="Its arguments as JSON, or - to read them from stdin.")] = "{}",
    session: Annotated[str | None, typer.Option(help="The session to run in.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds the tool may run.")] = None,
    url: Url = None,
    key: KeyOption = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Run a tool and print its output. Exit code 0 when it completed, 1 when it failed, 2 for bad JSON."""
    try:
        given = json.loads(sys.stdin.read() if arguments == "-" else arguments)
    except ValueError as error:
        err.print(f"[red]error:[/] the arguments are not JSON: {error}")
        raise typer.Exit(2) from None
    body = {"tool": name, "arguments": given, "session": session, "timeout": timeout}
    wanted = {field: value for field, value in body.items() if value is not None}
    with _plainly():
        end = _show_call(_client(url, key, data_dir, config_file), wanted)
    if end is None:
        err.print("[red]error:[/] the service stopped before the call ended")
        raise typer.Exit(1)
    if end["result"]:
        typer.echo(end["result"]["output"])
    if end["error"]:
        err.print(f"[red]{end['error']['code']}:[/]", end["error"]["message"])
        raise typer.Exit(1)


def _show_call(client: ServiceClient, body: dict[str, Any]) -> dict[str, Any] | None:
    """Follow a call to its end, with its progress on the way."""
    for event in client.follow("POST", "/v1/calls", body):
        data: dict[str, Any] = event["data"]
        match event.get("type"):
            case "call.completed" | "call.error":
                return data
            case "call.progress":
                err.print(f"[dim]… {data['title'] or json.dumps(data['metadata'])}[/]")
            case "call.output":
                err.print(data["text"], end="", markup=False, style="dim")
            case "call.waiting":
                err.print(f"[dim]… waiting for {data['waiting']}[/]")
    return None


@app.command()
def watch(
    session: Annotated[str | None, typer.Option(help="Only this session.")] = None,
    types: Annotated[str | None, typer.Option(help="Only these types, comma-separated.")] = None,
    after: Annotated[int | None, typer.Option(help="Start behind this event; 0 for all that is stored.")] = None,
    url: Url = None,
    key: KeyOption = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Print events as they come, until interrupted."""
    wanted = {"session": session, "types": types, "after": after}
    params = {name: value for name, value in wanted.items() if value is not None}
    with _plainly():
        for event in _client(url, key, data_dir, config_file).follow("GET", "/v1/events", **params):
            _print_event(event)


def _print_event(event: dict[str, Any]) -> None:
    kind, data = event.get("type", "lagged"), event.get("data") or {}
    error = data.get("error") or {}
    told = error.get("message") or data.get("title") or data.get("text") or ""
    if not told and kind == "call.pending":
        told = json.dumps(data.get("arguments") or data.get("input"))
    head = f"{event.get('seq', ''):>6} {event.get('at', '')[11:23]:12}"
    out.print(f"[dim]{head}[/]", f"[{COLORS.get(kind, 'yellow')}]{kind:14}[/]", end=" ")
    out.print(f"{data.get('tool', ''):12} {event.get('call') or '':32} {told}", markup=False)


@key_app.command("create")
def create_key(
    principal: Annotated[str, typer.Argument(help="Whose key it is; made when new.")],
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    scope: Annotated[list[Scope] | None, typer.Option(help="What it may do; may be given several times.")] = None,
    url: Url = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Make a key and print its token, this once."""
    with _plainly():
        made = _keys(url, data_dir, config_file).create(principal, name, scope or sorted(DEFAULT_SCOPES))
    err.print(f"[dim]{made['id']} for {made['principal']}: {', '.join(made['scopes'])}[/]")
    typer.echo(made["token"])


@key_app.command("list")
def list_keys(url: Url = None, data_dir: DataDir = None, config_file: Config = None) -> None:
    """List all keys, without their tokens."""
    with _plainly():
        known = _keys(url, data_dir, config_file).list()
    table = Table("id", "principal", "name", "scopes", "created", "revoked", box=None, header_style="bold")
    for key in known:
        row = (key["id"], key["principal"], key["name"], " ".join(key["scopes"]), key["created_at"])
        table.add_row(*row, key["revoked_at"] or "")
    out.print(table)


@key_app.command("revoke")
def revoke_key(
    id: Annotated[str, typer.Argument(help="The key's id.")],
    url: Url = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Take a key back; it stops working at once."""
    with _plainly():
        _keys(url, data_dir, config_file).revoke(id)
    err.print(f"[dim]{id} is revoked[/]")


@db_app.command("upgrade")
def upgrade_database(data_dir: DataDir = None, config_file: Config = None) -> None:
    """Bring the database to this version's schema. The service does it by itself at start."""
    from app.store import db, migrate

    with _plainly():
        settings = config.load(config_file, data_dir=data_dir)
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = lock.DataDirLock(settings.data_dir)
        try:
            url = db.database_url(settings.data_dir.absolute(), settings.database_url)
            changed = migrate.upgrade(url)
        finally:
            held.release()
    out.print(f"{url.database}: {'upgraded to' if changed else 'is at'} {migrate.current(url)}", markup=False)


@app.command()
def openapi(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to this file.")] = None,
) -> None:
    """Print the OpenAPI document."""
    from app.main import create_app

    text = json.dumps(create_app(config.Settings()).openapi(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text)


def _client(url: str | None, key: str | None, data_dir: Path | None, config_file: Path | None) -> ServiceClient:
    """The service named by --url, or the one that runs on the data directory."""
    settings = config.load(config_file, data_dir=data_dir)
    token = key or (settings.api_key and settings.api_key.get_secret_value()) or admin_key.read(settings.data_dir)
    where = url or lock.holder_url(settings.data_dir)
    if where is None:
        raise ServiceProblem(
            f"No Toolcrib runs on {settings.data_dir}. Start one with `toolcrib serve`, or give --url."
        )
    if not token:
        raise ServiceProblem("No key: give --key or set TOOLCRIB_API_KEY.")
    return ServiceClient(where, token)


def _keys(url: str | None, data_dir: Path | None, config_file: Path | None) -> "Keys":
    """The keys of the running service over REST; of a service that does not run, straight from its records."""
    from app.keys import OfflineKeys, ServiceKeys

    settings = config.load(config_file, data_dir=data_dir)
    if url is None and lock.holder_url(settings.data_dir) is None:
        return OfflineKeys(settings)
    return ServiceKeys(_client(url, None, data_dir, config_file))
