"""The self-test: it passes where the walls hold, and each of its probes fails once its protection is broken."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from app.core.errors import SandboxUnavailable
from app.core.sessions import Session
from app.core.walls import Backend, Child, Command, Ended
from app.sandbox import selftest
from app.sandbox.canaries import NAMES
from app.sandbox.children import LocalChild
from app.sandbox.orders import Order, Place
from app.sandbox.selftest import SelfTest
from app.sandbox.spawning import Spawner
from app.sandbox.workspace import LocalWorkspace
from tests.sandbox.walls import BACKENDS, Enclosed, enclosed

Alter = Callable[[Order], Order]
SESSION = Session("ann", "one")


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    spawner = Spawner()
    yield spawner
    spawner.close()


def same(order: Order) -> Order:
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
    assert there.processes.walls(SESSION) is None
    assert not (root / "ran").exists()


class Careless(LocalChild):
    """A process whose keeper does not do its work, behind walls that do not do it instead."""

    left: ClassVar[list["Careless"]] = []
    keeper: int | None = None

    @staticmethod
    async def start(test: SelfTest, order: Order) -> Child:
        child = Careless(await test._spawner.start(wall(order, backend="landlock")), selftest.NO_WALLS)
        child.left.append(child)
        child.keeper = parent_of(child.pid)
        os.kill(child.keeper, signal.SIGSTOP)
        return child

    async def end(self, grace: float = 0) -> Ended:
        if self.keeper is None:
            return await super().end(grace)
        os.kill(self.pid, signal.SIGKILL)
        return Ended(137)

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
