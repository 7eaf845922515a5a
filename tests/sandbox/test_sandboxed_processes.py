"""Walled processes: real ones, behind the real walls of this machine."""

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import FileFailed, OutsideWorkspace, SandboxUnavailable
from app.core.network_policy import DomainSecret, NetworkPolicy
from app.core.sandbox import Backend, Command, EgressGrant, Isolation, Network, SandboxReport
from app.core.sessions import Profile, Session
from app.sandbox import syscalls
from app.sandbox.files.roots import Root, RootSet
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.process.spawner import Mount, Spawner, SpawnRequest
from tests.sandbox.sandboxed import BACKENDS, Enclosed, enclosed

SESSION = Session("ann", "one")
LISTED = NetworkPolicy("allowlist", ("api.test",), (DomainSecret("api.test", "TOKEN"),))
LISTING = replace(SESSION, network_policy=LISTED)
PYTHON = next(path for path in ("/usr/bin/python3", os.path.realpath(sys.executable)) if os.path.exists(path))
ON_EACH = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    spawner = Spawner()
    yield spawner
    spawner.close()


class Field:
    """A workspace, what lies around it, and walls on it."""

    def __init__(self, spawner: Spawner, base: Path) -> None:
        self._spawner = spawner
        self._opened = list[Enclosed]()
        self.data, self.root, self.extra = base / "data", base / "workspace", base / "extra"
        for folder in (self.data, self.root, self.extra):
            folder.mkdir()
        (self.data / "records").write_text("records")
        (self.extra / "book").write_text("book")
        self.give(self.root, self.extra)

    def give(self, *paths: Path) -> None:
        """To whom processes become."""
        owner = enclosed(self._spawner, self.data).planner.identity
        for path in paths:
            os.chown(path, *(owner or (-1, -1)))

    def isolation(self, backend: Backend, **settings: Any) -> Enclosed:
        """Walls that were inspected and found to hold; what that takes is not in question here."""
        there = self.uninspected(backend, **settings)
        there.inspector.report = SandboxReport(
            backend=backend, requested="", reason="", profile=Profile.WORKSPACE_WRITE, network=Network.NONE
        )
        return there

    def uninspected(self, backend: Backend, **settings: Any) -> Enclosed:
        self._opened.append(enclosed(self._spawner, self.data, **{"backend": backend.value} | settings))
        return self._opened[-1]

    def close(self) -> None:
        for there in self._opened:
            there.processes.close()

    def workspace(self, *, is_extra_writable: bool = True) -> LocalWorkspace:
        extra = Root(self.extra, "write" if is_extra_writable else "read", is_extra=True)
        return LocalWorkspace(self.root, around=RootSet((extra,), Root(self.data)))


@pytest.fixture
def field(spawner: Spawner, tmp_path: Path) -> Iterator[Field]:
    field = Field(spawner, tmp_path)
    yield field
    field.close()


async def run(
    there: Enclosed, field: Field, *argv: str, session: Session = SESSION, **command: Any
) -> tuple[int, str, Isolation]:
    """All that a process says, and how it ended."""
    child = await there.processes.start(
        Command(argv=argv, **command), session, field.workspace(), lambda decision: None
    )
    try:
        pieces = [piece.data async for piece in _pieces(child)]
        return (await child.wait()).code, b"".join(pieces).decode(), child.isolation
    finally:
        await child.close()


async def _pieces(child: Any) -> AsyncIterator[Any]:
    while (piece := await child.read()) is not None:
        yield piece


async def sh(there: Enclosed, field: Field, script: str, **how: Any) -> str:
    return (await run(there, field, "sh", "-c", script, **how))[1].strip()


