"""Commands for those who look after a service: its keys, its secrets, its database, its health."""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from app import config
from app.cli.options import Config, DataDir, Url, client, err, out, plainly
from app.core.calls import Status
from app.core.principals import DEFAULT_SCOPES, Scope
from app.core.util.clocks import microseconds
from app.core.util.ids import earliest
from app.store import lock

if TYPE_CHECKING:
    from app.cli.keys import Keys
    from app.cli.secrets import Secrets
    from app.store.backups import Contents

SECRETS_NOTE = "secrets.key is not part of a backup: keep it with the file, or the secrets in it cannot be read again."
KEYS_NOTE = "Keys that were revoked after the backup was made are valid again: look at `toolcrib key list`."

IsGlobal = Annotated[bool, typer.Option("--global/--own", help="Everybody's secret, or the key owner's own.")]

key_app = typer.Typer(no_args_is_help=True, help="Keys: who may use the service.")
secret_app = typer.Typer(no_args_is_help=True, help="Secrets: values that tools use by name.")
db_app = typer.Typer(no_args_is_help=True, help="The database.")


@key_app.command("create")
def create_key(
    principal: Annotated[str, typer.Argument(help="Whose key it is; made when new.")],
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    scope: Annotated[list[Scope] | None, typer.Option(help="What it may do; may be given several times.")] = None,
    session: Annotated[
        list[str] | None, typer.Option(help="Pattern of sessions it is bound to; again for more.")
    ] = None,
    tool: Annotated[list[str] | None, typer.Option(help="Pattern of tools it is bound to; again for more.")] = None,
    calls_per_minute: Annotated[int | None, typer.Option(help="Most calls it may make in a minute.")] = None,
    bounds: Annotated[
        str, typer.Option(metavar="JSON", help="All it is bound to, as `POST /v1/keys` takes it.")
    ] = "{}",
    url: Url = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Make a key and print its token, this once."""
    given = {"sessions": session, "tools": tool, "calls_per_minute": calls_per_minute}
    bound = _object(bounds, "--bounds") | {name: value for name, value in given.items() if value}
    with plainly():
        made = _keys(url, data_dir, config_file).create(principal, name, scope or sorted(DEFAULT_SCOPES), bound)
    err.print(f"[dim]{made['id']} for {made['principal']}: {', '.join(made['scopes'])}[/]")
    typer.echo(made["token"])


def _object(text: str, option: str) -> dict[str, Any]:
    """The JSON object that an option holds."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{option} takes a JSON object")
    return found


@key_app.command("list")
def list_keys(url: Url = None, data_dir: DataDir = None, config_file: Config = None) -> None:
    """List all keys, without their tokens."""
    with plainly():
        known = _keys(url, data_dir, config_file).list()
    table = Table("id", "principal", "name", "scopes", "bounds", "created", "revoked", box=None, header_style="bold")
    for key in known:
        bounds = {name: value for name, value in key["bounds"].items() if value}
        shown = json.dumps(bounds, ensure_ascii=False) if bounds else ""
        row = (key["id"], key["principal"], key["name"], " ".join(key["scopes"]), shown, key["created_at"])
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
    with plainly():
        _keys(url, data_dir, config_file).revoke(id)
    err.print(f"[dim]{id} is revoked[/]")


