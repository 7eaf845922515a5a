"""Everything that starts processes, put together from the settings.

The spawner starts with the first process. The self-test of the sandbox runs when the service starts, if there is a
sandboxed tool; only calls that start a process wait for it.
"""

import asyncio
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from app.config import Settings
from app.core.errors import SandboxUnavailable
from app.core.ports import Clock
from app.core.tools import Audience, Ready, Tool
from app.net.egress.proxy import EgressProxy
from app.net.secret_placeholders import Find
from app.sandbox.isolation.planner import SandboxSettings, SpawnPlanner
from app.sandbox.process.sandboxed import SandboxedProcessStarter
from app.sandbox.process.spawner import Mount, Spawner
from app.sandbox.process.trusted import TrustedProcesses
from app.sandbox.repl.interpreters import Interpreters
from app.sandbox.selftest.runner import SelfTest


class SandboxSetup:
    """The spawner, trusted and sandboxed processes, the self-test and the REPL interpreters."""

    def __init__(self, settings: Settings, data_dir: Path, clock: Clock) -> None:
        real_data_dir = os.path.realpath(data_dir)
        extras = (
            Mount(path=os.path.realpath(root.path), is_writable=root.access == "write") for root in settings.extra_roots
        )
        self._settings = settings
        self._spawner = Spawner(real_data_dir)
        self._planner = SpawnPlanner(SandboxSettings.of(settings.sandbox.model_dump()), real_data_dir, tuple(extras))
        self.processes = TrustedProcesses(self._spawner)
        self.inspector = SelfTest(self._spawner, self._planner, clock)
        self.recipes = Interpreters(self.processes).recipes
        self._inspecting: asyncio.Task[None] | None = None

    def open(self, find: Find) -> SandboxedProcessStarter:
        """Open what starts processes for models. `find` looks up the secrets that their requests may use."""
        policy, sandbox = self._settings.network_policy, self._settings.sandbox
        egress = EgressProxy(find, private_networks=self._settings.private_networks, ports=sandbox.egress_ports)

        def find_secret(owner: str, name: str) -> str | None:
            found = find(owner, name)
            return None if found is None else found[1]

        self._sandboxed = SandboxedProcessStarter(
            self._spawner,
            self._planner,
            self.inspector,
            egress,
            policy=None if policy is None else policy.policy(),
            find_secret=find_secret,
        )
        return self._sandboxed

    async def begin(self, tools: Iterable[Tool]) -> None:
        """If there is a sandboxed tool: remove what an earlier service left behind, and start the self-test."""
        if any(tool.is_sandboxed for tool in tools):
            await asyncio.to_thread(self._sweep)
            self._inspecting = asyncio.create_task(self.inspector.run())

    async def close(self) -> None:
        if self._inspecting is not None:
            self._inspecting.cancel()
            await asyncio.wait([self._inspecting])
        await self.inspector.close()
        await asyncio.to_thread(self._spawner.close)
        await asyncio.to_thread(self._sandboxed.close)

    def offered(self, tool: Tool) -> Tool:
        """A tool as this service offers it: a sandboxed one is available only where the sandbox works."""
        return replace(tool, init=_Readiness(self.inspector, tool)) if tool.is_sandboxed else tool

    def _sweep(self) -> None:
        self._spawner.sweep()
        self._sandboxed.sweep()


class _Readiness:
    """Whether a sandboxed tool can be used here."""

    def __init__(self, inspector: SelfTest, tool: Tool) -> None:
        self._inspector = inspector
        self._init = tool.init

    async def __call__(self, audience: Audience) -> Ready:
        report = await self._inspector.known()
        if report.backend is None:
            return Ready(reason=report.reason, error=SandboxUnavailable)
        return Ready() if self._init is None else await self._init(audience)