@ON_EACH
async def test_a_process_works_in_its_workspace_and_nowhere_else(backend: Backend, field: Field) -> None:
    there = field.isolation(backend)
    (field.root / "src").mkdir()
    field.give(field.root / "src")
    script = f"pwd; echo $HOME; echo mine > made; cat made; cat {field.data}/records; ls /root /home; echo > /etc/x"

    code, said, walls = await run(there, field, "sh", "-c", script, folder="src")

    lines = said.splitlines()
    assert lines[:3] == [f"{field.root}/src", str(field.root), "mine"]
    assert (field.root / "src" / "made").read_text() == "mine\n"
    assert not any(line == "records" for line in lines)
    assert "x" not in os.listdir("/etc")
    assert (code != 0, walls) == (True, Isolation(backend, Profile.WORKSPACE_WRITE, Network.NONE))
    assert there.processes.isolation(SESSION) == walls


@ON_EACH
async def test_what_it_makes_belongs_to_the_tool_user(backend: Backend, field: Field) -> None:
    there = field.isolation(backend)

    await sh(there, field, "touch made")

    owner = there.planner.identity or (os.geteuid(), os.getegid())
    about = (field.root / "made").stat()
    assert (about.st_uid, about.st_gid) == owner


@ON_EACH
@pytest.mark.parametrize(
    ("folder", "code"), [("nowhere", "ENOENT"), ("file", "ENOTDIR"), ("../data", "OutsideWorkspace")]
)
async def test_it_begins_in_a_folder_of_the_workspace(backend: Backend, folder: str, code: str, field: Field) -> None:
    there = field.isolation(backend)
    (field.root / "file").touch()

    with pytest.raises((FileFailed, OutsideWorkspace)) as failure:
        await run(there, field, "pwd", folder=folder)

    assert failure.value.code == code


@ON_EACH
async def test_a_program_that_is_not_there_is_said_to_be_missing(backend: Backend, field: Field) -> None:
    (field.root / "text").write_text("no program")
    field.give(field.root / "text")

    with pytest.raises(FileFailed, match="no-such-program cannot be started: there is no such program") as missing:
        await run(field.isolation(backend), field, "no-such-program")
    with pytest.raises(FileFailed) as forbidden:
        await run(field.isolation(backend), field, "./text")

    assert (missing.value.code, forbidden.value.code) == ("ENOENT", "EACCES")


@ON_EACH
@pytest.mark.parametrize("access", ["read", "write"])
async def test_extra_roots_are_there_with_the_access_they_have(backend: Backend, access: str, field: Field) -> None:
    there = field.isolation(backend, extras=(Mount(path=str(field.extra), is_writable=access == "write"),))

    said = await sh(there, field, "pwd; cat book; echo new > new || echo refused", folder=str(field.extra))

    assert said.splitlines()[:2] == [str(field.extra), "book"] or said.startswith(f"{field.extra}\nbook")
    assert (field.extra / "new").exists() is (access == "write")


@ON_EACH
async def test_sessions_and_commands_can_narrow_where_it_writes(backend: Backend, field: Field) -> None:
    there = field.isolation(backend)
    reading = replace(SESSION, profile=Profile.READ_ONLY)

    _, _, of_session = await run(there, field, "touch", "one", session=reading)
    _, _, of_command = await run(there, field, "touch", "two", profile=Profile.READ_ONLY)
    said = await sh(there, field, 'echo kept > "$TMPDIR/x" && cat "$TMPDIR/x"', session=reading)

    assert (of_session.profile, of_command.profile) == (Profile.READ_ONLY, Profile.READ_ONLY)
    assert sorted(path.name for path in field.root.iterdir()) == []
    assert said == "kept"


@ON_EACH
async def test_an_operators_read_only_cannot_be_widened(backend: Backend, field: Field) -> None:
    there = field.isolation(backend, profile=Profile.READ_ONLY)
    wide = replace(SESSION, profile=Profile.WORKSPACE_WRITE)

    _, _, walls = await run(there, field, "touch", "x", session=wide, profile=Profile.WORKSPACE_WRITE)

    assert walls.profile is Profile.READ_ONLY
    assert not (field.root / "x").exists()