@secret_app.command("set")
def set_secret(
    name: Annotated[str, typer.Argument(help="What it is called; put in place of the old one.")],
    is_global: IsGlobal = True,
    domain: Annotated[list[str] | None, typer.Option(help="A host it may be sent to; may be given again.")] = None,
    from_env: Annotated[str | None, typer.Option(help="Read the value from this variable.")] = None,
    from_file: Annotated[Path | None, typer.Option(help="Read the value from this file.")] = None,
    url: Url = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Keep a secret. The value comes from stdin, unless a variable or file is named; at a terminal it is asked for."""
    from app.cli.secrets import read_value

    if from_env is not None and from_file is not None:
        raise typer.BadParameter("give either --from-env or --from-file")
    with plainly():
        kept = _secrets(url, data_dir, config_file)
        value = read_value(from_env, from_file)
        kept.put(name, value, domain or [], is_global=is_global)
    err.print(f"[dim]{name} is kept[/]")


@secret_app.command("list")
def list_secrets(url: Url = None, data_dir: DataDir = None, config_file: Config = None) -> None:
    """List everybody's secrets and the key owner's own, without their values."""
    with plainly():
        known = _secrets(url, data_dir, config_file).list()
    table = Table("name", "whose", "domains", "source", "updated", box=None, header_style="bold")
    for secret in known:
        whose = "everybody" if secret["global"] else "own"
        table.add_row(secret["name"], whose, " ".join(secret["domains"]), secret["source"], secret["updated_at"] or "")
    out.print(table)


@secret_app.command("rm")
def remove_secret(
    name: Annotated[str, typer.Argument(help="What it is called.")],
    is_global: IsGlobal = True,
    url: Url = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Forget a secret; nothing can use it from now on."""
    with plainly():
        _secrets(url, data_dir, config_file).drop(name, is_global=is_global)
    err.print(f"[dim]{name} is removed[/]")


@secret_app.command("reset")
def reset_secrets(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Give up all stored secrets of all owners, when the file that opens them is lost. The service must not run."""
    from app.cli.secrets import OfflineSecrets

    if not yes:
        typer.confirm("Remove every stored secret of every owner?", abort=True)
    with plainly():
        gone = OfflineSecrets(config.load(config_file, data_dir=data_dir)).reset()
    err.print(f"[dim]{gone} removed[/]")


@db_app.command("upgrade")
def upgrade_database(data_dir: DataDir = None, config_file: Config = None) -> None:
    """Bring the database to this version's schema. The service does it by itself at start."""
    from app.store import db, migrate

    with plainly():
        settings = config.load(config_file, data_dir=data_dir)
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = lock.DataDirLock(settings.data_dir)
        try:
            url = db.database_url(settings.data_dir.absolute(), settings.database_url)
            changed = migrate.upgrade(url)
        finally:
            held.release()
    out.print(f"{url.database}: {'upgraded to' if changed else 'is at'} {migrate.current(url)}", markup=False)


@db_app.command("backup")
def back_up_database(
    file: Annotated[Path, typer.Argument(help="Where to write the copy.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Write a consistent copy of the database to FILE, while the service runs or not."""
    from app.cli import backup

    with plainly():
        made = backup.backup(config.load(config_file, data_dir=data_dir), file, force=force)
    out.print(f"{file}: {_told(made)}; integrity ok", markup=False)
    err.print(f"[dim]{SECRETS_NOTE}[/]")


@db_app.command("restore")
def restore_database(
    file: Annotated[Path, typer.Argument(help="The copy to bring back.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Put the copy in FILE in the place of the database, which is kept. The service must be stopped."""
    from app.cli import backup

    with plainly():
        done = backup.restore(
            config.load(config_file, data_dir=data_dir),
            file,
            lambda found: yes or typer.confirm(f"{file}: {_told(found)}. Put it in the place of the present records?"),
        )
    if done is None:
        err.print("Nothing was changed.")
        raise typer.Exit(1)
    out.print(f"restored from {file}: {_told(done.contents)}", markup=False)
    if done.was_upgraded:
        out.print("its schema was brought up to date")
    if done.ended:
        out.print(f"{done.ended} calls that were waiting in it were ended: they may have run since")
    if done.kept:
        out.print(f"the records it replaced are kept in {done.kept}", markup=False)
    err.print(f"[dim]{SECRETS_NOTE}\n{KEYS_NOTE}[/]")


def export_calls(
    output: Annotated[Path, typer.Option("--output", "-o", help="Write to this file; - for stdout.")] = Path("-"),
    session: Annotated[str | None, typer.Option(help="Only calls of this session.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only calls with this status.")] = None,
    since: Annotated[str | None, typer.Option(help="Only calls accepted at or after this time (RFC 3339).")] = None,
    until: Annotated[str | None, typer.Option(help="Only calls accepted before this time.")] = None,
    with_output: Annotated[bool, typer.Option("--with-output", help="Add the whole output of each call.")] = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Write calls as JSON Lines, oldest first, straight from the records."""
    from app.cli import export
    from app.store.calls import CallFilter

    first, end = _id_at(since, "--since"), _id_at(until, "--until")
    wanted = CallFilter(principal=None, session=session, tool=tool, status=status, since=first, until=end)
    to = None if str(output) == "-" else output
    with plainly():
        count = export.export(config.load(config_file, data_dir=data_dir), wanted, to=to, with_output=with_output)
    if to:
        err.print(f"[dim]{to}: {count} calls[/]")


def examine_machine(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Look over the machine, the settings and the records, and say what to do. Exit code 1 when something fails."""
    from app.cli import doctor

    findings = doctor.examine_all(config_file, data_dir)
    if as_json:
        typer.echo(doctor.to_json(findings))
    else:
        out.print(doctor.to_table(findings))
    raise typer.Exit(0 if doctor.is_well(findings) else 1)


def _told(found: "Contents") -> str:
    return f"{found.calls} calls, {found.events} events, {found.bytes} bytes, schema {found.revision}"


def _id_at(moment: str | None, option: str) -> str | None:
    """The bound of a time among the ids of calls."""
    if moment is None:
        return None
    try:
        return earliest("call", max(microseconds(datetime.fromisoformat(moment)), 0))
    except ValueError:
        raise typer.BadParameter(f"{moment} is no time as in 2026-11-16T04:00:00Z", param_hint=option) from None


def _keys(url: str | None, data_dir: Path | None, config_file: Path | None) -> "Keys":
    """The keys of the running service over REST; of a service that does not run, straight from its records."""
    from app.cli.keys import OfflineKeys, ServiceKeys

    settings = config.load(config_file, data_dir=data_dir)
    if url is None and lock.holder_url(settings.data_dir) is None:
        return OfflineKeys(settings)
    return ServiceKeys(client(url, None, data_dir, config_file))


def _secrets(url: str | None, data_dir: Path | None, config_file: Path | None) -> "Secrets":
    """The secrets of the running service over REST; of a service that does not run, straight from its records."""
    from app.cli.secrets import OfflineSecrets, ServiceSecrets

    settings = config.load(config_file, data_dir=data_dir)
    if url is None and lock.holder_url(settings.data_dir) is None:
        return OfflineSecrets(settings)
    return ServiceSecrets(client(url, None, data_dir, config_file))
