"""The doctor: sees what is wrong, says what to do, and touches nothing."""

import json
import os
import re
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from app import __version__
from app.cli import doctor
from app.cli.doctor import Finding
from app.config import Settings
from app.core.sandbox import Backend, Network, SandboxReport
from app.core.sessions import Profile
from app.sandbox.isolation.planner import SpawnPlanner
from app.store import lock, migrate
from tests.support import certificates
from tests.support.cli import serving, toolcrib, url_of

NEWEST = migrate.revisions()[-1]
REPORT = SandboxReport(
    backend=Backend.LANDLOCK,
    requested="auto",
    reason="The backend landlock passed its self-test.",
    profile=Profile.WORKSPACE_WRITE,
    network=Network.NONE,
    unprotected=("Something is not kept out.",),
)


@pytest.fixture(autouse=True)
def reports(monkeypatch: pytest.MonkeyPatch) -> list[SandboxReport]:
    """What an inspection of the walls would come to; a real one is made by the command and in a test of its own."""
    reports = [REPORT]

    async def inspected(planner: SpawnPlanner) -> SandboxReport:
        return reports[-1]

    monkeypatch.setattr(doctor, "_run_self_test", inspected)
    return reports


def found(name: str, data_dir: Path, **settings: Any) -> Finding:
    """The one finding of a name; all of them are checked for their form."""
    findings = doctor.examine(Settings(data_dir=data_dir, **({"port": 0} | settings)))
    for finding in findings:
        assert finding.advice or finding.level not in ("warning", "failure"), finding
        assert finding.advice is None or (finding.advice[0].isupper() and finding.advice.endswith("."))
        assert "\n" not in finding.message + (finding.advice or "")
    [finding] = [finding for finding in findings if finding.name == name]
    return finding


def told(finding: Finding) -> tuple[str, str]:
    return finding.level, finding.message


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Everything below a folder, with what would change if it were written."""
    about = ((path, path.lstat()) for path in folder.rglob("*"))
    return {str(path): (stat.st_mtime_ns, stat.st_size, stat.st_ino) for path, stat in about}


@contextmanager
def answering(version: str, ready: int, body: dict[str, Any]) -> Iterator[str]:
    """Something on a port that answers as a service would."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_health = self.path == "/healthz"
            answer = json.dumps({"status": "ok", "version": version} if is_health else body).encode()
            self.send_response(200 if is_health else ready)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def held(data_dir: Path, **facts: Any) -> Iterator[None]:
    taken = lock.DataDirLock(data_dir)
    if facts:
        taken.write(**facts)
    yield
    taken.release()


def test_where_nothing_was_started_yet_all_is_well_and_nothing_is_made(tmp_path: Path) -> None:
    looked = toolcrib(tmp_path, "doctor", "--json")
    shown = toolcrib(tmp_path, "doctor", "--data-dir", "elsewhere")

    assert (looked.returncode, shown.returncode) == (0, 0)
    answer = json.loads(looked.stdout)
    assert answer["ok"] is True
    names = [finding["name"] for finding in answer["findings"]]
    assert names[:4] == ["configuration", "data directory", "disk", "service"]
    assert {"database", "port", "admin key", "secrets key", "tls", "python"} <= set(names)
    assert {"openat2", "landlock", "seccomp", "user namespaces", "rg", "bwrap", "node", "git", "sandbox"} <= set(names)
    assert all(set(finding) == {"name", "level", "message", "advice"} for finding in answer["findings"])
    assert "elsewhere does not exist yet; it is created at the first start." in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_running_service_is_asked_how_it_is_also_over_https(tmp_path: Path) -> None:
    made = certificates.make(tmp_path, "crib.example")
    with serving(tmp_path, *made.flags) as announced:
        port = url_of(announced).rpartition(":")[2]
        looked = toolcrib(tmp_path, "doctor", "--json", TOOLCRIB_PORT=port)

    findings = {finding["name"]: finding for finding in json.loads(looked.stdout)["findings"]}
    assert looked.returncode == 0
    assert findings["service"]["level"] == "ok"
    assert findings["service"]["message"].startswith(f"The service runs and is ready ({url_of(announced)}, pid ")
    assert findings["port"]["message"] == f"127.0.0.1:{port} is used by the running service."
    assert findings["database"]["level"] == findings["schema"]["level"] == findings["admin key"]["level"] == "ok"
    assert findings["data directory"]["level"] == "ok"