@ON_EACH
async def test_each_has_a_temporary_folder_of_its_own_that_goes_with_it(backend: Backend, field: Field) -> None:
    there = field.isolation(backend)
    name = f"toolcrib-test-{os.getpid()}"

    first = await sh(there, field, f'echo "$TMPDIR"; echo x > "$TMPDIR/{name}"; mkdir -m 0 "$TMPDIR/closed"')
    second = await sh(there, field, f'echo "$TMPDIR"; ls "$TMPDIR"; echo x > /tmp/{name}')

    assert second.splitlines()[0] == "/tmp" if backend is Backend.BWRAP else first != second
    assert name not in second.replace(f"/tmp/{name}", "")
    assert name not in os.listdir("/tmp")
    assert backend is Backend.BWRAP or not _is_there(first.splitlines()[0])
    there.processes.close()


def _is_there(path: str) -> bool:
    return os.path.exists(path)


async def test_all_temporary_folders_go_with_the_service(field: Field) -> None:
    there = field.isolation(Backend.LANDLOCK)
    base = Path((await sh(there, field, 'echo "$TMPDIR"')).splitlines()[0]).parent

    assert base.name.startswith("toolcrib-")
    assert list(base.iterdir()) == []
    there.processes.close()
    assert not base.exists()


async def test_a_start_that_fails_leaves_no_temporary_folder(field: Field) -> None:
    there = field.isolation(Backend.LANDLOCK)
    base = Path(await sh(there, field, 'echo "$TMPDIR"')).parent

    with pytest.raises(FileFailed):
        await run(there, field, "no-such-program")

    assert list(base.iterdir()) == []
    there.processes.close()


@pytest.fixture
def around_records(field: Field) -> Field:
    """A workspace that surrounds the service's records, not only by one folder."""
    inner = field.root / "var" / "toolcrib"
    inner.parent.mkdir()
    field.data.rename(inner)
    field.data = inner
    field.give(inner.parent)
    return field


async def test_bwrap_hides_records_in_a_workspace_and_nobody_moves_them(around_records: Field) -> None:
    there = around_records.isolation(Backend.BWRAP)

    said = await sh(
        there, around_records, "cat var/toolcrib/records; mv var/toolcrib away; mv var away; ls var/toolcrib"
    )

    assert "records" not in said.splitlines()
    assert (around_records.data / "records").read_text() == "records"


async def test_landlock_cannot_hide_records_in_a_workspace_and_says_so(around_records: Field) -> None:
    there = around_records.isolation(Backend.LANDLOCK)

    with pytest.raises(SandboxUnavailable, match="data directory of the service is inside this workspace"):
        await run(there, around_records, "true")


async def test_landlock_leaves_records_out_of_what_can_only_be_read(around_records: Field) -> None:
    there = around_records.isolation(Backend.LANDLOCK, profile=Profile.READ_ONLY)
    (around_records.root / "seen").write_text("seen")
    (around_records.root / "var" / "seen").write_text("seen too")

    said = await sh(there, around_records, "cat seen var/seen; cat var/toolcrib/records")

    assert said.startswith("seenseen too")
    assert "records" not in said.split()


