"""What tests of walled processes share."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from app.core.network_policy import NetworkPolicy
from app.core.sandbox import Backend, Egress, EgressGrant
from app.core.util.clocks import SystemClock
from app.sandbox.isolation.planner import FindSecret, SandboxSettings, SpawnPlanner
from app.sandbox.process.sandboxed import SandboxedProcessStarter
from app.sandbox.process.spawner import Mount, Spawner, SpawnRequest
from app.sandbox.selftest.runner import SelfTest

BACKENDS = (Backend.BWRAP, Backend.LANDLOCK)


class NoEgress:
    """For walls that let nobody out."""

    @asynccontextmanager
    async def serve(self, listener: int, leave: EgressGrant) -> AsyncIterator[None]:
        raise AssertionError("nobody is let out here")
        yield


class Enclosed(NamedTuple):
    """What starts processes, and what looks whether it may."""

    processes: SandboxedProcessStarter
    inspector: SelfTest
    planner: SpawnPlanner


def enclosed(
    spawner: Spawner,
    data_dir: Path,
    *,
    egress: Egress | None = None,
    policy: NetworkPolicy | None = None,
    secret: FindSecret = lambda owner, name: None,
    extras: tuple[Mount, ...] = (),
    environ: Mapping[str, str] = os.environ,
    alter: Callable[[SpawnRequest], SpawnRequest] = lambda order: order,
    **settings: Any,
) -> Enclosed:
    planner = SpawnPlanner(SandboxSettings(**settings), str(data_dir), extras, environ)
    inspector = SelfTest(spawner, planner, SystemClock(), alter)
    processes = SandboxedProcessStarter(
        spawner, planner, inspector, egress or NoEgress(), policy=policy, find_secret=secret
    )
    return Enclosed(processes, inspector, planner)
