"""The self-test: before anything is started behind walls, everything they are to keep out is tried from behind them."""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from app.core.errors import CallError
from app.core.ports import Clock
from app.core.sandbox import (
    NO_ISOLATION,
    Backend,
    BackendTrial,
    Command,
    Isolation,
    MachineInfo,
    Network,
    Probe,
    Process,
    SandboxReport,
)
from app.core.sessions import Profile, is_inside
from app.core.util.aio import in_thread_uncancelable
from app.sandbox.isolation import features, landlock
from app.sandbox.isolation.planner import ProcessLocation, SpawnPlanner
from app.sandbox.isolation.proxy_access import ProxyAccess
from app.sandbox.process.child import LocalProcess
from app.sandbox.process.spawn_request import SpawnRequest
from app.sandbox.process.spawner import Spawner
from app.sandbox.selftest import probes
from app.sandbox.selftest.canaries import NAMES, Canaries

log = logging.getLogger(__name__)

AGAIN_SECONDS = 600.0
SOON_SECONDS = 30.0
"""When the walls did not hold, it may be for a short time only."""
SECONDS = 20.0
MOST_SAID = 2000
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
TRIED = {"auto": (Backend.BWRAP, Backend.LANDLOCK), "bwrap": (Backend.BWRAP,), "landlock": (Backend.LANDLOCK,)}
UNSANDBOXED = "The operator switched the walls off, twice."
HALF_UNSANDBOXED = "The setting `sandbox.backend` is none, which counts only together with `i_accept_unsandboxed`."
BROKEN = (OSError, CallError, TimeoutError, ValueError, LookupError, TypeError)
"""What can go wrong with a trial. Whatever it is, the backend is not used."""

OF_LANDLOCK = (
    "Processes can change .git/hooks and .git/config in the workspace.",
    "Processes see the names and arguments of all processes on this machine.",
    "Memory shared by name (/dev/shm) is common to all processes of the same user, and stays when they have ended.",
)
OF_THE_SAME_USER = (
    "Processes run as the service's own user: modes and times of its files outside the workspace can be changed.",
)
UNCOUNTED = "The kernel does not limit the number of processes; a watchdog does, a moment later."
OF_DEGRADED = "Any host can be reached on the number of the proxy's port, also without the proxy."
OF_NOTHING = "Processes can do whatever their user can."

"""What is said of a process of which nothing is believed yet."""


class ProbeSilent(ValueError):
    """A probe did not tell what happened."""


