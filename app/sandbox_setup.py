"""Walling: everything that starts processes, put together from the settings.

The spawner is there from the first process on. The walls are tried when the service starts, where there is a tool
that needs them; nobody waits for that but who wants to start a process.
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
from app.sandbox.process.spawn_request import Mount
from app.sandbox.process.spawner import Spawner
from app.sandbox.process.trusted import TrustedProcesses
from app.sandbox.repl.interpreters import Interpreters
from app.sandbox.selftest.runner import SelfTest


class SandboxSetup:
    """The spawner, the walls around what it starts for models, and what comes with both."""

    def __init__(self, settings: Settings, data_dir: Path, clock: Clock) -> None:
        records = os.path.realpath(data_dir)
        self._settings = settings
        self._spawner = Spawner(records)
        self._planner = SpawnPlanner(
            SandboxSettings.of(settings.sandbox.model_dump()), records, tuple(_extras(settings))
        )
        self.processes = TrustedProcesses(self._spawner)
        self.inspector = SelfTest(self._spawner, self._planner, clock)
        self.recipes = Interpreters(self.processes).recipes
        self._inspecting: asyncio.Task[None] | None = None

    def open(self, find: Find) -> SandboxedProcessStarter:
        """What starts processes for models. Secrets that go along with their requests are found by this."""
        policy, sandbox = self._settings.network_policy, self._settings.sandbox
        egress = EgressProxy(find, private_networks=self._settings.private_networks, ports=sandbox.egress_ports)

        def secret(owner: str, name: str) -> str | None:
            found = find(owner, name)
            return None if found is None else found[1]

        self._walled = SandboxedProcessStarter(
            self._spawner,
            self._planner,
            self.inspector,
            egress,
            policy=None if policy is None else policy.policy(),
            secret=secret,
        )
        return self._walled

    async def begin(self, tools: Iterable[Tool]) -> None:
        """Take away what an earlier service left behind, and try the walls if anybody will need them."""
        if any(tool.is_sandboxed for tool in tools):
            await asyncio.to_thread(self._sweep)
            self._inspecting = asyncio.create_task(self.inspector.run())

    async def close(self) -> None:
        if self._inspecting is not None:
            self._inspecting.cancel()
            await asyncio.wait([self._inspecting])
        await self.inspector.close()
        await asyncio.to_thread(self._spawner.close)
        await asyncio.to_thread(self._walled.close)

    def offered(self, tool: Tool) -> Tool:
        """A tool as this service offers it: one that starts processes only where the walls hold."""
        return replace(tool, init=_Readiness(self.inspector, tool)) if tool.is_sandboxed else tool

    def _sweep(self) -> None:
        self._spawner.sweep()
        self._walled.sweep()


class _Readiness:
    """Whether a walled tool can be used here."""

    def __init__(self, inspector: SelfTest, tool: Tool) -> None:
        self._inspector = inspector
        self._init = tool.init

    async def __call__(self, audience: Audience) -> Ready:
        report = await self._inspector.known()
        if report.backend is None:
            return Ready(reason=report.reason, error=SandboxUnavailable)
        return Ready() if self._init is None else await self._init(audience)


def _extras(settings: Settings) -> Iterable[Mount]:
    for root in settings.extra_roots:
        yield Mount(path=os.path.realpath(root.path), is_writable=root.access == "write")
