"""The self-test of the sandbox: before any process of a model starts, a probe tries to break out of each backend."""

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
from app.sandbox.isolation.planner import ProcessLocation, ProxyAccess, SpawnPlanner
from app.sandbox.process.local_process import LocalProcess
from app.sandbox.process.spawner import Spawner, SpawnRequest
from app.sandbox.selftest import probes
from app.sandbox.selftest.canaries import NAMES, Canaries

log = logging.getLogger(__name__)

REPEAT_SECONDS = 600.0
RETRY_SECONDS = 30.0
"""After a failure, which may be temporary."""
TIMEOUT_SECONDS = 20.0
MAX_STDERR_BYTES = 2000
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
BACKENDS = {"auto": (Backend.BWRAP, Backend.LANDLOCK), "bwrap": (Backend.BWRAP,), "landlock": (Backend.LANDLOCK,)}
UNSANDBOXED = "The operator switched the sandbox off with two settings."
HALF_UNSANDBOXED = "The setting `sandbox.backend` is none, which counts only together with `i_accept_unsandboxed`."
BROKEN = (OSError, CallError, TimeoutError, ValueError, LookupError, TypeError)
"""Errors of a trial, after which the backend is not used."""

LANDLOCK_GAPS = (
    "Processes can change .git/hooks and .git/config in the workspace.",
    "Processes see the names and arguments of all processes on this machine.",
    "Shared memory (/dev/shm) is common to all processes of the same user, and stays when they have ended.",
)
SAME_USER_GAPS = (
    "Processes run as the service's own user: modes and times of its files outside the workspace can be changed.",
)
NO_PROCESS_LIMIT = "The kernel does not limit the number of processes; a watchdog does, a moment later."
DEGRADED_GAP = "Any host can be reached on the port number of the proxy, also without the proxy."
UNSANDBOXED_GAP = "Processes can do whatever their user can."


class ProbeSilent(ValueError):
    """A probe did not report its results."""


class SelfTest:
    """The `SandboxInspector` port. `alter` is for tests of the self-test: it weakens a spawn request."""

    def __init__(
        self,
        spawner: Spawner,
        planner: SpawnPlanner,
        clock: Clock,
        alter: Callable[[SpawnRequest], SpawnRequest] = lambda request: request,
    ) -> None:
        self.report: SandboxReport | None = None
        self._spawner = spawner
        self._planner = planner
        self._clock = clock
        self._alter = alter
        self._running: asyncio.Task[SandboxReport] | None = None

    async def known(self) -> SandboxReport:
        return self.report or await self.renew()

    async def renew(self) -> SandboxReport:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._inspect())
        return await asyncio.shield(self._running)

    async def run(self) -> None:
        """Test now and again at intervals: the kernel settings may change."""
        while True:
            report = await self.renew()
            await asyncio.sleep(RETRY_SECONDS if report.backend is None else REPEAT_SECONDS)

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _inspect(self) -> SandboxReport:
        is_wanted = self._planner.settings.backend != "none"
        bwrap = self._planner.bwrap if is_wanted else None
        machine = asyncio.create_task(asyncio.to_thread(machine_info, bwrap, is_wanted))
        trials = list[BackendTrial]()
        try:
            for backend in BACKENDS.get(self._planner.settings.backend, ()):
                trials.append(await self._try(backend))
                if trials[-1].ok:
                    break
            before, self.report = self.report, self._conclude(tuple(trials), await machine)
        except BaseException:
            self.report = None  # a backend counts only after it has passed
            raise
        if before is None or before.backend is not self.report.backend:
            log.log(logging.INFO if self.report.backend else logging.WARNING, "sandbox: %s", self.report.reason)
        return self.report

    async def _try(self, backend: Backend) -> BackendTrial:
        if missing := self._missing(backend):
            return BackendTrial(backend, missing)
        start, stderr = time.monotonic(), bytearray()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                probes = _worst([await self._probe(isolation, stderr) for isolation in self._isolations(backend)])
        except BROKEN as error:
            reason = f"The backend {backend} does not work here: {_reason(error)}"
            return BackendTrial(backend, reason, said=_to_text(stderr) or str(error))
        failed = next((probe for probe in probes if not probe.ok), None)
        failure = f"The backend {backend} fails its self-test ({failed.name}): {failed.detail}" if failed else None
        return BackendTrial(backend, failure, tuple(probes), _to_text(stderr), time.monotonic() - start)

    def _missing(self, backend: Backend) -> str | None:
        if backend is Backend.BWRAP and self._planner.bwrap is None:
            return "The backend bwrap is not installed."
        if backend is Backend.LANDLOCK and (gaps := landlock.missing(abi := features.landlock_abi())):
            return f"The backend landlock is not enough in this kernel (ABI {abi}): {', '.join(gaps)}."
        return None

    def _isolations(self, backend: Backend) -> Iterator[Isolation]:
        """What is tried: an isolation without a network, and one for listed hosts, if the settings allow that."""
        settings = self._planner.settings
        yield Isolation(backend, Profile.WORKSPACE_WRITE, Network.NONE)
        if settings.network is not Network.NONE and (backend is Backend.BWRAP or settings.egress_degraded_ok):
            yield Isolation(backend, Profile.WORKSPACE_WRITE, Network.ALLOWLIST)

    async def _probe(self, isolation: Isolation, stderr: bytearray) -> list[Probe]:
        """Run one process that tries to break out in every way."""
        planner, undo = self._planner, ExitStack()
        try:
            canaries = await in_thread_uncancelable(Canaries, planner.data_dir, planner.identity, undo)
            request = await asyncio.to_thread(self._plan, isolation, canaries)
            process = await self._start(self._alter(request))
            try:
                results = await _read_results(process, stderr)
                await process.end(0)
            finally:
                await process.close()
            found = {probe.name: probe for probe in canaries.judge(results, request)}
            found["tree_kill"] = canaries.judge_end(results)
        finally:
            await in_thread_uncancelable(undo.close)
        return [found[name] for name in NAMES]

    async def _start(self, request: SpawnRequest) -> Process:
        spawned = await self._spawner.start(request)
        if spawned.listener is not None:
            os.close(spawned.listener)  # no proxy serves it
        return LocalProcess(spawned, NO_ISOLATION)

    def _plan(self, isolation: Isolation, canaries: Canaries) -> SpawnRequest:
        """A spawn request like that of a tool. The canary data directory is hidden like the real one."""
        home, has_tmp = canaries.workspace, isolation.backend is Backend.BWRAP
        location = ProcessLocation(
            workspace=home,
            root=home,
            cwd=home,
            hidden=(canaries.state,),
            temp_dir=None if has_tmp else canaries.temp_dir,
        )
        limits = self._planner.limits(self._planner.settings.memory)
        targets = json.dumps(canaries.targets | {"limits": list(limits)})
        argv = (self._interpreter(), "-I", "-S", "-c", Path(probes.__file__).read_text(), targets)
        proxy = None if isolation.network is Network.NONE else 0 if has_tmp else canaries.unused_port
        command = Command(argv=argv, has_channel=True)
        return self._planner.request(command, isolation, location, ProxyAccess(proxy=proxy))

    def _interpreter(self) -> str:
        """The service's Python, or one of the system where the user of processes cannot access it."""
        visible = [mount.path for mount in self._planner.system]
        for path in dict.fromkeys(map(os.path.realpath, (sys.executable, *PYTHONS))):
            if os.access(path, os.X_OK) and any(is_inside(path, mount) for mount in visible):
                return path
        raise ProbeSilent("there is no Python that the user of processes can run.")

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
            yield UNSANDBOXED_GAP
        if backend is Backend.LANDLOCK:
            yield from LANDLOCK_GAPS
            yield from SAME_USER_GAPS if self._planner.identity is None else ()
        if backend is not None and self._planner.identity is None:
            yield NO_PROCESS_LIMIT
        if is_degraded:
            yield DEGRADED_GAP


