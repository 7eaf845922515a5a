"""Checks the machine, the settings and the data directory without changing them, and says what to do."""

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

MIN_PYTHON = (3, 11)
LOW_SPACE_BYTES = 1024**3
NO_SPACE_BYTES = 64 * 1024**2
EXPIRES_SOON_DAYS = 14
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SECRETS_KEY = "secrets.key"
COLORS = {"ok": "green", "note": "cyan", "warning": "yellow", "failure": "red"}
PROGRAMS = {
    "rg": ("searching in files", "ripgrep"),
    "bwrap": ("the strongest sandbox; without it, Landlock and seccomp are used", "bubblewrap"),
    "node": ("tools that run JavaScript", "nodejs"),
    "git": ("tools that work with repositories", "git"),
}
NO_SANDBOX_ADVICE = "Install bubblewrap and allow user namespaces, or use Linux 6.12 or newer with Landlock enabled."


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `advice` is one sentence that says what to do."""

    name: str
    level: Level
    message: str
    advice: str | None = None


def examine_all(config_file: Path | None, data_dir: Path | None) -> list[Finding]:
    """Read the settings and run all checks. Invalid settings are a finding, too."""
    try:
        settings = config.load(config_file, data_dir=data_dir)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors(include_url=False))
        return [_broken(f"Invalid settings: {wrong}."), *_machine()]
    except (config.BrokenConfig, OSError) as error:
        return [_broken(str(error)), *_machine()]
    return examine(settings)


def examine(settings: Settings) -> list[Finding]:
    """Run all checks with these settings."""
    data_dir = settings.data_dir.absolute()
    try:
        running = lock.find_holder(data_dir)
    except OSError:
        running = None  # reported by the check of the data directory
    return [
        Finding("configuration", "ok", "The settings can be read."),
        *_data_dir(data_dir),
        *_service(data_dir, running),
        *_database(settings, data_dir),
        _port(settings, running),
        _admin_key(settings, data_dir),
        _private_file("secrets key", data_dir / SECRETS_KEY, "it is created when needed"),
        *_tls(settings),
        *_proxies(settings),
        *_mcp_servers(settings, data_dir),
        *_machine(),
        _sandbox(settings, data_dir),
    ]


def has_failure(findings: list[Finding]) -> bool:
    return any(finding.level == "failure" for finding in findings)


def to_json(findings: list[Finding]) -> str:
    return json.dumps(
        {"ok": not has_failure(findings), "findings": [asdict(finding) for finding in findings]}, indent=2
    )


def to_table(findings: list[Finding]) -> Table:
    table = Table(box=None, show_header=False)
    for finding in findings:
        text = Text(finding.message)
        if finding.advice:
            text.append(f"\n→ {finding.advice}", style="bold")
        table.add_row(Text(finding.level, style=COLORS[finding.level]), Text(finding.name), text)
    return table


def _broken(message: str) -> Finding:
    return Finding("configuration", "failure", message, "Correct it; docs/configuration.md has all settings.")


def _data_dir(path: Path) -> Iterator[Finding]:
    name = "data directory"
    there = next(place for place in (path, *path.parents) if os.path.exists(place))
    if there != path:
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            yield Finding(name, "note", f"{path} does not exist yet; it is created at the first start.")
        else:
            advice = "Choose a writable directory with --data-dir."
            yield Finding(name, "failure", f"{path} does not exist and cannot be created in {there}.", advice)
    elif not path.is_dir():
        yield Finding(name, "failure", f"{path} is not a directory.", "Choose another one with --data-dir.")
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        advice = f"Run as its owner (uid {path.stat().st_uid}), or choose another one with --data-dir."
        yield Finding(name, "failure", f"{path} cannot be read and written by uid {os.geteuid()}.", advice)
    else:
        yield _check_owner(path)
    yield _space(there)


def _check_owner(path: Path) -> Finding:
    info = path.stat()
    foreign = sorted(_foreign(path, info.st_uid))
    # Sandboxed processes of a service that is root pass through to workspaces.
    passable = 0o011 if info.st_uid == 0 else 0
    if info.st_mode & 0o077 & ~passable:
        mode = f"mode {stat.S_IMODE(info.st_mode):o}"
        return Finding(
            "data directory", "warning", f"{path} can be accessed by other users ({mode}).", f"Run `chmod 700 {path}`."
        )
    if info.st_uid != os.geteuid() or foreign:
        what = f"{', '.join(foreign)} in it" if foreign else path.name
        advice = f"Run everything as one user, and `chown -R` {path} to that user."
        return Finding("data directory", "warning", f"{path}: {what} belongs to another user.", advice)
    return Finding("data directory", "ok", f"{path} is writable, for its owner only.")


def _foreign(folder: Path, owner: int) -> Iterator[str]:
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # files of a running service come and go
            if entry.stat(follow_symlinks=False).st_uid != owner and entry.name != HOME_FOLDER:
                yield entry.name


def _space(path: Path) -> Finding:
    free = shutil.disk_usage(path).free
    message, advice = f"{_size(free)} free.", "Free some space, or move the data directory to a larger disk."
    if free < NO_SPACE_BYTES:
        return Finding("disk", "failure", message, advice)
    return Finding("disk", "warning", message, advice) if free < LOW_SPACE_BYTES else Finding("disk", "ok", message)


def _service(data_dir: Path, running: lock.Holder | None) -> Iterator[Finding]:
    if running is None:
        yield Finding("service", "note", f"No service runs on {data_dir}.")
    elif running.url is None:
        yield Finding("service", "note", "A service is starting, or a command uses the database.")
    else:
        yield _check_health(running.url, running.certificate, running.pid)


def _check_health(url: str, certificate: str | None, pid: int | None) -> Finding:
    where = f"{url}, pid {pid}"
    try:
        _, health = probe(url, "/healthz", certificate)
        status, ready = probe(url, "/readyz", certificate)
    except ServiceProblem as error:
        advice = f"Check its log, and restart it if it does not recover (pid {pid})."
        return Finding("service", "failure", f"The service runs ({where}), but {error}", advice)
    if status != 200:
        message = json.dumps(ready, ensure_ascii=False)
        return Finding(
            "service", "warning", f"The service runs ({where}), but is not ready: {message}.", "Check its log."
        )
    if health.get("version") != __version__:
        message = f"The service runs ({where}) as version {health.get('version')}; this command is {__version__}."
        return Finding("service", "warning", message, "Restart the service, so that both versions are the same.")
    return Finding("service", "ok", f"The service runs and is ready ({where}).")


def _database(settings: Settings, data_dir: Path) -> Iterator[Finding]:
    advice = "Stop the service and restore a backup with `toolcrib db restore FILE`."
    try:
        path = Path(str(db.database_url(data_dir, settings.database_url).database)).resolve()
        if not path.exists():
            yield Finding("database", "note", f"{path} does not exist yet; it is created at the first start.")
            return
        report = integrity.examine(path)
    except (StoreError, OSError) as error:
        yield Finding("database", "failure", str(error), advice)
        return
    if report.faults:
        yield Finding("database", "failure", f"{path} is damaged: {'; '.join(report.faults)}.", advice)
    elif data_dir.resolve() not in path.parents and path.stat().st_mode & 0o077:
        yield Finding("database", "warning", f"{path} can be read by other users.", f"Run `chmod 600 {path}`.")
    else:
        yield Finding("database", "ok", f"{path} is intact, {_size(report.bytes)}.")
    yield _schema(report)


def _schema(report: integrity.IntegrityReport) -> Finding:
    newest = migrate.revisions()[-1]
    if report.is_newer:
        message = f"The database has schema {report.revision}; this Toolcrib knows up to {newest}."
        return Finding("schema", "failure", message, "Use the Toolcrib that wrote it, or a newer one.")
    if report.is_older:
        message = f"The database has schema {report.revision or 'none'}; it is upgraded to {newest} at the next start."
        return Finding("schema", "note", message, "Make a backup first with `toolcrib db backup FILE`.")
    return Finding("schema", "ok", f"The database has the newest schema, {newest}.")


def _port(settings: Settings, running: lock.Holder | None) -> Finding:
    where = f"{settings.host}:{settings.port}"
    if settings.port == 0:
        return Finding("port", "ok", "A free port is chosen at the start.")
    error = listen_error(settings.host, settings.port)
    if error is None:
        return Finding("port", "ok", f"{where} is free.")
    if not is_in_use(error):
        message = f"The service cannot listen on {where}: {error.strerror}."
        return Finding("port", "failure", message, "Choose another --host or --port.")
    if running and running.url and running.url.endswith(f":{settings.port}"):
        return Finding("port", "ok", f"{where} is used by the running service.")
    return Finding(
        "port", "failure", f"{where} is used by another program.", "Stop that program, or choose another --port."
    )


def _admin_key(settings: Settings, data_dir: Path) -> Finding:
    if settings.api_key:
        return Finding("admin key", "ok", "It is set in the configuration (TOOLCRIB_API_KEY or api_key).")
    return _private_file("admin key", data_dir / admin_key.FILE_NAME, "it is created at the first start")


def _private_file(name: str, path: Path, if_missing: str) -> Finding:
    """Check that only the owner can read a file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Finding(name, "note", f"{path} does not exist; {if_missing}.")
    except OSError as error:
        return Finding(name, "failure", f"{path} cannot be accessed: {error.strerror}.", "Run as its owner.")
    if mode & 0o077:
        message = f"{path} can be accessed by other users (mode {stat.S_IMODE(mode):o})."
        return Finding(
            name, "warning", message, f"Run `chmod 600 {path}`, and replace it if another user may have read it."
        )
    if not os.access(path, os.R_OK):
        return Finding(name, "failure", f"{path} cannot be read by uid {os.geteuid()}.", "Run as its owner.")
    return Finding(name, "ok", f"{path} is accessible for its owner only.")


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
            advice = "Set tls_cert and tls_key, or use a reverse proxy with HTTPS."
            yield Finding(
                "tls", "note", f"HTTPS is off, and {settings.host} may be reachable from other machines.", advice
            )
        return
    yield _expiry(settings.tls_cert)
    yield _private_file("tls key", settings.tls_key, "")