def test_a_stopped_service_is_left_exactly_as_it_is(data_dir: Path) -> None:
    with closing(sqlite3.connect(data_dir / "toolcrib.db")) as db:
        db.execute("PRAGMA journal_mode=WAL")
    before = snapshot(data_dir)

    assert found("database", data_dir).level == "ok"
    assert found("service", data_dir).level == "note"

    assert snapshot(data_dir) == before


def test_settings_that_cannot_be_read_are_a_finding_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("port = = 1")
    (tmp_path / "misspelt.toml").write_text("prot = 1")

    for name, sentence in (
        ("broken.toml", "The configuration cannot be read: broken.toml: Invalid value"),
        ("misspelt.toml", "Invalid settings: prot: Extra inputs are not permitted."),
        ("missing.toml", "There is no configuration file missing.toml."),
    ):
        looked = toolcrib(tmp_path, "doctor", "--json", "--config", name)
        answer = json.loads(looked.stdout)
        assert (looked.returncode, looked.stderr, answer["ok"]) == (1, "", False)
        assert answer["findings"][0]["level"] == "failure"
        assert answer["findings"][0]["message"].startswith(sentence)
        assert answer["findings"][-1]["name"] == "git"  # the machine is looked at all the same


def test_the_data_directory_must_be_a_folder_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)

    assert told(found("data directory", tmp_path / "file")) == ("failure", f"{tmp_path}/file is not a directory.")
    assert found("data directory", tmp_path / "file" / "below").level == "failure"
    open_to_all = found("data directory", tmp_path / "open")
    assert told(open_to_all) == ("warning", f"{tmp_path}/open can be accessed by other users (mode 755).")
    assert open_to_all.advice == f"Run `chmod 700 {tmp_path}/open`."
    assert not (tmp_path / "file" / "below").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_files_of_another_user_are_told(data_dir: Path) -> None:
    os.chown(data_dir / "toolcrib.db", 65534, 65534)

    assert told(found("data directory", data_dir)) == (
        "warning",
        f"{data_dir}: toolcrib.db in it belongs to another user.",
    )


@pytest.mark.parametrize(("limit", "level"), [("NO_SPACE_BYTES", "failure"), ("LOW_SPACE_BYTES", "warning")])
def test_a_disk_that_is_nearly_full_is_told(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, limit: str, level: str
) -> None:
    assert found("disk", data_dir).level == "ok"
    monkeypatch.setattr(doctor, limit, 2**62)

    assert found("disk", data_dir).level == level


def test_a_service_that_does_not_answer_or_is_not_ready_is_told(data_dir: Path) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{door.getsockname()[1]}"
        with held(data_dir, url=nobody):
            silent = found("service", data_dir)
    with held(data_dir):
        starting = found("service", data_dir)
    with answering(__version__, 503, {"status": "stopping"}) as url, held(data_dir, url=url):
        stopping = found("service", data_dir)
    with answering("0.0.1", 200, {"status": "ok"}) as url, held(data_dir, url=url):
        older = found("service", data_dir)
    with answering(__version__, 200, {"status": "ok"}) as url, held(data_dir, url=url):
        good = found("service", data_dir)

    assert silent.level == "failure"
    assert silent.message.startswith(
        f"The service runs ({nobody}, pid {os.getpid()}), but {nobody}/healthz does not respond"
    )
    assert starting.level == "note"
    assert stopping.level == "warning"
    assert 'not ready: {"status": "stopping"}' in stopping.message
    assert older.level == "warning"
    assert f"as version 0.0.1; this command is {__version__}." in older.message
    assert told(good) == ("ok", f"The service runs and is ready ({url}, pid {os.getpid()}).")


def test_a_database_that_is_damaged_is_told_with_what_to_do(data_dir: Path) -> None:
    path = data_dir / "toolcrib.db"
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    path.write_bytes(data)

    damaged = found("database", data_dir)
    path.write_text("a letter to a friend")
    letter = found("database", data_dir)
    strange = found("database", data_dir, database_url="postgresql://somewhere/else")

    assert damaged.level == letter.level == strange.level == "failure"
    assert told(letter) == ("failure", f"The database {path} cannot be read: file is not a database.")
    assert letter.advice == "Stop the service and restore a backup with `toolcrib db restore FILE`."
    assert "only a SQLite file" in strange.message


