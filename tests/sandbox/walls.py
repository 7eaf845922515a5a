"""What tests of walled processes share."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from app.core.clocks import SystemClock
from app.core.networks import NetworkPolicy
from app.core.walls import Backend, Egress, Leave
from app.sandbox.exits import Secrets
from app.sandbox.orders import Order, Place
from app.sandbox.plans import Planner, WallSettings
from app.sandbox.selftest import SelfTest
from app.sandbox.spawning import Spawner
from app.sandbox.walled import Walled

BACKENDS = (Backend.BWRAP, Backend.LANDLOCK)


class NoEgress:
    """For walls that let nobody out."""

    @asynccontextmanager
    async def serve(self, listener: int, leave: Leave) -> AsyncIterator[None]:
        raise AssertionError("nobody is let out here")
        yield


class Enclosed(NamedTuple):
    """What starts processes, and what looks whether it may."""

    processes: Walled
    inspector: SelfTest
    planner: Planner


def enclosed(
    spawner: Spawner,
    data_dir: Path,
    *,
    egress: Egress | None = None,
    policy: NetworkPolicy | None = None,
    secret: Secrets = lambda owner, name: None,
    extras: tuple[Place, ...] = (),
    environ: Mapping[str, str] = os.environ,
    alter: Callable[[Order], Order] = lambda order: order,
    **settings: Any,
) -> Enclosed:
    planner = Planner(WallSettings(**settings), str(data_dir), extras, environ)
    inspector = SelfTest(spawner, planner, SystemClock(), alter)
    processes = Walled(spawner, planner, inspector, egress or NoEgress(), policy=policy, secret=secret)
    return Enclosed(processes, inspector, planner)
