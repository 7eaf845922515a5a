"""The commands `db`, `export` and `doctor`: the database and the health of a service."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import Target, err, out, user_errors, with_target
from app.core.calls import Status
from app.core.util.clocks import microseconds
from app.core.util.ids import earliest
from app.store import lock

if TYPE_CHECKING:
    from app.store.backups import Contents

SECRETS_NOTE = "secrets.key is not part of a backup: store it with the file, or its secrets cannot be decrypted."
KEYS_NOTE = "Keys that were revoked after the backup are valid again: check `toolcrib key list`."

app = typer.Typer(no_args_is_help=True, help="The database.")


@app.command("upgrade")
@with_target("data_dir", "config_file")
def upgrade_database(target: Target) -> None:
    """Upgrade the database to the schema of this version. The service does it at start."""
    from app.store import db, migrate

    with user_errors():
        settings = target.settings()
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        data_dir_lock = lock.DataDirLock(settings.data_dir)
        try:
            url = db.database_url(settings.data_dir.absolute(), settings.database_url)
            is_upgraded = migrate.upgrade(url)
        finally:
            data_dir_lock.release()
    out.print(f"{url.database}: {'upgraded to' if is_upgraded else 'is at'} {migrate.current(url)}", markup=False)


@app.command("backup")
@with_target("data_dir", "config_file")
def back_up_database(
    target: Target,
    file: Annotated[Path, typer.Argument(help="Where to write the copy.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a consistent copy of the database to FILE, while the service runs or not."""
    from app.cli import backup

    with user_errors():
        contents = backup.backup(target.settings(), file, force=force)
    out.print(f"{file}: {_describe(contents)}; integrity ok", markup=False)
    err.print(f"[dim]{SECRETS_NOTE}[/]")


@app.command("restore")
@with_target("data_dir", "config_file")
def restore_database(
    target: Target,
    file: Annotated[Path, typer.Argument(help="The copy to restore.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Replace the database by the copy in FILE; the old one is saved. The service must be stopped."""
    from app.cli import backup

    with user_errors():
        restored = backup.restore(
            target.settings(),
            file,
            lambda contents: yes or typer.confirm(f"{file}: {_describe(contents)}. Replace the present database?"),
        )
    if restored is None:
        err.print("Nothing was changed.")
        raise typer.Exit(1)
    out.print(f"restored from {file}: {_describe(restored.contents)}", markup=False)
    if restored.was_upgraded:
        out.print("its schema was upgraded")
    if restored.ended:
        out.print(f"{restored.ended} calls that were waiting in it were ended: they may have run since")
    if restored.saved:
        out.print(f"the database it replaced is saved as {restored.saved}", markup=False)
    err.print(f"[dim]{SECRETS_NOTE}\n{KEYS_NOTE}[/]")


@with_target("data_dir", "config_file")
def export_calls(
    target: Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write to this file; - for stdout.")] = Path("-"),
    session: Annotated[str | None, typer.Option(help="Only calls of this session.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only calls with this status.")] = None,
    since: Annotated[str | None, typer.Option(help="Only calls accepted at or after this time (RFC 3339).")] = None,
    until: Annotated[str | None, typer.Option(help="Only calls accepted before this time.")] = None,
    with_output: Annotated[bool, typer.Option("--with-output", help="Add the whole output of each call.")] = False,
) -> None:
    """Write calls as JSON Lines, oldest first, from the database."""
    from app.cli import export
    from app.store.calls import CallFilter

    first, end = _id_at(since, "--since"), _id_at(until, "--until")
    where = CallFilter(principal=None, session=session, tool=tool, status=status, since=first, until=end)
    to = None if str(output) == "-" else output
    with user_errors():
        count = export.export(target.settings(), where, to=to, with_output=with_output)
    if to:
        err.print(f"[dim]{to}: {count} calls[/]")


@with_target("data_dir", "config_file")
def run_doctor(
    target: Target, as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False
) -> None:
    """Check the machine, the settings and the database, and say what to do. Exit code 1 when a check fails."""
    from app.cli import doctor

    findings = doctor.examine_all(target.config_file, target.data_dir)
    if as_json:
        typer.echo(doctor.to_json(findings))
    else:
        out.print(doctor.to_table(findings))
    raise typer.Exit(1 if doctor.has_failure(findings) else 0)


def _describe(contents: "Contents") -> str:
    return f"{contents.calls} calls, {contents.events} events, {contents.bytes} bytes, schema {contents.revision}"


def _id_at(time: str | None, option: str) -> str | None:
    """The smallest call id of a time."""
    if time is None:
        return None
    try:
        return earliest("call", max(microseconds(datetime.fromisoformat(time)), 0))
    except ValueError:
        raise typer.BadParameter(f"{time} is not a time such as 2026-11-16T04:00:00Z", param_hint=option) from None