def _expiry(cert: Path) -> Finding:
    until = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    days, message = (until - datetime.now(UTC)).days, f"{cert} is valid until {until:%Y-%m-%d}"
    if days < 0:
        return Finding("tls", "failure", f"{message}, which is in the past.", "Renew it, and restart the service.")
    if days < EXPIRES_SOON_DAYS:
        return Finding("tls", "warning", f"{message}, in {days} days.", "Renew it, and restart the service.")
    return Finding("tls", "ok", f"{message} and belongs to its key.")


def _proxies(settings: Settings) -> Iterator[Finding]:
    if settings.forwarded_allow_ips == ["*"]:
        message = "X-Forwarded headers are trusted from all addresses, so that any client can forge its address."
        yield Finding("proxies", "warning", message, "List the addresses of the proxies in forwarded_allow_ips.")


def _mcp_servers(settings: Settings, data_dir: Path) -> Iterator[Finding]:
    stored: set[str] = set()
    with suppress(StoreError, OSError):  # reported by the check of the database
        path = Path(str(db.database_url(data_dir, settings.database_url).database))
        for owner in (GLOBAL_PRINCIPAL, ADMIN_PRINCIPAL) if path.exists() else ():
            stored |= integrity.secret_names(path, owner)
    for finding in mcp_config.examine(settings, {*settings.secrets, *stored}):
        yield Finding(*finding)


