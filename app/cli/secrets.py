"""The `secret` commands: over HTTP while the service runs, in its database while it is stopped."""

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from app.cli.options import Target, err, out, user_errors, with_target
from app.config import MAX_SECRET_FILE_BYTES, SecretSetting, decode_secret
from app.core.secrets import check_name, check_value

IsGlobal = Annotated[bool, typer.Option("--global/--own", help="A global secret, or one of the key's owner.")]

app = typer.Typer(no_args_is_help=True, help="Secrets: values that tools use by name.")


@app.command("set")
@with_target("url", "data_dir", "config_file")
def set_secret(
    target: Target,
    name: Annotated[str, typer.Argument(help="Name of the secret; an existing one is replaced.")],
    is_global: IsGlobal = True,
    domain: Annotated[list[str] | None, typer.Option(help="Host it may be sent to; repeatable.")] = None,
    from_env: Annotated[str | None, typer.Option(help="Read the value from this variable.")] = None,
    from_file: Annotated[Path | None, typer.Option(help="Read the value from this file.")] = None,
) -> None:
    """Store a secret. The value is read from stdin, a variable or a file, or prompted for on a terminal."""
    if from_env is not None and from_file is not None:
        raise typer.BadParameter("use either --from-env or --from-file")
    with user_errors():
        service = None if target.is_stopped() else target.client()
        value = _read_value(from_env, from_file)
        if service is None:
            from app.cli import offline_store

            offline_store.put_secret(target.settings(), name, value, domain or [], is_global=is_global)
        else:
            check_name(name)
            check_value(value)
            body = {"value": value, "domains": domain or []}
            service.request("PUT", f"/v1/secrets/{name}", body, **{"global": is_global})
    err.print(f"[dim]{name} is stored[/]")


@app.command("list")
@with_target("url", "data_dir", "config_file")
def list_secrets(target: Target) -> None:
    """List the global secrets and those of the key's owner, without their values."""
    with user_errors():
        if target.is_stopped():
            from app.cli import offline_store

            secrets = offline_store.list_secrets(target.settings())
        else:
            secrets = target.client().request("GET", "/v1/secrets")["data"]
    table = Table("name", "owner", "domains", "source", "updated", box=None, header_style="bold")
    for secret in secrets:
        owner = "global" if secret["global"] else "own"
        table.add_row(secret["name"], owner, " ".join(secret["domains"]), secret["source"], secret["updated_at"] or "")
    out.print(table)


@app.command("rm")
@with_target("url", "data_dir", "config_file")
def remove_secret(
    target: Target, name: Annotated[str, typer.Argument(help="Name of the secret.")], is_global: IsGlobal = True
) -> None:
    """Delete a secret."""
    with user_errors():
        if target.is_stopped():
            from app.cli import offline_store

            offline_store.remove_secret(target.settings(), name, is_global=is_global)
        else:
            check_name(name)
            target.client().request("DELETE", f"/v1/secrets/{name}", **{"global": is_global})
    err.print(f"[dim]{name} is removed[/]")


@app.command("reset")
@with_target("data_dir", "config_file")
def reset_secrets(target: Target, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Delete all stored secrets of all owners, if the key file is lost. The service must be stopped."""
    from app.cli import offline_store

    if not yes:
        typer.confirm("Delete every stored secret of every owner?", abort=True)
    with user_errors():
        count = offline_store.reset_secrets(target.settings())
    err.print(f"[dim]{count} removed[/]")


def _read_value(env: str | None, file: Path | None) -> str:
    """Never from the command line, which other users can see."""
    if env is not None or file is not None:
        return SecretSetting(env=env, file=file).read()
    if sys.stdin.isatty():
        return getpass.getpass("Value (not shown): ")
    return decode_secret(sys.stdin.buffer.read(MAX_SECRET_FILE_BYTES))
