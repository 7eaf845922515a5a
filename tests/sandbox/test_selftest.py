"""The self-test: it passes where the walls hold, and each of its probes fails once its protection is broken."""

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from app.core.errors import SandboxUnavailable
from app.core.sandbox import NO_ISOLATION, Backend, Command, ExitStatus, Network, Process
from app.core.sessions import Session
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.isolation import features
from app.sandbox.process.local_process import LocalProcess
from app.sandbox.process.spawner import Mount, Spawner, SpawnRequest
from app.sandbox.selftest import runner
from app.sandbox.selftest.canaries import NAMES, Canaries
from app.sandbox.selftest.runner import SelfTest
from tests.sandbox.sandboxed import BACKENDS, Enclosed, enclosed

Alter = Callable[[SpawnRequest], SpawnRequest]
PREFIXES = {os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)}
HAS_PYTHON = any(os.path.exists(path) for path in runner.PYTHONS)
SESSION = Session("ann", "one")


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    spawner = Spawner()
    yield spawner
    spawner.close()


def same(order: SpawnRequest) -> SpawnRequest:
    return order


@pytest.mark.parametrize("backend", BACKENDS)
async def test_where_the_walls_hold_every_probe_says_so(backend: Backend, spawner: Spawner, data_dir: Path) -> None:
    there = enclosed(spawner, data_dir, backend=backend.value)

    report = await there.inspector.known()

    [trial] = report.trials
    assert {probe.name: probe.detail for probe in trial.probes if not probe.ok} == {}
    assert tuple(probe.name for probe in trial.probes) == NAMES
    assert (report.backend, trial.ok) == (backend, True)
    assert report.reason == f"The backend {backend} passed its self-test."


def broken_bwrap(folder: Path) -> dict[str, str]:
    """A machine on which bwrap can do nothing."""
    (folder / "bwrap").write_text("#!/bin/sh\necho 'bwrap: no permissions in /secret' >&2; exit 1\n")
    (folder / "bwrap").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.fixture