class SelfTest:
    """The `Inspector` port. `alter` is for tests of the test: it breaks what an order asks for."""

    def __init__(
        self,
        spawner: Spawner,
        planner: SpawnPlanner,
        clock: Clock,
        alter: Callable[[SpawnRequest], SpawnRequest] = lambda order: order,
    ) -> None:
        self.report: SandboxReport | None = None
        self._spawner = spawner
        self._planner = planner
        self._clock = clock
        self._alter = alter
        self._under_way: asyncio.Task[SandboxReport] | None = None

    async def known(self) -> SandboxReport:
        return self.report or await self.renew()

    async def renew(self) -> SandboxReport:
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._inspect())
        return await asyncio.shield(self._under_way)

    async def run(self) -> None:
        """Now, and again and again: what holds today may be switched off tomorrow."""
        while True:
            report = await self.renew()
            await asyncio.sleep(SOON_SECONDS if report.backend is None else AGAIN_SECONDS)

    async def close(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])

    async def _inspect(self) -> SandboxReport:
        is_asked = self._planner.settings.backend != "none"
        machine = asyncio.create_task(asyncio.to_thread(look, self._planner.bwrap if is_asked else None, is_asked))
        trials = list[BackendTrial]()
        try:
            for backend in TRIED.get(self._planner.settings.backend, ()):
                trials.append(await self._try(backend))
                if trials[-1].ok:
                    break
            before, self.report = self.report, self._conclude(tuple(trials), await machine)
        except BaseException:
            self.report = None  # what is not known to hold does not count as holding
            raise
        if before is None or before.backend is not self.report.backend:
            log.log(logging.INFO if self.report.backend else logging.WARNING, "walls: %s", self.report.reason)
        return self.report

    async def _try(self, backend: Backend) -> BackendTrial:
        if missing := self._missing(backend):
            return BackendTrial(backend, missing)
        began, said = time.monotonic(), bytearray()
        try:
            async with asyncio.timeout(SECONDS):
                found = _worst([await self._probe(walls, said) for walls in self._kinds(backend)])
        except BROKEN as error:
            told = _shown(said) or str(error)
            return BackendTrial(backend, f"The backend {backend} does not work here: {_reason(error)}", said=told)
        failed = next((probe for probe in found if not probe.ok), None)
        reason = f"The backend {backend} fails its self-test ({failed.name}): {failed.detail}" if failed else None
        return BackendTrial(backend, reason, tuple(found), _shown(said), time.monotonic() - began)

    def _missing(self, backend: Backend) -> str | None:
        if backend is Backend.BWRAP and self._planner.bwrap is None:
            return "The backend bwrap is not installed."
        if backend is Backend.LANDLOCK and (gaps := landlock.missing(abi := features.landlock_abi())):
            return f"The backend landlock is not enough in this kernel (ABI {abi}): {', '.join(gaps)}."
        return None

    def _kinds(self, backend: Backend) -> Iterator[Isolation]:
        """The walls to be tried: those with no way out, and those that let listed hosts through, if they can be had."""
        settings = self._planner.settings
        yield Isolation(backend, Profile.WORKSPACE_WRITE, Network.NONE)
        if settings.network is not Network.NONE and (backend is Backend.BWRAP or settings.egress_degraded_ok):
            yield Isolation(backend, Profile.WORKSPACE_WRITE, Network.ALLOWLIST)

    async def _probe(self, walls: Isolation, said: bytearray) -> list[Probe]:
        """One process, which tries everything that a process might."""
        planner, undo = self._planner, ExitStack()
        try:
            canaries = await in_thread_uncancelable(Canaries, planner.data_dir, planner.identity, undo)
            planned = await asyncio.to_thread(self._plan, walls, canaries)
            child = await self._start(self._alter(planned))
            try:
                told = await _answer(child, said)
                await child.end(0)
            finally:
                await child.close()
            found = {probe.name: probe for probe in canaries.judge(told, planned)}
            found["tree_kill"] = canaries.judge_end(told)
        finally:
            await in_thread_uncancelable(undo.close)
        return [found[name] for name in NAMES]

    async def _start(self, order: SpawnRequest) -> Process:
        spawned = await self._spawner.start(order)
        if spawned.listener is not None:
            os.close(spawned.listener)  # there is a way out, and nobody at its end
        return LocalProcess(spawned, NO_ISOLATION)

    def _plan(self, walls: Isolation, canaries: Canaries) -> SpawnRequest:
        """An order like any other. The canaries' own records are hidden like the real ones."""
        home, has_tmp = canaries.workspace, walls.backend is Backend.BWRAP
        stand = ProcessLocation(
            workspace=home,
            root=home,
            cwd=home,
            hidden=(canaries.state,),
            temporary=None if has_tmp else canaries.temporary,
        )
        limits = self._planner.limits(self._planner.settings.memory)
        asked = json.dumps(canaries.asked | {"limits": list(limits)})
        argv = (self._interpreter(), "-I", "-S", "-c", Path(probes.__file__).read_text(), asked)
        proxy = None if walls.network is Network.NONE else 0 if has_tmp else canaries.proxy
        return self._planner.order(Command(argv=argv, has_channel=True), walls, stand, ProxyAccess(proxy=proxy))

    def _interpreter(self) -> str:
        """This very Python, or one of the system where whom processes become cannot come to it."""
        seen = [place.path for place in self._planner.system]
        for path in dict.fromkeys(map(os.path.realpath, (sys.executable, *PYTHONS))):
            if os.access(path, os.X_OK) and any(is_inside(path, place) for place in seen):
                return path
        raise ProbeSilent("there is no Python that whom processes become could run.")

    def _conclude(self, trials: tuple[BackendTrial, ...], machine: MachineInfo) -> SandboxReport:
        settings, planner = self._planner.settings, self._planner
        backend, reason = _chosen(settings.backend, settings.i_accept_unsandboxed, trials)
        is_degraded = backend is Backend.LANDLOCK and settings.network is not Network.NONE
        return SandboxReport(
            backend=backend,
            requested=settings.backend,
            reason=reason,
            profile=settings.profile,
            network=Network.FULL if backend is Backend.NONE else settings.network,
            is_degraded=is_degraded and settings.egress_degraded_ok,
            uid=planner.identity and planner.identity[0],
            limits=planner.limits(settings.memory)
            | {"memory": settings.memory, "processes": settings.processes, "temporary": settings.temporary},
            unprotected=tuple(self._gaps(backend, is_degraded and settings.egress_degraded_ok)),
            trials=trials,
            machine=machine,
            checked_at=self._clock.now(),
        )

    def _gaps(self, backend: Backend | None, is_degraded: bool) -> Iterator[str]:
        if backend is Backend.NONE:
            yield OF_NOTHING
        if backend is Backend.LANDLOCK:
            yield from OF_LANDLOCK
            yield from OF_THE_SAME_USER if self._planner.identity is None else ()
        if backend is not None and self._planner.identity is None:
            yield UNCOUNTED
        if is_degraded:
            yield OF_DEGRADED


