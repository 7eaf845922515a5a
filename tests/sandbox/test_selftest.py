"""The self-test: it passes where the walls hold, and each of its probes fails once its protection is broken."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.clocks import SystemClock
from app.core.errors import SandboxUnavailable
from app.core.sessions import Session
from app.core.walls import Backend, Child, Command, Ended
from app.sandbox import selftest
from app.sandbox.canaries import NAMES
from app.sandbox.children import LocalChild
from app.sandbox.gatehouses import Gatehouse
from app.sandbox.orders import Order, Place
from app.sandbox.plans import WallSettings
from app.sandbox.selftest import SelfTest
from app.sandbox.spawning import Spawner
from app.sandbox.workspace import LocalWorkspace
from tests.sandbox.walls import BACKENDS, NoEgress

Alter = Callable[[Order], Order]
SESSION = Session("ann", "one")


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    spawner = Spawner()
    yield spawner
    spawner.close()


def same(order: Order) -> Order:
    return order


def gatehouse(spawner: Spawner, folder: Path, alter: Alter = same, **settings: Any) -> Gatehouse:
    return Gatehouse(spawner, WallSettings(**settings), folder, clock=SystemClock(), egress=NoEgress(), alter=alter)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_where_the_walls_hold_every_probe_says_so(backend: Backend, spawner: Spawner, data_dir: Path) -> None:
    there = gatehouse(spawner, data_dir, backend=backend.value)

    report = await there.inspector.known()

    [trial] = report.trials
    assert {probe.name: probe.detail for probe in trial.probes if not probe.ok} == {}
    assert tuple(probe.name for probe in trial.probes) == NAMES
    assert (report.backend, trial.ok) == (backend, True)
    assert report.reason == f"The backend {backend} passed its self-test."


def wall(order: Order, **changes: Any) -> Order:
    assert order.enclosure is not None
    return replace(order, enclosure=replace(order.enclosure, **changes))


def around(order: Order) -> str:
    """The folder in which the workspace of the canaries is, and all that is outside it."""
    return os.path.dirname(order.cwd)


def with_place(order: Order, place: Place) -> Order:
    assert order.enclosure is not None
    return wall(order, places=(*order.enclosure.places, place), hidden=())


def read_only(order: Order) -> Order:
    assert order.enclosure is not None
    return wall(order, places=tuple(replace(place, is_writable=False) for place in order.enclosure.places))


def bare(order: Order) -> Order:
    """No walls, and whoever the service is."""
    return replace(order, enclosure=None, identity=None)


BREAK: dict[str, Alter] = {
    "workspace_write": read_only,
    "outside_write": lambda order: with_place(order, Place(path=f"{around(order)}/outside", is_writable=True)),
    "state_read": lambda order: with_place(order, Place(path=f"{around(order)}/state")),
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
    backend: Backend, probe: str, spawner: Spawner, data_dir: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if probe == "tree_kill":
        monkeypatch.setattr(SelfTest, "_start", Careless.start)
    there = gatehouse(spawner, data_dir, BREAK[probe], backend=backend.value)

    report = await there.inspector.known()

    [trial] = report.trials
    assert probe in {one.name for one in trial.probes if not one.ok}
    assert (report.backend, trial.ok) == (None, False)
    await nothing_runs(there, root)


async def nothing_runs(there: Gatehouse, root: Path) -> None:
    workspace = LocalWorkspace(root)
    with pytest.raises(SandboxUnavailable, match="fails its self-test.*`toolcrib doctor` tells more"):
        await there.processes.start(Command(argv=("touch", "ran")), SESSION, workspace, lambda decision: None)
    assert there.processes.walls(SESSION) is None
    assert not (root / "ran").exists()


class Careless:
    """A process whose keeper does not do its work, and whose walls do not number processes by themselves."""

    def __init__(self, child: LocalChild, keeper: int) -> None:
        self._child = child
        self._keeper = keeper
        self.read, self.wait = child.read, child.wait

    @staticmethod
    async def start(test: SelfTest, order: Order) -> Child:
        order = wall(order, backend="landlock") if order.enclosure else order
        child = LocalChild(await test._spawner.start(order), selftest.NO_WALLS)
        keeper = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(keeper, signal.SIGSTOP)
        return Careless(child, keeper)  # type: ignore[return-value]

    async def end(self, grace: float) -> Ended:
        os.kill(self._child.pid, signal.SIGKILL)
        return Ended(137)

    async def close(self) -> None:
        asyncio.get_running_loop().call_later(0.5, os.kill, self._keeper, signal.SIGCONT)