def machine() -> Iterator[Path]:
    """A folder for programs that everybody can run."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


async def test_by_itself_the_strongest_that_holds_is_taken(spawner: Spawner, data_dir: Path, machine: Path) -> None:
    strong = enclosed(spawner, data_dir)
    missing = enclosed(spawner, data_dir, environ={"PATH": str(machine)})

    first, second = await strong.inspector.known(), await missing.inspector.known()

    assert (first.backend, [trial.backend for trial in first.trials]) == (Backend.BWRAP, [Backend.BWRAP])
    assert (second.backend, [trial.ok for trial in second.trials]) == (Backend.LANDLOCK, [False, True])
    assert second.reason == "The backend landlock passed its self-test. The backend bwrap is not installed."


async def test_a_backend_that_does_not_work_is_passed_over_and_only_admins_hear_what_it_said(
    spawner: Spawner, data_dir: Path, machine: Path
) -> None:
    environ = broken_bwrap(machine)
    auto, strict = (
        enclosed(spawner, data_dir, environ=environ),
        enclosed(spawner, data_dir, environ=environ, backend="bwrap"),
    )

    report, refused = await auto.inspector.known(), await strict.inspector.known()

    assert (report.backend, refused.backend) == (Backend.LANDLOCK, None)
    assert report.trials[0].said == "bwrap: no permissions in /secret"
    assert refused.reason == (
        "The backend bwrap does not work here: its process wrote nothing and ended with exit code 1."
    )
    assert "/secret" not in repr(report.summary())


@pytest.mark.skipif(not HAS_PYTHON or "/usr" in PREFIXES, reason="there is no Python of the system besides this one")
async def test_a_python_that_cannot_be_reached_is_replaced_by_one_of_the_system(
    spawner: Spawner, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = enclosed(spawner, data_dir, backend="landlock")
    there.planner.__dict__["system"] = tuple(place for place in there.planner.system if place.path not in PREFIXES)

    report = await there.inspector.known()
    monkeypatch.setattr(runner, "PYTHONS", ())
    without = await there.inspector.renew()

    assert (report.backend, report.reason) == (Backend.LANDLOCK, "The backend landlock passed its self-test.")
    assert without.reason == (
        "The backend landlock does not work here: there is no Python that the user of processes can run."
    )


async def test_a_landlock_that_is_too_old_is_not_tried(
    spawner: Spawner, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "landlock_abi", lambda: 5)

    report = await enclosed(spawner, data_dir, backend="landlock").inspector.known()

    assert (report.backend, report.trials[0].probes) == (None, ())
    assert report.reason == (
        "The backend landlock is not enough in this kernel (ABI 5): signals to processes outside are not blocked."
    )


async def test_what_the_walls_do_not_keep_out_is_told(spawner: Spawner, data_dir: Path) -> None:
    bwrap = (await enclosed(spawner, data_dir, backend="bwrap").inspector.known()).unprotected
    landlock = (await enclosed(spawner, data_dir, backend="landlock").inspector.known()).unprotected
    listing = enclosed(spawner, data_dir, backend="landlock", network=Network.ALLOWLIST, egress_degraded_ok=True)
    degraded = await listing.inspector.known()
    none = await enclosed(spawner, data_dir, backend="none", i_accept_unsandboxed=True).inspector.known()

    assert bwrap == (() if os.geteuid() == 0 else (runner.NO_PROCESS_LIMIT,))
    assert "Processes can change .git/hooks and .git/config in the workspace." in landlock
    assert (degraded.is_degraded, len(degraded.unprotected)) == (True, len(landlock) + 1)
    assert (none.backend, none.network, len(none.unprotected), none.trials) == (
        Backend.NONE,
        Network.FULL,
        1 + len(bwrap),
        (),
    )


@pytest.mark.parametrize("backend", BACKENDS)
async def test_where_hosts_may_be_listed_that_is_tried_as_well(
    backend: Backend, spawner: Spawner, data_dir: Path
) -> None:
    def leak(order: SpawnRequest) -> SpawnRequest:
        has_way = order.isolation is not None and order.isolation.network == "allowlist"
        return wall(order, network="full") if has_way else order

    listing: dict[str, Any] = {"backend": backend.value, "network": Network.ALLOWLIST, "egress_degraded_ok": True}
    sound = await enclosed(spawner, data_dir, **listing).inspector.known()
    leaking = await enclosed(spawner, data_dir, alter=leak, **listing).inspector.known()

    assert (sound.backend, leaking.backend) == (backend, None)
    assert {"tcp", "udp"} <= {probe.name for probe in leaking.trials[0].probes if not probe.ok}


async def test_what_goes_wrong_unforeseen_takes_the_walls_away_as_well(spawner: Spawner, data_dir: Path) -> None:
    is_broken = False

    def alter(order: SpawnRequest) -> SpawnRequest:
        if is_broken:
            raise RuntimeError("a bug")
        return order

    inspector = enclosed(spawner, data_dir, alter=alter, backend="landlock").inspector
    assert (await inspector.known()).backend is Backend.LANDLOCK

    is_broken = True
    with pytest.raises(RuntimeError, match="a bug"):
        await inspector.renew()

    assert inspector.report is None


async def test_who_asks_meanwhile_gets_the_same_answer(spawner: Spawner, data_dir: Path) -> None:
    inspector = enclosed(spawner, data_dir, backend="landlock").inspector

    first, second, third = await asyncio.gather(inspector.renew(), inspector.known(), inspector.renew())

    assert first is second is third is inspector.report


async def test_who_ends_it_while_it_sets_up_leaves_nothing_behind(
    spawner: Spawner, data_dir: Path, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, listening = asyncio.Event(), threading.Event(), list[socket.socket]()
    loop = asyncio.get_running_loop()

    class Slow(Canaries):
        def __init__(self, *given: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(10)
            super().__init__(*given)
            listening.extend((*self._tcp.values(), *self._udp.values(), *self._unix.values()))

    monkeypatch.setattr(runner, "Canaries", Slow)
    monkeypatch.setattr(tempfile, "tempdir", str(machine))
    inspector = enclosed(spawner, data_dir, backend="landlock").inspector
    asked = asyncio.create_task(inspector.known())
    await begun.wait()

    closing = asyncio.create_task(inspector.close())
    await asyncio.sleep(0)
    go.set()
    await closing

    with pytest.raises(asyncio.CancelledError):
        await asked
    assert listening
    assert {one.fileno() for one in listening} == {-1}
    assert os.listdir(machine) == []
    assert inspector.report is None


async def test_a_process_that_says_nothing_is_waited_for_only_so_long(
    spawner: Spawner, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "TIMEOUT_SECONDS", 0.3)

    def silent(order: SpawnRequest) -> SpawnRequest:
        return replace(order, argv=("sleep", "60"))

    report = await enclosed(spawner, data_dir, alter=silent, backend="landlock").inspector.known()

    assert report.reason == "The backend landlock does not work here: it gave no answer within 0.3 s."


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("nonsense", "the output of its process cannot be read."),
        ("{}", "the output of its process cannot be read."),
        ("[]", "its process wrote nothing and ended with exit code 0."),
    ],
)
async def test_an_answer_that_is_none_takes_the_backend_away(
    answer: str, reason: str, spawner: Spawner, data_dir: Path
) -> None:
    def lie(order: SpawnRequest) -> SpawnRequest:
        return replace(order, argv=("echo", answer))

    report = await enclosed(spawner, data_dir, alter=lie, backend="landlock").inspector.known()

    assert (report.backend, report.reason) == (None, f"The backend landlock does not work here: {reason}")


def wall(order: SpawnRequest, **changes: Any) -> SpawnRequest:
    assert order.isolation is not None
    return replace(order, isolation=replace(order.isolation, **changes))


def around(order: SpawnRequest) -> str:
    """The folder in which the workspace of the canaries is, and all that is outside it."""
    return os.path.dirname(order.cwd)


def with_place(order: SpawnRequest, place: Mount) -> SpawnRequest:
    assert order.isolation is not None
    return wall(order, mounts=(*order.isolation.mounts, place), hidden=())


def read_only(order: SpawnRequest) -> SpawnRequest:
    assert order.isolation is not None
    return wall(order, mounts=tuple(replace(place, is_writable=False) for place in order.isolation.mounts))


def bare(order: SpawnRequest) -> SpawnRequest:
    """No walls, and whoever the service is."""
    return replace(order, isolation=None, identity=None)


BREAK: dict[str, Alter] = {
    "workspace_write": read_only,
    "outside_write": lambda order: with_place(order, Mount(path=f"{around(order)}/outside", is_writable=True)),
    "state_read": lambda order: with_place(order, Mount(path=f"{around(order)}/state")),
    "service_environ": bare,
    "tcp": lambda order: wall(order, network="full"),
    "udp": lambda order: wall(order, network="full"),
    "unix_sockets": lambda order: wall(order, backend="none"),
    "service_signal": bare,
    "system_calls": lambda order: wall(order, backend="none"),
    "tree_kill": same,
    "limits": lambda order: replace(order, limits={}),
    "privileges": lambda order: wall(order, backend="none"),
}


@pytest.mark.parametrize("probe", NAMES)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_protection_that_is_broken_takes_the_backend_away_and_nothing_is_started(
    backend: Backend, probe: str, spawner: Spawner, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if probe == "tree_kill":
        monkeypatch.setattr(SelfTest, "_start", Careless.start)
    there = enclosed(spawner, data_dir, alter=BREAK[probe], backend=backend.value)

    report = await there.inspector.known()
    await Careless.clean_up()

    [trial] = report.trials
    assert probe in {one.name for one in trial.probes if not one.ok}
    assert (report.backend, trial.ok) == (None, False)
    await nothing_runs(there, tmp_path)


async def nothing_runs(there: Enclosed, root: Path) -> None:
    workspace = LocalWorkspace(root)
    with pytest.raises(SandboxUnavailable, match=r"fails its self-test.*`toolcrib doctor` tells more"):
        await there.processes.start(Command(argv=("touch", "ran")), SESSION, workspace, lambda decision: None)
    assert there.processes.isolation(SESSION) is None
    assert not (root / "ran").exists()


class Careless(LocalProcess):
    """A process whose keeper does not do its work, behind walls that do not do it instead."""

    left: ClassVar[list["Careless"]] = []
    keeper: int | None = None

    @staticmethod
    async def start(test: SelfTest, order: SpawnRequest) -> Process:
        child = Careless(await test._spawner.start(wall(order, backend="landlock")), NO_ISOLATION)
        child.left.append(child)
        child.keeper = parent_of(child.pid)
        os.kill(child.keeper, signal.SIGSTOP)
        return child

    async def end(self, grace: float = 0) -> ExitStatus:
        if self.keeper is None:
            return await super().end(grace)
        os.kill(self.pid, signal.SIGKILL)
        return ExitStatus(137)

    async def close(self) -> None:
        if self.keeper is None:
            await super().close()

    @staticmethod
    async def clean_up() -> None:
        while Careless.left:
            child = Careless.left.pop()
            os.kill(child.keeper or 0, signal.SIGCONT)
            child.keeper = None
            await child.close()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