async def test_bwrap_protects_what_git_runs(field: Field) -> None:
    for path in (field.root / ".git", field.root / ".git" / "hooks"):
        path.mkdir()
        field.give(path)
    (field.root / ".git" / "config").write_text("[core]\n")
    field.give(field.root / ".git" / "config")
    script = "echo x > .git/hooks/pre-commit; echo x >> .git/config; mv .git old; mv .git/config .git/c; touch .git/ok"

    await sh(field.isolation(Backend.BWRAP), field, script)

    assert (field.root / ".git" / "config").read_text() == "[core]\n"
    assert sorted(path.name for path in (field.root / ".git").iterdir()) == ["config", "hooks", "ok"]
    assert list((field.root / ".git" / "hooks").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's processes become somebody else")
async def test_a_workspace_that_the_tool_user_cannot_reach_is_said_to_be(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = field.isolation(Backend.LANDLOCK)
    field.root.parent.chmod(0o700)
    monkeypatch.setattr(syscalls, "has_capabilities", lambda *capabilities: False)

    with pytest.raises(SandboxUnavailable, match=r"cannot enter a folder.*chmod o\+x"):
        await run(there, field, "true")


@ON_EACH
async def test_escalated_there_are_no_walls_and_the_record_says_so(
    backend: Backend, field: Field, elsewhere: Path
) -> None:
    there = field.isolation(backend)
    (elsewhere / "book").write_text("book")
    script = f"id -u; cat {elsewhere}/book"

    walled, _, _ = await run(there, field, "sh", "-c", script)
    code, said, walls = await run(there, field, "sh", "-c", script, is_escalated=True)

    assert (walled, code) == (1, 0)
    assert said == f"{(there.planner.identity or (os.geteuid(),))[0]}\nbook"
    assert walls == Isolation(Backend.NONE, Profile.WORKSPACE_WRITE, Network.FULL, is_escalated=True)
    assert there.processes.isolation(SESSION, is_escalated=True) == walls


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that everybody may read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


async def test_no_walls_at_all_have_to_be_said_twice(field: Field) -> None:
    once = field.uninspected(Backend.NONE)
    twice = field.uninspected(Backend.NONE, i_accept_unsandboxed=True)

    with pytest.raises(SandboxUnavailable, match="counts only together with `i_accept_unsandboxed`"):
        await run(once, field, "touch", "made")
    assert not (field.root / "made").exists()
    code, _, walls = await run(twice, field, "touch", "made")

    assert (code, walls) == (0, Isolation(Backend.NONE, Profile.WORKSPACE_WRITE, Network.FULL))
    assert (field.root / "made").exists()


@pytest.mark.parametrize(
    "session",
    [replace(SESSION, profile=Profile.READ_ONLY), LISTING, replace(SESSION, network_policy=NetworkPolicy("disabled"))],
    ids=["read-only", "allowlist", "disabled"],
)
async def test_where_nothing_can_be_narrowed_a_narrow_session_is_refused(session: Session, field: Field) -> None:
    there = field.isolation(Backend.NONE, i_accept_unsandboxed=True)

    with pytest.raises(SandboxUnavailable, match="without a sandbox and cannot enforce it"):
        await run(there, field, "true", session=session)
    assert there.processes.isolation(session) is None


class Porter:
    """An egress that greets whoever comes, and tells for whom it was there."""

    def __init__(self) -> None:
        self.leaves: list[EgressGrant] = []
        self.is_open = False

    @asynccontextmanager
    async def serve(self, listener: int, leave: EgressGrant) -> AsyncIterator[None]:
        self.leaves.append(leave)
        server = await asyncio.start_server(self._greet, sock=socket.socket(fileno=listener))
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False
            server.close()
            await server.wait_closed()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        writer.close()


CONNECT = """
import os, socket, sys
from urllib.parse import urlsplit
proxy = urlsplit(os.environ["HTTPS_PROXY"])
print(socket.create_connection((proxy.hostname, proxy.port), 5).recv(100).decode(), proxy.password)
for port in sys.argv[1:]:
    try:
        socket.create_connection(("127.0.0.1", int(port)), 5)
        print("reached")
    except OSError as error:
        print(error.strerror)
print(os.environ["TOKEN"])
"""


@ON_EACH
async def test_where_hosts_are_listed_the_proxy_can_be_reached_and_nobody_else(backend: Backend, field: Field) -> None:
    porter = Porter()
    there = field.isolation(
        backend,
        network=Network.ALLOWLIST,
        egress_degraded_ok=True,
        egress=porter,
        secret=lambda owner, name: "real",
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        _, said, walls = await run(
            there, field, PYTHON, "-I", "-S", "-c", CONNECT, str(other.getsockname()[1]), session=LISTING
        )
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()

    [leave] = porter.leaves
    greeting, refusal, token = said.splitlines()
    assert greeting == f"welcome {leave.token}"
    assert refusal != "reached"
    assert token == leave.secrets[0].placeholder != "real"
    assert (leave.owner, leave.token is None) == ("ann", backend is Backend.BWRAP)
    assert walls == Isolation(
        backend, Profile.WORKSPACE_WRITE, Network.ALLOWLIST, is_degraded=backend is Backend.LANDLOCK
    )
    assert not porter.is_open


async def test_landlock_does_not_list_hosts_unless_the_operator_accepts_how(field: Field) -> None:
    there = field.isolation(Backend.LANDLOCK, network=Network.ALLOWLIST)

    with pytest.raises(SandboxUnavailable, match=r"cannot distinguish hosts.*sandbox.egress_degraded_ok"):
        await run(there, field, "true", session=LISTING)
    assert there.processes.isolation(LISTING) is None
    assert (await run(there, field, "true"))[2].network is Network.NONE


@ON_EACH
async def test_with_the_whole_network_everybody_can_be_reached_unless_the_session_wants_nobody(
    backend: Backend, field: Field
) -> None:
    there = field.isolation(backend, network=Network.FULL)
    closed = replace(SESSION, network_policy=NetworkPolicy("disabled"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket; socket.create_connection({server.getsockname()!r}, 5)"

        reached, _, wide = await run(there, field, PYTHON, "-I", "-S", "-c", connect)
        refused, _, narrow = await run(there, field, PYTHON, "-I", "-S", "-c", connect, session=closed)

    assert (reached, wide.network) == (0, Network.FULL)
    assert (refused, narrow.network) == (1, Network.NONE)


@ON_EACH
async def test_what_it_may_take_is_limited(backend: Backend, field: Field) -> None:
    there = field.isolation(backend, memory=512 * 1024**2, file_size=1024**2, open_files=64, processes=50)

    said = await sh(there, field, "ulimit -v; ulimit -f; ulimit -n; ulimit -c", memory=256 * 1024**2)
    await sh(there, field, "head -c 3000000 /dev/zero > large")

    assert said.split() == [str(4 * 256 * 1024), "2048", "64", "0"]
    assert (field.root / "large").stat().st_size == 1024**2


async def test_walls_that_fall_later_are_seen_and_so_is_their_return(field: Field) -> None:
    is_broken = False

    def alter(order: SpawnRequest) -> SpawnRequest:
        return replace(order, limits={}) if is_broken else order

    there = field.uninspected(Backend.LANDLOCK, alter=alter)
    assert (await run(there, field, "true"))[0] == 0

    is_broken = True
    await there.inspector.renew()
    with pytest.raises(SandboxUnavailable, match=r"fails its self-test \(limits\)"):
        await run(there, field, "touch", "made")
    is_broken = False
    await there.inspector.renew()

    assert (await run(there, field, "true"))[0] == 0
    assert not (field.root / "made").exists()


async def test_who_comes_first_waits_until_the_walls_are_known(field: Field) -> None:
    there = field.uninspected(Backend.LANDLOCK)

    assert there.processes.isolation(SESSION) is None
    ends = await asyncio.gather(*(run(there, field, "true") for _ in range(3)))

    assert [end[0] for end in ends] == [0, 0, 0]
    assert there.processes.isolation(SESSION) == ends[0][2]


async def test_a_process_can_be_closed_twice_and_by_two_at_once(field: Field) -> None:
    there = field.isolation(Backend.LANDLOCK)
    child = await there.processes.start(
        Command(argv=("sleep", "60")), SESSION, field.workspace(), lambda decision: None
    )

    async with asyncio.timeout(20):
        await asyncio.gather(child.close(), child.close())
        await child.close()

    assert child.ended is not None
    assert child.ended.code == 137
