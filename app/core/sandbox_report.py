"""What the sandbox's self-test reports, and the port that runs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.core.sandbox import Backend, Network
from app.core.sandbox_profile import Profile
from app.core.util.clocks import rfc3339


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing that was tried behind walls. `detail` says what happened, without paths of this machine."""

    name: str
    ok: bool
    detail: str

    def view(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class BackendTrial:
    """A backend that was tried. `reason` is why it is not used; None when it may be. `said`: by its program."""

    backend: Backend
    reason: str | None = None
    probes: tuple[Probe, ...] = ()
    said: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.reason is None

    def view(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "ok": self.ok,
            "reason": self.reason,
            "said": self.said,
            "probes": [probe.view() for probe in self.probes],
            "duration_ms": round(self.seconds * 1000, 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInfo:
    """What the machine has to build walls with. None is what nobody looked for, because no walls were asked for."""

    landlock_abi: int = 0
    has_seccomp: bool = False
    has_user_namespaces: bool | None = None
    bwrap_path: str | None = None
    bwrap_version: str | None = None

    def view(self) -> dict[str, Any]:
        bwrap = {"path": self.bwrap_path, "version": self.bwrap_version} if self.bwrap_path else None
        return {
            "landlock_abi": self.landlock_abi,
            "seccomp": self.has_seccomp,
            "user_namespaces": self.has_user_namespaces,
            "bwrap": bwrap,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReport:
    """What stands around processes here, why, and what it does not keep out.

    `backend` None: nothing does, and no process is started. `uid` is whom processes become; None: whoever the service
    is. `profile` and `network` are the operator's; sessions can only narrow them.
    """

    backend: Backend | None
    requested: str
    reason: str
    profile: Profile
    network: Network
    is_degraded: bool = False
    uid: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    unprotected: tuple[str, ...] = ()
    trials: tuple[BackendTrial, ...] = ()
    machine: MachineInfo = MachineInfo()
    checked_at: int = 0

    def summary(self) -> dict[str, Any]:
        """For everybody who may read calls: nothing of this machine but what a call's record tells, too."""
        return {
            "backend": self.backend,
            "reason": self.reason,
            "profile": self.profile,
            "network": self.network,
            "degraded": self.is_degraded,
            "unprotected": list(self.unprotected),
            "checked_at": rfc3339(self.checked_at),
        }

    def view(self) -> dict[str, Any]:
        """For the operator."""
        return self.summary() | {
            "requested": self.requested,
            "uid": self.uid,
            "limits": dict(self.limits),
            "tried": [trial.view() for trial in self.trials],
            **self.machine.view(),
        }


class SandboxInspector(Protocol):
    """Knows whether the walls hold."""

    @property
    def report(self) -> SandboxReport | None:
        """The newest; None before the first is done."""
        ...

    async def known(self) -> SandboxReport:
        """The newest, waiting for the first."""
        ...

    async def renew(self) -> SandboxReport:
        """Try everything again, now. Who asks while that goes on gets the same answer."""
        ...
