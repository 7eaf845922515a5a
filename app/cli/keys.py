"""The `key` commands: over HTTP while the service runs, in its database while it is stopped."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from app.cli.options import Target, err, out, user_errors, with_target
from app.core.principals import DEFAULT_SCOPES, Scope

app = typer.Typer(no_args_is_help=True, help="API keys of the service.")


@app.command("create")
@with_target("url", "data_dir", "config_file")
def create_key(
    target: Target,
    principal: Annotated[str, typer.Argument(help="Owner of the key; created when new.")],
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    scope: Annotated[list[Scope] | None, typer.Option(help="What the key may do; repeatable.")] = None,
    session: Annotated[list[str] | None, typer.Option(help="Pattern of allowed sessions; repeatable.")] = None,
    tool: Annotated[list[str] | None, typer.Option(help="Pattern of allowed tools; repeatable.")] = None,
    calls_per_minute: Annotated[int | None, typer.Option(help="Maximum number of calls per minute.")] = None,
    bounds: Annotated[str, typer.Option(metavar="JSON", help="All bounds, as in `POST /v1/keys`.")] = "{}",
) -> None:
    """Create a key and print its token, which is shown only once."""
    options = {"sessions": session, "tools": tool, "calls_per_minute": calls_per_minute}
    bound = _json_object(bounds, "--bounds") | {name: value for name, value in options.items() if value}
    scopes = scope or sorted(DEFAULT_SCOPES)
    with user_errors():
        if target.is_stopped():
            from app.cli import offline_store

            key = offline_store.create_key(target.settings(), principal, name, scopes, bound)
        else:
            body = {"principal": principal, "name": name, "scopes": [str(scope) for scope in scopes], "bounds": bound}
            key = target.client().request("POST", "/v1/keys", body)
    err.print(f"[dim]{key['id']} for {key['principal']}: {', '.join(key['scopes'])}[/]")
    typer.echo(key["token"])


@app.command("list")
@with_target("url", "data_dir", "config_file")
def list_keys(target: Target) -> None:
    """List all keys, without their tokens."""
    with user_errors():
        if target.is_stopped():
            from app.cli import offline_store

            keys = offline_store.list_keys(target.settings())
        else:
            keys = target.client().request("GET", "/v1/keys")["data"]
    table = Table("id", "principal", "name", "scopes", "bounds", "created", "revoked", box=None, header_style="bold")
    for key in keys:
        bounds = {name: value for name, value in key["bounds"].items() if value}
        bound = json.dumps(bounds, ensure_ascii=False) if bounds else ""
        row = (key["id"], key["principal"], key["name"], " ".join(key["scopes"]), bound, key["created_at"])
        table.add_row(*row, key["revoked_at"] or "")
    out.print(table)


@app.command("revoke")
@with_target("url", "data_dir", "config_file")
def revoke_key(target: Target, id: Annotated[str, typer.Argument(help="The key's id.")]) -> None:
    """Revoke a key; it stops working at once."""
    with user_errors():
        if target.is_stopped():
            from app.cli import offline_store

            offline_store.revoke_key(target.settings(), id)
        else:
            target.client().request("DELETE", f"/v1/keys/{id}")
    err.print(f"[dim]{id} is revoked[/]")


def _json_object(text: str, option: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{option} takes a JSON object")
    return value