def _machine() -> Iterator[Finding]:
    """Python, the kernel and programs."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < MIN_PYTHON:
        yield Finding("python", "failure", f"{version} is too old.", "Use Python 3.11 or newer.")
    else:
        yield Finding("python", "ok", version)
    for name, feature, advice in (
        ("openat2", features.openat2(), "Use Linux 5.6 or newer, and a container runtime that allows openat2."),
        ("landlock", features.landlock(), "Use Linux 5.13 or newer with `landlock` in the kernel's lsm= list."),
        ("seccomp", features.seccomp(), "Use a kernel with CONFIG_SECCOMP_FILTER."),
    ):
        yield Finding(name, *(("ok", feature.detail) if feature.available else ("warning", feature.detail, advice)))
    spaces = features.user_namespaces()
    advice = "Allow them by sysctl or in the container's profile, to use bubblewrap instead of Landlock."
    yield Finding("user namespaces", *(("ok", spaces.detail) if spaces.available else ("note", spaces.detail, advice)))
    for name, (use, package) in PROGRAMS.items():
        yield _program(name, use, package)


def _sandbox(settings: Settings, data_dir: Path) -> Finding:
    """Run the sandbox self-test, as the service does at start."""
    planner = SpawnPlanner(SandboxSettings.of(settings.sandbox.model_dump()), os.path.realpath(data_dir))
    report = asyncio.run(_run_self_test(planner))
    if report.backend is None:
        return Finding(
            "sandbox", "warning", f"No processes can be started for tools. {report.reason}", NO_SANDBOX_ADVICE
        )
    if report.backend is Backend.NONE:
        message = "Processes of tools run without a sandbox, as configured."
        return Finding("sandbox", "warning", message, "Set sandbox.backend to auto.")
    if report.backend is Backend.LANDLOCK and _contains_data_dir(settings, planner.data_dir):
        message = "The workspace contains the data directory. Landlock cannot hide it, so no process is started there."
        return Finding("sandbox", "warning", message, "Choose a data directory outside the workspace with --data-dir.")
    return Finding("sandbox", "ok", " ".join((report.reason, *report.unprotected)))


async def _run_self_test(planner: SpawnPlanner) -> SandboxReport:
    spawner = Spawner()
    try:
        return await SelfTest(spawner, planner, SystemClock()).renew()
    finally:
        await asyncio.to_thread(spawner.close)


def _contains_data_dir(settings: Settings, data_dir: str) -> bool:
    is_inside_workspace = settings.workspace is not None and is_inside(data_dir, os.path.realpath(settings.workspace))
    return is_inside_workspace and settings.sandbox.profile is Profile.WORKSPACE_WRITE


def _program(name: str, use: str, package: str) -> Finding:
    program = features.find_program(next(iter(ripgrep.programs()), name) if name == "rg" else name)
    if program is None:
        advice = f"Install it with `apt-get install {package}` on Debian."
        return Finding(name, "note", f"Not installed; it is needed for {use}.", advice)
    return Finding(name, "ok", f"{program.version} ({program.path})")


def _size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count //= 1024
    return f"{count} GiB"