def _worst(runs: list[list[Probe]]) -> list[Probe]:
    """Of each probe the first that failed, if one did."""
    return [next((probe for probe in same if not probe.ok), same[0]) for same in zip(*runs, strict=True)]


def look(bwrap: str | None, is_asked: bool = True) -> MachineInfo:
    """What there is, whatever is used of it. What takes long is looked for only where walls are asked for."""
    program = features.find_program(bwrap) if bwrap else None
    return MachineInfo(
        landlock_abi=features.landlock_abi(),
        has_seccomp=features.seccomp().available,
        has_user_namespaces=features.user_namespaces().available if is_asked else None,
        bwrap_path=program.path if program else None,
        bwrap_version=program.version if program else None,
    )


def _chosen(requested: str, is_accepted: bool, trials: tuple[BackendTrial, ...]) -> tuple[Backend | None, str]:
    """What is used, and why, in sentences without paths of this machine: also those read them who may only call."""
    if requested == "none":
        return (Backend.NONE, UNSANDBOXED) if is_accepted else (None, HALF_UNSANDBOXED)
    refused = " ".join(trial.reason for trial in trials if trial.reason)
    if trials[-1].ok:
        backend = trials[-1].backend
        return backend, f"The backend {backend} passed its self-test." + (f" {refused}" if refused else "")
    return None, refused


async def _answer(child: Process, said: bytearray) -> dict[str, Any]:
    """The line that the probe says. Whatever else is said there helps to understand why there is none."""
    heard = bytearray()
    while (piece := await child.read()) is not None:
        (heard if piece.stream == "stdout" else said).extend(piece.data)
        if b"\n" in heard:
            told = json.loads(heard.partition(b"\n")[0])
            if isinstance(told, dict):
                return told
            break
    raise ProbeSilent(f"its process said nothing and ended with the code {(await child.wait()).code}.")


def _reason(error: BaseException) -> str:
    match error:
        case TimeoutError():
            return f"nothing was heard within {SECONDS:g} s."
        case CallError():
            return error.message
        case ProbeSilent():
            return str(error)
        case OSError():
            return f"{os.strerror(error.errno or 0)}."
    return "what its process said cannot be understood."


def _shown(said: bytearray) -> str:
    return said[-MOST_SAID:].decode(errors="replace").strip()