def test_a_database_elsewhere_that_others_can_read_is_told(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "toolcrib.db").rename(tmp_path / "records.db")
    (tmp_path / "records.db").chmod(0o644)
    url = f"sqlite:///{tmp_path}/records.db"

    assert found("database", data_dir, database_url=url).level == "warning"
    (tmp_path / "records.db").chmod(0o600)
    assert found("database", data_dir, database_url=url).level == "ok"


@pytest.mark.parametrize(
    ("revision", "level", "sentence"),
    [
        (NEWEST, "ok", f"The database has the newest schema, {NEWEST}."),
        ("0001", "note", f"The database has schema 0001; it is upgraded to {NEWEST} at the next start."),
        ("9999", "failure", f"The database has schema 9999; this Toolcrib knows up to {NEWEST}."),
    ],
)
def test_the_schema_is_compared_with_what_this_code_knows(
    data_dir: Path, revision: str, level: str, sentence: str
) -> None:
    with closing(sqlite3.connect(data_dir / "toolcrib.db")) as db, db:
        db.execute("UPDATE alembic_version SET version_num = ?", (revision,))

    assert told(found("schema", data_dir)) == (level, sentence)


def test_a_port_is_free_or_ours_or_somebody_elses(data_dir: Path) -> None:
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
        free = found("port", data_dir, port=port)
        door.listen()
        taken = found("port", data_dir, port=port)
        with held(data_dir, url=f"http://127.0.0.1:{port}"):
            ours = doctor._port(Settings(data_dir=data_dir, port=port), lock.find_holder(data_dir))
    strange = found("port", data_dir, host="192.0.2.1", port=8700)

    assert told(free) == ("ok", f"127.0.0.1:{port} is free.")
    assert told(taken) == ("failure", f"127.0.0.1:{port} is used by another program.")
    assert told(ours) == ("ok", f"127.0.0.1:{port} is used by the running service.")
    assert told(strange) == ("failure", "The service cannot listen on 192.0.2.1:8700: Cannot assign requested address.")


@pytest.mark.parametrize(("name", "file"), [("admin key", "admin.key"), ("secrets key", "secrets.key")])
def test_a_key_file_must_be_its_owners_alone(data_dir: Path, name: str, file: str) -> None:
    path = data_dir / file
    missing = found(name, data_dir)
    path.write_text("tk_1")
    path.chmod(0o640)
    open_to_others = found(name, data_dir)
    path.chmod(0o600)

    assert missing.level == "note"
    assert told(open_to_others) == ("warning", f"{path} can be accessed by other users (mode 640).")
    assert told(found(name, data_dir)) == ("ok", f"{path} is accessible for its owner only.")


def test_a_configured_key_needs_no_file_and_is_not_shown(data_dir: Path) -> None:
    findings = doctor.examine(Settings(data_dir=data_dir, port=0, api_key="tk_configured"))

    assert [f.level for f in findings if f.name == "admin key"] == ["ok"]
    assert "tk_configured" not in doctor.to_json(findings)


def test_certificates_are_looked_at(data_dir: Path, tmp_path: Path) -> None:
    def tls(cert: Path, key: Path | None) -> Finding:
        return found("tls", data_dir, tls_cert=cert, tls_key=key)

    good, soon, past = (certificates.make(tmp_path, f"for{days}", days=days) for days in (90, 3.5, -2))

    assert found("tls", data_dir).level == "note"
    assert found("tls", data_dir, host="0.0.0.0").advice is not None
    assert tls(good.cert, good.key).level == "ok"
    assert tls(soon.cert, soon.key).level == "warning"
    assert tls(soon.cert, soon.key).message.endswith(", in 3 days.")
    assert tls(past.cert, past.key).level == "failure"
    assert tls(good.cert, soon.key).level == "failure"
    assert tls(good.cert, None).message == "tls_cert is set and tls_key is not; HTTPS needs both."
    good.key.chmod(0o644)
    assert found("tls key", data_dir, tls_cert=good.cert, tls_key=good.key).level == "warning"


def test_believing_everybodys_forwarded_headers_is_a_warning(data_dir: Path) -> None:
    assert found("proxies", data_dir, forwarded_allow_ips=["*"]).level == "warning"
    named = doctor.examine(Settings(data_dir=data_dir, port=0, forwarded_allow_ips=["10.0.0.0/8"]))
    assert [finding for finding in named if finding.name == "proxies"] == []


