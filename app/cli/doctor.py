"""The doctor: looks over the machine, the settings and the records, changes nothing, and says what to do."""

import asyncio
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from cryptography import x509
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from app import __version__, config, mcp_config
from app.config import Settings
from app.core.errors import StoreError
from app.core.principals import ADMIN_PRINCIPAL
from app.core.sandbox import Backend, SandboxReport
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.sessions import Profile, is_inside
from app.core.util.clocks import SystemClock
from app.net import tls
from app.net.service_client import ServiceProblem, is_in_use, listen_error, probe
from app.sandbox import ripgrep
from app.sandbox.files.workspaces import HOME_FOLDER
from app.sandbox.isolation import features
from app.sandbox.isolation.planner import SandboxSettings, SpawnPlanner
from app.sandbox.process.spawner import Spawner
from app.sandbox.selftest.runner import SelfTest
from app.store import admin_key, db, integrity, lock, migrate

Level = Literal["ok", "note", "warning", "failure"]

LEAST_PYTHON = (3, 11)
LITTLE_SPACE = 1024**3
NO_SPACE = 64 * 1024**2
EXPIRES_SOON = 14
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SECRETS_KEY = "secrets.key"
COLORS = {"ok": "green", "note": "cyan", "warning": "yellow", "failure": "red"}
PROGRAMS = {
    "rg": ("searching in files", "ripgrep"),
    "bwrap": ("the strongest walls around processes; without it they are Landlock and seccomp", "bubblewrap"),
    "node": ("tools that run JavaScript", "nodejs"),
    "git": ("tools that work with repositories", "git"),
}
NO_WALLS = "Install bubblewrap and allow user namespaces, or use Linux 6.12 or newer with Landlock switched on."


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` is one sentence that says what to do, where there is something to do."""

    name: str
    level: Level
    message: str
    advice: str | None = None


def examine_all(config_file: Path | None, data_dir: Path | None) -> list[Finding]:
    """Read the settings, then look at everything. Settings that cannot be read are a finding, too."""
    try:
        settings = config.load(config_file, data_dir=data_dir)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors(include_url=False))
        return [_broken(f"Settings that cannot be: {wrong}."), *_machine()]
    except (config.BrokenConfig, OSError) as error:
        return [_broken(str(error)), *_machine()]
    return examine(settings)


def examine(settings: Settings) -> list[Finding]:
    """Everything there is to say about a service with these settings."""
    data_dir = settings.data_dir.absolute()
    try:
        running = lock.find_holder(data_dir)
    except OSError:
        running = None  # what keeps us from looking is told with the data directory
    return [
        Finding("configuration", "ok", "The settings can be read."),
        *_data_dir(data_dir),
        *_service(data_dir, running),
        *_database(settings, data_dir),
        _port(settings, running),
        _admin_key(settings, data_dir),
        _secrets_key(data_dir),
        *_tls(settings),
        *_proxies(settings),
        *_mcp_servers(settings, data_dir),
        *_machine(),
        _walls(settings, data_dir),
    ]


def is_well(findings: list[Finding]) -> bool:
    return all(finding.level != "failure" for finding in findings)


def to_json(findings: list[Finding]) -> str:
    return json.dumps({"ok": is_well(findings), "findings": [asdict(finding) for finding in findings]}, indent=2)


def to_table(findings: list[Finding]) -> Table:
    table = Table(box=None, show_header=False)
    for found in findings:
        told = Text(found.message)
        if found.advice:
            told.append(f"\n→ {found.advice}", style="bold")
        table.add_row(Text(found.level, style=COLORS[found.level]), Text(found.name), told)
    return table


def _broken(message: str) -> Finding:
    return Finding("configuration", "failure", message, "Correct it; docs/configuration.md has all settings.")


def _data_dir(path: Path) -> Iterator[Finding]:
    name, there = "data directory", _nearest(path)
    if there != path:
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            yield Finding(name, "note", f"{path} is not there yet; the first start makes it.")
        else:
            advice = "Choose a place that can be written with --data-dir."
            yield Finding(name, "failure", f"{path} is not there and cannot be made in {there}.", advice)
    elif not path.is_dir():
        yield Finding(name, "failure", f"{path} is no folder.", "Choose another one with --data-dir.")
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        advice = f"Run as its owner (uid {path.stat().st_uid}), or choose another one with --data-dir."
        yield Finding(name, "failure", f"{path} cannot be read and written by uid {os.geteuid()}.", advice)
    else:
        yield _owned(path)
    yield _space(there)


def _owned(path: Path) -> Finding:
    about = path.stat()
    foreign = sorted(_foreign(path, about.st_uid))
    passable = 0o011 if about.st_uid == 0 else 0  # a service that is root lets its processes through to workspaces
    if about.st_mode & 0o077 & ~passable:
        mode = f"mode {stat.S_IMODE(about.st_mode):o}"
        return Finding("data directory", "warning", f"{path} is open to others ({mode}).", f"Run `chmod 700 {path}`.")
    if about.st_uid != os.geteuid() or foreign:
        what = f"{', '.join(foreign)} in it" if foreign else path.name
        advice = f"Run everything as one user, and `chown -R` {path} to that user."
        return Finding("data directory", "warning", f"{path}: {what} belongs to another user.", advice)
    return Finding("data directory", "ok", f"{path} can be written, by its owner alone.")


def _foreign(folder: Path, owner: int) -> Iterator[str]:
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # a running service's files come and go
            if entry.stat(follow_symlinks=False).st_uid != owner and entry.name != HOME_FOLDER:
                yield entry.name


def _space(path: Path) -> Finding:
    free = shutil.disk_usage(path).free
    told, advice = f"{_size(free)} are free.", "Make room, or move the data directory to a larger disk."
    if free < NO_SPACE:
        return Finding("disk", "failure", told, advice)
    return Finding("disk", "warning", told, advice) if free < LITTLE_SPACE else Finding("disk", "ok", told)


def _service(data_dir: Path, running: lock.Holder | None) -> Iterator[Finding]:
    if running is None:
        yield Finding("service", "note", f"None runs on {data_dir}.")
    elif running.url is None:
        yield Finding("service", "note", "One is just starting, or a command is at work on the records.")
    else:
        yield _asked(running.url, running.certificate, running.pid)


def _asked(url: str, certificate: str | None, pid: int | None) -> Finding:
    """How the running service says it is."""
    where = f"{url}, pid {pid}"
    try:
        _, health = probe(url, "/healthz", certificate)
        status, ready = probe(url, "/readyz", certificate)
    except ServiceProblem as error:
        advice = f"Look at its log, and restart it if it does not recover (pid {pid})."
        return Finding("service", "failure", f"It runs ({where}), but {error}", advice)
    if status != 200:
        told = json.dumps(ready, ensure_ascii=False)
        return Finding("service", "warning", f"It runs ({where}), but is not ready: {told}.", "Look at its log.")
    if health.get("version") != __version__:
        told = f"It runs ({where}) as version {health.get('version')}; this command is {__version__}."
        return Finding("service", "warning", told, "Restart it, so that both are the same.")
    return Finding("service", "ok", f"It runs and is ready ({where}).")


def _database(settings: Settings, data_dir: Path) -> Iterator[Finding]:
    advice = "Stop the service and bring back a backup with `toolcrib db restore FILE`."
    try:
        path = Path(str(db.database_url(data_dir, settings.database_url).database)).resolve()
        if not path.exists():
            yield Finding("database", "note", f"{path} is not there yet; the first start makes it.")
            return
        found = integrity.examine(path)
    except (StoreError, OSError) as error:
        yield Finding("database", "failure", str(error), advice)
        return
    if found.faults:
        yield Finding("database", "failure", f"{path} is damaged: {'; '.join(found.faults)}.", advice)
    elif data_dir.resolve() not in path.parents and path.stat().st_mode & 0o077:
        yield Finding("database", "warning", f"{path} can be read by others.", f"Run `chmod 600 {path}`.")
    else:
        yield Finding("database", "ok", f"{path} is sound, {_size(found.bytes)}.")
    yield _schema(found)


def _schema(found: integrity.IntegrityReport) -> Finding:
    newest = migrate.revisions()[-1]
    if found.is_newer:
        told = f"The database has schema {found.revision}; this Toolcrib knows up to {newest}."
        return Finding("schema", "failure", told, "Use the Toolcrib that wrote it, or a newer one.")
    if found.is_older:
        told = f"The database has schema {found.revision or 'none'}; the next start brings it to {newest}."
        return Finding("schema", "note", told, "Make a backup first with `toolcrib db backup FILE`.")
    return Finding("schema", "ok", f"The database has the newest schema, {newest}.")


def _port(settings: Settings, running: lock.Holder | None) -> Finding:
    where = f"{settings.host}:{settings.port}"
    if settings.port == 0:
        return Finding("port", "ok", "A free one is chosen at the start.")
    refusal = listen_error(settings.host, settings.port)
    if refusal is None:
        return Finding("port", "ok", f"{where} is free.")
    if not is_in_use(refusal):
        told = f"{where} cannot be listened on: {refusal.strerror}."
        return Finding("port", "failure", told, "Choose another --host or --port.")
    if running and running.url and running.url.endswith(f":{settings.port}"):
        return Finding("port", "ok", f"{where} is held by the running service.")
    return Finding(
        "port", "failure", f"{where} is held by another program.", "Stop that program, or choose another --port."
    )


def _admin_key(settings: Settings, data_dir: Path) -> Finding:
    if settings.api_key:
        return Finding("admin key", "ok", "It is set in the configuration (TOOLCRIB_API_KEY or api_key).")
    return _private("admin key", data_dir / admin_key.FILE_NAME, "the first start makes it")


def _secrets_key(data_dir: Path) -> Finding:
    return _private("secrets key", data_dir / SECRETS_KEY, "it is made when it is needed")


def _private(name: str, path: Path, otherwise: str) -> Finding:
    """A file that nobody but its owner may read."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Finding(name, "note", f"{path} is not there; {otherwise}.")
    except OSError as error:
        return Finding(name, "failure", f"{path} cannot be looked at: {error.strerror}.", "Run as its owner.")
    if mode & 0o077:
        told = f"{path} is open to others (mode {stat.S_IMODE(mode):o})."
        return Finding(name, "warning", told, f"Run `chmod 600 {path}`, and replace it if others may have read it.")
    if not os.access(path, os.R_OK):
        return Finding(name, "failure", f"{path} cannot be read by uid {os.geteuid()}.", "Run as its owner.")
    return Finding(name, "ok", f"{path} is its owner's alone.")


def _tls(settings: Settings) -> Iterator[Finding]:
    try:
        tls.check(settings.tls_cert, settings.tls_key)
    except tls.BadCertificate as error:
        yield Finding("tls", "failure", str(error), "Set tls_cert and tls_key to a certificate and its own key.")
        return
    if settings.tls_cert is None or settings.tls_key is None:
        if settings.host in LOOPBACK:
            yield Finding("tls", "note", "HTTPS is off; only this machine can connect.")
        else:
            advice = "Set tls_cert and tls_key, or let a proxy in front speak HTTPS."
            yield Finding("tls", "note", f"HTTPS is off, and {settings.host} may be reached from elsewhere.", advice)
        return
    yield _expiry(settings.tls_cert)
    yield _private("tls key", settings.tls_key, "")


def _expiry(cert: Path) -> Finding:
    until = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    days, told = (until - datetime.now(UTC)).days, f"{cert} is valid until {until:%Y-%m-%d}"
    if days < 0:
        return Finding("tls", "failure", f"{told}, which has passed.", "Renew it, and restart the service.")
    if days < EXPIRES_SOON:
        return Finding("tls", "warning", f"{told}, in {days} days.", "Renew it, and restart the service.")
    return Finding("tls", "ok", f"{told} and belongs to its key.")


def _proxies(settings: Settings) -> Iterator[Finding]:
    if settings.forwarded_allow_ips == ["*"]:
        told = "X-Forwarded headers are believed from everybody, so that anybody can name an address as its own."
        yield Finding("proxies", "warning", told, "Name the proxies' addresses in forwarded_allow_ips.")


def _mcp_servers(settings: Settings, data_dir: Path) -> Iterator[Finding]:
    kept: set[str] = set()
    with suppress(StoreError, OSError):  # what is wrong with the database is told with it
        path = Path(str(db.database_url(data_dir, settings.database_url).database))
        for owner in (GLOBAL_PRINCIPAL, ADMIN_PRINCIPAL) if path.exists() else ():
            kept |= integrity.secret_names(path, owner)
    for found in mcp_config.examine(settings, {*settings.secrets, *kept}):
        yield Finding(*found)


def _machine() -> Iterator[Finding]:
    """Python, the kernel and programs, whatever the settings are."""
    yield _python()
    for name, feature, otherwise in (
        ("openat2", features.openat2(), "Use Linux 5.6 or newer, and a container runtime that lets openat2 through."),
        ("landlock", features.landlock(), "Use Linux 5.13 or newer with `landlock` in the kernel's lsm= list."),
        ("seccomp", features.seccomp(), "Use a kernel with CONFIG_SECCOMP_FILTER."),
    ):
        yield Finding(name, *(("ok", feature.detail) if feature.available else ("warning", feature.detail, otherwise)))
    spaces = features.user_namespaces()
    advice = "Allow them by sysctl or in the container's profile, if bubblewrap shall be used instead of Landlock."
    yield Finding("user namespaces", *(("ok", spaces.detail) if spaces.available else ("note", spaces.detail, advice)))
    for name, (use, package) in PROGRAMS.items():
        yield _program(name, use, package)


def _walls(settings: Settings, data_dir: Path) -> Finding:
    """Whether processes of models would be kept inside their walls: tried, as the service does at its start."""
    planner = SpawnPlanner(SandboxSettings.of(settings.sandbox.model_dump()), os.path.realpath(data_dir))
    report = asyncio.run(_inspected(planner))
    if report.backend is None:
        return Finding("walls", "warning", f"No process of a model is started. {report.reason}", NO_WALLS)
    if report.backend is Backend.NONE:
        told = "Processes of models run without walls; the settings say so twice."
        return Finding("walls", "warning", told, "Set sandbox.backend to auto.")
    if report.backend is Backend.LANDLOCK and _surrounds(settings, planner.data_dir):
        told = "The workspace surrounds the data directory. Landlock cannot hide it, so no process is started there."
        return Finding("walls", "warning", told, "Choose a data directory outside the workspace with --data-dir.")
    return Finding("walls", "ok", " ".join((report.reason, *report.unprotected)))


async def _inspected(planner: SpawnPlanner) -> SandboxReport:
    spawner = Spawner()
    try:
        return await SelfTest(spawner, planner, SystemClock()).renew()
    finally:
        await asyncio.to_thread(spawner.close)


def _surrounds(settings: Settings, data_dir: str) -> bool:
    """Whether the records are in the workspace, and the workspace can be written."""
    is_around = settings.workspace is not None and is_inside(data_dir, os.path.realpath(settings.workspace))
    return is_around and settings.sandbox.profile is Profile.WORKSPACE_WRITE


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < LEAST_PYTHON:
        return Finding("python", "failure", f"{version} is too old.", "Use Python 3.11 or newer.")
    return Finding("python", "ok", version)


def _program(name: str, use: str, package: str) -> Finding:
    found = features.find_program(next(iter(ripgrep.programs()), name) if name == "rg" else name)
    if found is None:
        advice = f"Install it with `apt-get install {package}` on Debian."
        return Finding(name, "note", f"It is not installed; it is needed for {use}.", advice)
    return Finding(name, "ok", f"{found.version} ({found.path})")


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest folder above it that is there."""
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def _size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count //= 1024
    return f"{count} GiB"
