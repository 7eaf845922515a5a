"""The `toolcrib` command: start the service, and use it from a terminal.

Large modules are imported by the commands that need them, so that the others start fast.
"""

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from app import __version__, config, logs
from app.cli import asks, db, keys, mcp, secrets
from app.cli.options import Config, DataDir, Target, err, out, user_errors, with_target
from app.core.redaction import Redactor
from app.net.service_client import ServiceClient
from app.store import admin_key

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.add_typer(keys.app, name="key")
app.add_typer(secrets.app, name="secret")
app.add_typer(db.app, name="db")
app.add_typer(asks.app, name="asks")
app.add_typer(mcp.app, name="mcp")
app.command("doctor")(db.run_doctor)
app.command("export")(db.export_calls)

COLORS = {"call.completed": "green", "call.error": "red", "call.running": "cyan", "call.pending": "dim"}


def main() -> None:
    app()


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"toolcrib {__version__}")
        raise typer.Exit


@app.callback()
def toolcrib(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tools for LLM agents: listed, run, recorded."""


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    data_dir: DataDir = None,
    workspace: Annotated[Path | None, typer.Option(help="Directory that tools work in.")] = None,
    mcp_config: Annotated[
        Path | None, typer.Option(help="File with `mcpServers`, as Claude Desktop, Cursor and VS Code have it.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM) to serve HTTPS with.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key (PEM) of the certificate.")] = None,
    root_path: Annotated[
        str | None, typer.Option(help="Path prefix under which a reverse proxy publishes the service.")
    ] = None,
    forwarded_allow_ips: Annotated[
        str | None, typer.Option(help="Proxies whose X-Forwarded headers are trusted, comma-separated.")
    ] = None,
    config_file: Config = None,
) -> None:
    """Start the service."""
    import uvloop

    from app.server import serve as run

    proxies = None
    if forwarded_allow_ips is not None:
        proxies = [address.strip() for address in forwarded_allow_ips.split(",") if address.strip()]
    with user_errors():
        settings = config.load(
            config_file,
            host=host,
            port=port,
            data_dir=data_dir,
            workspace=workspace,
            mcp_config=mcp_config,
            tls_cert=tls_cert,
            tls_key=tls_key,
            root_path=root_path,
            forwarded_allow_ips=proxies,
        )
        redactor = Redactor(shapes_in_output=settings.redact_shapes_in_output)
        logs.configure(settings.log_level, settings.log_format, redactor)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(settings, lambda url: _announce(settings, url), redactor=redactor))


def _announce(settings: config.Settings, url: str) -> None:
    """Print the URL, the key, and an example request."""
    if settings.api_key:
        key, shown = "$TOOLCRIB_API_KEY", "as set in TOOLCRIB_API_KEY"
    else:
        path = settings.data_dir / admin_key.FILE_NAME
        key = f"$(cat {shlex.quote(str(path))})"
        shown = f"stored in {path}"
        if settings.print_key:
            key = admin_key.read(settings.data_dir) or ""
            shown = f"{key}  ({shown})"
    body: dict[str, Any] = {"tool": "read_file", "arguments": {"file_path": "hello.txt"}}
    if settings.workspace:
        body = {"tool": "list_dir", "arguments": {"dir_path": "."}}
    out.print(f"Toolcrib {__version__} is ready at {url} (docs: {url}/docs)", markup=False)
    out.print(f"key: {shown}", markup=False)
    trust = f"--cacert {shlex.quote(str(settings.tls_cert))} " if settings.tls_cert else ""
    out.print(
        f'try: curl -s {trust}{url}/v1/calls -H "Authorization: Bearer {key}" '
        f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'",
        markup=False,
    )
    sys.stdout.flush()


@app.command()
@with_target()
def tools(target: Target) -> None:
    """List the tools of the running service."""
    with user_errors():
        listed = target.client().request("GET", "/v1/tools")["data"]
    table = Table("tool", "effect", "what it does", box=None, header_style="bold")
    for tool in listed:
        table.add_row(tool["name"], tool["effect"], tool["description"].split("\n")[0])
    out.print(table)


@app.command()
@with_target()
def call(
    target: Target,
    name: Annotated[str, typer.Argument(help="The tool.")],
    arguments: Annotated[str, typer.Argument(help="Arguments as JSON, or - to read them from stdin.")] = "{}",
    is_input: Annotated[bool, typer.Option("--input", help="The argument is free text, as for apply_patch.")] = False,
    session: Annotated[str | None, typer.Option(help="The session to run in.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds the tool may run.")] = None,
) -> None:
    """Run a tool and print its output. Exit code 0 when it completed, 1 when it failed, 2 for bad JSON."""
    text = sys.stdin.read() if arguments == "-" else arguments
    payload = {"input": text} if is_input else {"arguments": _parse_json(text)}
    body = {"tool": name, **payload, "session": session, "timeout": timeout}
    with user_errors():
        end = _follow_call(target.client(), {field: value for field, value in body.items() if value is not None})
    if end is None:
        err.print("[red]error:[/] the service stopped before the call ended")
        raise typer.Exit(1)
    if end["result"]:
        typer.echo(end["result"]["output"].removesuffix("\n"))
    if end["error"]:
        err.print(f"[red]{escape(end['error']['code'])}:[/]", escape(end["error"]["message"]))
        raise typer.Exit(1)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        err.print(f"[red]error:[/] the arguments are not JSON: {error}")
        raise typer.Exit(2) from None


def _follow_call(service: ServiceClient, body: dict[str, Any]) -> dict[str, Any] | None:
    """Print the progress of a call; returns the ended call, or None if the stream ended before."""
    for event in service.follow("POST", "/v1/calls", body):
        data: dict[str, Any] = event["data"]
        match event.get("type"):
            case "call.completed" | "call.error":
                return data
            case "call.progress":
                err.print(f"[dim]… {escape(data['title'] or json.dumps(data['metadata']))}[/]")
            case "call.output":
                err.print(data["text"], end="", markup=False, style="dim")
            case "call.waiting":
                err.print(f"[dim]… waiting for {data['waiting']}[/]")
    return None


@app.command()
@with_target()
def watch(
    target: Target,
    session: Annotated[str | None, typer.Option(help="Only this session.")] = None,
    types: Annotated[str | None, typer.Option(help="Only these types, comma-separated.")] = None,
    after: Annotated[int | None, typer.Option(help="Start after this event number; 0 for all stored events.")] = None,
) -> None:
    """Print events until interrupted."""
    options = {"session": session, "types": types, "after": after}
    params = {name: value for name, value in options.items() if value is not None}
    with user_errors():
        for event in target.client().follow("GET", "/v1/events", **params):
            _print_event(event)


def _print_event(event: dict[str, Any]) -> None:
    kind, data = event.get("type", "lagged"), event.get("data") or {}
    error = data.get("error") or {}
    text = error.get("message") or data.get("title") or data.get("text") or ""
    if not text and kind == "call.pending":
        text = json.dumps(data.get("arguments") or data.get("input"))
    head = f"{event.get('seq', ''):>6} {event.get('at', '')[11:23]:12}"
    out.print(f"[dim]{head}[/]", f"[{COLORS.get(kind, 'yellow')}]{kind:14}[/]", end=" ")
    out.print(f"{data.get('tool', ''):12} {event.get('call') or '':32} {text}", markup=False)


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