def test_a_program_that_is_missing_is_told_with_its_use_and_its_package(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    missing = found("git", data_dir)

    assert told(missing) == ("note", "Not installed; it is needed for tools that work with repositories.")
    assert missing.advice == "Install it with `apt-get install git` on Debian."
    put_program(tmp_path / "git", "git version 2.39.2")
    assert told(found("git", data_dir)) == ("ok", f"git version 2.39.2 ({tmp_path}/git)")


def test_the_ripgrep_that_is_used_is_told_the_one_on_the_path_or_the_one_that_came_with_us(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    level, message = told(found("rg", data_dir))

    assert level == "ok"
    assert re.fullmatch(r"ripgrep \d+\..* \(/.+/rg\)", message)
    put_program(tmp_path / "rg", "ripgrep 14.1.0")
    assert told(found("rg", data_dir)) == ("ok", f"ripgrep 14.1.0 ({tmp_path}/rg)")


def test_the_walls_are_tried_and_what_they_do_not_keep_out_is_told(
    data_dir: Path, reports: list[SandboxReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(found("sandbox", data_dir)) == ("ok", f"{REPORT.reason} Something is not kept out.")
    reports.append(replace(REPORT, backend=None, reason="The backend landlock fails its self-test (tcp): no."))
    assert told(found("sandbox", data_dir)) == (
        "warning",
        f"No processes can be started for tools. {reports[-1].reason}",
    )
    reports.append(replace(REPORT, backend=Backend.NONE))
    assert found("sandbox", data_dir).level == "warning"
    monkeypatch.undo()
    [real] = [one for one in doctor.examine(Settings(data_dir=data_dir, port=0)) if one.name == "sandbox"]
    assert (real.level, "passed its self-test" in real.message) == ("ok", True)


def test_a_workspace_around_the_data_directory_is_told_where_it_cannot_be_hidden(
    data_dir: Path, reports: list[SandboxReport]
) -> None:
    surrounding = {"workspace": data_dir.parent}

    assert found("sandbox", data_dir, **surrounding).level == "warning"
    assert found("sandbox", data_dir, **surrounding, sandbox={"profile": "read-only"}).level == "ok"
    reports.append(replace(REPORT, backend=Backend.BWRAP))
    assert found("sandbox", data_dir, **surrounding).level == "ok"


def put_program(path: Path, version: str) -> None:
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)


def test_a_failure_decides_the_exit_code_and_the_table_shows_it(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "toolcrib.db").write_text("a letter to a friend")

    looked = toolcrib(tmp_path, "doctor", "--data-dir", str(data_dir))

    assert looked.returncode == 1
    assert "file is not a database." in looked.stdout
    assert "→ Stop the service and restore a backup" in looked.stdout
    assert "\x1b[" not in looked.stdout


def test_mcp_servers_are_told_of_by_name_with_the_secrets_they_lack(data_dir: Path) -> None:
    with closing(sqlite3.connect(data_dir / "toolcrib.db", isolation_level=None)) as db:
        for principal, name in (("*", "KEPT"), ("admin", "OWN"), ("ann", "ANNS")):
            db.execute("INSERT INTO secrets VALUES (?, ?, x'00', '[]', 0, 0)", (principal, name))

    def server(secret: str) -> dict[str, Any]:
        return {"url": "https://docs.invalid", "headers": {"X": {"secret": secret}}}

    settings: dict[str, Any] = {
        "mcp": {
            "servers": {
                "docs": server("KEPT"),
                "mail": server("CONFIGURED"),
                "own": server("OWN"),
                "lost": server("ANNS"),
            }
        },
        "secrets": {"CONFIGURED": {"env": "HOME"}},
    }

    lost = found("mcp server lost", data_dir, **settings)

    assert told(lost) == ("warning", "There is no shared secret ANNS, and none of the admin.")
    assert lost.advice == "Store it with `toolcrib secret set ANNS`."
    assert told(found("mcp servers", data_dir, **settings)) == ("ok", "4 can be read: docs, lost, mail, own.")
    names = {finding.name for finding in doctor.examine(Settings(data_dir=data_dir, port=0, **settings))}
    assert not names & {"mcp server docs", "mcp server mail", "mcp server own"}