def _worst(runs: list[list[Probe]]) -> list[Probe]:
    """Of each probe the first failure, if there is one."""
    return [next((probe for probe in same if not probe.ok), same[0]) for same in zip(*runs, strict=True)]


def machine_info(bwrap: str | None, is_wanted: bool = True) -> MachineInfo:
    """The features of this machine. The slow ones are checked only where a sandbox is configured."""
    program = features.find_program(bwrap) if bwrap else None
    return MachineInfo(
        landlock_abi=features.landlock_abi(),
        has_seccomp=features.seccomp().available,
        has_user_namespaces=features.user_namespaces().available if is_wanted else None,
        bwrap_path=program.path if program else None,
        bwrap_version=program.version if program else None,
    )


def _chosen(requested: str, is_accepted: bool, trials: tuple[BackendTrial, ...]) -> tuple[Backend | None, str]:
    """The backend and why, in sentences without paths of this machine: clients with few permissions read them, too."""
    if requested == "none":
        return (Backend.NONE, UNSANDBOXED) if is_accepted else (None, HALF_UNSANDBOXED)
    failures = " ".join(trial.reason for trial in trials if trial.reason)
    if trials[-1].ok:
        backend = trials[-1].backend
        return backend, f"The backend {backend} passed its self-test." + (f" {failures}" if failures else "")
    return None, failures


async def _read_results(process: Process, stderr: bytearray) -> dict[str, Any]:
    """The JSON line of the probe. What it writes to stderr goes into the report."""
    stdout = bytearray()
    while (chunk := await process.read()) is not None:
        (stdout if chunk.stream == "stdout" else stderr).extend(chunk.data)
        if b"\n" in stdout:
            results = json.loads(stdout.partition(b"\n")[0])
            if isinstance(results, dict):
                return results
            break
    raise ProbeSilent(f"its process wrote nothing and ended with exit code {(await process.wait()).code}.")


def _reason(error: BaseException) -> str:
    match error:
        case TimeoutError():
            return f"it gave no answer within {TIMEOUT_SECONDS:g} s."
        case CallError():
            return error.message
        case ProbeSilent():
            return str(error)
        case OSError():
            return f"{os.strerror(error.errno or 0)}."
    return "the output of its process cannot be read."


def _to_text(stderr: bytearray) -> str:
    return stderr[-MAX_STDERR_BYTES:].decode(errors="replace").strip()
