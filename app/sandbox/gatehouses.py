"""The gatehouse: all that belongs to the walls of one service, opened and closed as one."""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from app.core.networks import NetworkPolicy
from app.core.ports import Clock
from app.core.walls import Egress
from app.sandbox.exits import Secrets
from app.sandbox.orders import Order, Place
from app.sandbox.plans import Planner, WallSettings
from app.sandbox.roots import Root
from app.sandbox.selftest import SelfTest
from app.sandbox.spawning import Spawner
from app.sandbox.walled import Walled


class Gatehouse:
    """`processes` start behind walls, once the `inspector` has seen that these hold.

    Opening waits for nothing: the first self-test is run beside, and who starts a process waits for it. `alter` is for
    tests of the self-test.
    """

    def __init__(
        self,
        spawner: Spawner,
        settings: WallSettings,
        data_dir: Path,
        *,
        clock: Clock,
        egress: Egress,
        policy: NetworkPolicy | None = None,
        extras: Iterable[Root] = (),
        secret: Secrets = lambda owner, name: None,
        alter: Callable[[Order], Order] = lambda order: order,
    ) -> None:
        places = tuple(Place(path=root.place, is_writable=root.access == "write") for root in extras)
        planner = Planner(settings, os.path.realpath(data_dir), places)
        self.inspector = SelfTest(spawner, planner, clock, alter)
        self.processes = Walled(spawner, planner, self.inspector, egress, policy=policy, secret=secret)
        self._testing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await asyncio.to_thread(self.processes.sweep)
        self._testing = asyncio.create_task(self.inspector.run())

    async def close(self) -> None:
        if self._testing is not None:
            self._testing.cancel()
            await asyncio.wait([self._testing])
        await self.inspector.close()
        await asyncio.to_thread(self.processes.close)
