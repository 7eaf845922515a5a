"""Plans spawn requests for sandboxed processes: environment, limits, mounts, network, access to the egress proxy.

What is not listed here is not visible in the sandbox.
"""

import os
import pwd
import resource
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from app.core.errors import SandboxUnavailable, ToolUnavailable
from app.core.network_policy import BoundSecret, NetworkPolicy
from app.core.sandbox import PLAIN_OUTPUT_ENV, Backend, Command, EgressGrant, Isolation, Network, NetworkDecision
from app.core.sessions import Profile, Session, is_inside
from app.sandbox import syscalls
from app.sandbox.files.ownership import tool_owner
from app.sandbox.isolation import apply, bubblewrap, features
from app.sandbox.process.spawner import IsolationSpec, Mount, SpawnRequest

SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store")
CPU_INFO = "/sys/devices/system/cpu"
"""Where programs read the number of processors."""
RESOLV_CONF = "/etc/resolv.conf"
"""Often a link into a folder that is not visible otherwise."""
PYTHON_PATHS = (sys.base_prefix, sys.prefix)
"""The service's own interpreter."""
ADDRESS_SPACE_FACTOR = 4
"""Address space per byte of memory: interpreters reserve far more than they touch."""
USER_PROCESSES_FACTOR = 4
"""RLIMIT_NPROC counts all processes of a user, so it is a multiple of the limit of one call."""
PROTECTED = (".git/hooks/", ".git/config")
"""What git executes. Only bubblewrap can protect it: Landlock cannot exclude a path in a writable folder."""
TERMINAL_ENV = {"TERM": "xterm-256color"}
DATA_DIR_INSIDE = (
    "The data directory of the service is inside this workspace, and the sandbox of this machine (landlock) cannot "
    "hide it there. The operator can move it elsewhere, or allow user namespaces, so that bubblewrap is used."
)
LOOPBACK = "127.0.0.1"
BACKLOG = 128
PROXY_USER = "toolcrib"
NO_PROXY = "localhost,127.0.0.1,::1"

FindSecret = Callable[[str, str], str | None]
"""The value of a principal's secret by its name; None when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """The operator's settings, by their names in `[sandbox]`."""

    backend: Literal["auto", "bwrap", "landlock", "none"] = "auto"
    i_accept_unsandboxed: bool = False
    profile: Profile = Profile.WORKSPACE_WRITE
    network: Network = Network.NONE
    egress_degraded_ok: bool = False
    uid: int | None = None
    read_roots: tuple[Path, ...] = ()
    memory: int = 2 * 1024**3
    processes: int = 256
    file_size: int = 1024**3
    open_files: int = 1024
    cpu_seconds: int = 3600
    temporary: int = 256 * 1024**2

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "SandboxSettings":
        """Pick these fields from all settings."""
        known = {field.name: settings[field.name] for field in fields(cls) if field.name in settings}
        return cls(**known | {"read_roots": tuple(settings.get("read_roots", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLocation:
    """The working directory of one process and the workspace around it.

    `workspace` is the path the kernel knows, which has this `inode`; `root` is the path that users know. `hidden` are
    folders of the service inside it.
    """

    workspace: str
    root: str
    cwd: str
    inode: tuple[int, int] | None = None
    hidden: tuple[str, ...] = ()
    temp_dir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAccess:
    """How one process reaches the egress proxy.

    `listener` is a socket of the service; without it the child opens one in its own network namespace. `proxy` as in
    `IsolationSpec`.
    """

    env: dict[str, str] = field(default_factory=dict)
    proxy: int | None = None
    grant: EgressGrant | None = None
    listener: int | None = None


NO_PROXY_ACCESS = ProxyAccess()


@dataclass(frozen=True)
class SpawnPlanner:
    """Plans spawn requests. What does not change between two of them is computed once."""

    settings: SandboxSettings
    data_dir: str
    extras: tuple[Mount, ...] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @cached_property
    def identity(self) -> tuple[int, int] | None:
        """The user and group that processes become; None when the service is not root."""
        owner = tool_owner(self.settings.uid)
        return None if owner is None else (owner.uid, owner.gid)

    @cached_property
    def bwrap(self) -> str | None:
        """From absolute folders of PATH only, so that it does not depend on the working directory."""
        folders = self.environ.get("PATH", os.defpath).split(":")
        return shutil.which("bwrap", path=":".join(folder for folder in folders if folder.startswith("/")))

    @cached_property
    def options(self) -> tuple[str, ...]:
        return () if self.bwrap is None else features.supported_options(self.bwrap, bubblewrap.OPTIONAL)

    @cached_property
    def system(self) -> tuple[Mount, ...]:
        """What programs need to run, the service's interpreter included, as far as it exists and can be reached."""
        return self._visible(PYTHON_PATHS)

    @cached_property
    def _command_system(self) -> tuple[Mount, ...]:
        """The same without the service's interpreter where access to it would have to be granted: that takes longer
        than most commands run."""
        identity = self.identity
        return self._visible(
            path for path in PYTHON_PATHS if identity is None or not apply.closed_folders([path], *identity)
        )

    def _visible(self, python_paths: Iterable[str]) -> tuple[Mount, ...]:
        candidates = [*SYSTEM_PATHS, CPU_INFO, *python_paths, *map(str, self.settings.read_roots)]
        real = {path: os.path.realpath(path) for path in candidates if os.path.exists(path)}
        paths = list(dict.fromkeys([*(path for path in SYSTEM_PATHS if path in real), *real.values()]))
        outermost = [path for path in paths if not any(path != other and is_inside(path, other) for other in paths)]
        return tuple(Mount(path=path) for path in outermost if self.reaches(path))

    def reaches(self, path: str) -> bool:
        """Whether a process can access a path, or access can be granted."""
        if self.identity is None or syscalls.has_capabilities(syscalls.CAP_SYS_ADMIN):
            return True
        return not apply.closed_folders([path], *self.identity)

    def request(
        self,
        command: Command,
        isolation: Isolation,
        location: ProcessLocation,
        access: ProxyAccess = NO_PROXY_ACCESS,
    ) -> SpawnRequest:
        memory = min(command.memory or self.settings.memory, self.settings.memory)
        return SpawnRequest(
            argv=command.argv,
            env=self.environment(command, location) | dict(command.env) | access.env,
            cwd=location.cwd,
            identity=self.identity,
            limits=self.limits(memory),
            memory=memory,
            processes=self.settings.processes,
            has_terminal=command.tty is not None,
            isolation=self.isolation_spec(isolation, location, access.proxy, is_ours=command.has_channel),
        )

    def environment(self, command: Command, location: ProcessLocation) -> dict[str, str]:
        """Only harmless variables of the service's own environment are passed on."""
        own = {"HOME": location.root, "TMPDIR": location.temp_dir or "/tmp"}  # in bubblewrap /tmp is a tmpfs of its own
        return self._base_env | own | (PLAIN_OUTPUT_ENV if command.tty is None else TERMINAL_ENV)

    @cached_property
    def _base_env(self) -> dict[str, str]:
        name = _user_name(self.identity)
        zone = {"TZ": self.environ["TZ"]} if self.environ.get("TZ") else {}
        return zone | {
            "PATH": self.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "USER": name,
            "LOGNAME": name,
            "SHELL": "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh",
        }

    def limits(self, memory: int) -> dict[str, int]:
        """The kernel limits, never above those of the service itself."""
        return self._limits | {"AS": min(ADDRESS_SPACE_FACTOR * memory, self._limits["AS"])}

    @cached_property
    def _limits(self) -> dict[str, int]:
        settings = self.settings
        limits = {
            "AS": ADDRESS_SPACE_FACTOR * settings.memory,
            "FSIZE": settings.file_size,
            "NOFILE": settings.open_files,
            "CPU": settings.cpu_seconds,
            "CORE": 0,
        }
        if self.identity is not None:
            limits["NPROC"] = USER_PROCESSES_FACTOR * settings.processes
        return {name: _capped(name, limit) for name, limit in limits.items()}

    def isolation_spec(
        self, isolation: Isolation, location: ProcessLocation, proxy: int | None = None, *, is_ours: bool = False
    ) -> IsolationSpec:
        """`is_ours`: a program of the service, such as a REPL kernel, which needs the service's interpreter."""
        is_writable = isolation.profile is Profile.WORKSPACE_WRITE
        own = [Mount(path=location.workspace, is_writable=is_writable, inode=location.inode)]
        if location.root != location.workspace:
            own.append(replace(own[0], path=location.root))
        extras = [replace(extra, is_writable=extra.is_writable and is_writable) for extra in self.extras]
        resolver = [Mount(path=os.path.realpath(RESOLV_CONF))] if isolation.network is Network.FULL else []
        mounts = (*(self.system if is_ours else self._command_system), *resolver, *extras, *own)
        hidden = [
            path
            for path in dict.fromkeys((self.data_dir, *location.hidden))
            if any(is_inside(path, mount.path) and mount.path != path for mount in mounts)
        ]
        if isolation.backend is Backend.LANDLOCK:
            mounts, hidden = _exclude(mounts, hidden), []
        parents = (parent for path in hidden for mount in mounts for parent in _parent_mounts(mount, path))
        return IsolationSpec(
            backend=isolation.backend.value,
            mounts=(*mounts, *parents),
            hidden=tuple(hidden),
            protected=tuple(f"{location.workspace}/{path}" for path in PROTECTED) if is_writable else (),
            temp_dir=location.temp_dir,
            network=isolation.network.value,
            proxy=proxy,
            program=self.bwrap if isolation.backend is Backend.BWRAP else None,
            options=self.options if isolation.backend is Backend.BWRAP else (),
            tmpfs_bytes=self.settings.temporary,
        )


def network_of(mode: Network, policies: Iterable[NetworkPolicy | None]) -> Network:
    """The narrowest of the operator's mode and all policies. A policy is needed to reach any host in allowlist mode."""
    types = {policy.type for policy in policies if policy is not None}
    if mode is Network.NONE or "disabled" in types:
        return Network.NONE
    if "allowlist" in types:
        return Network.ALLOWLIST
    return Network.FULL if mode is Network.FULL else Network.NONE


def _exclude(mounts: Iterable[Mount], hidden: Iterable[str]) -> tuple[Mount, ...]:
    """Mounts without the hidden paths, for Landlock, whose rules only add access. Inside a writable directory a hidden
    path cannot be protected, because its parent could be renamed; so that is refused."""
    for path in hidden:
        if any(mount.is_writable and is_inside(path, mount.path) for mount in mounts):
            raise SandboxUnavailable(DATA_DIR_INSIDE)
        mounts = [part for mount in mounts for part in _around(mount, path)]
    return tuple(mounts)


def _around(mount: Mount, hidden: str) -> Iterator[Mount]:
    """The parts of a mount without a path that is hidden in it."""
    if not is_inside(hidden, mount.path):
        yield mount
    elif hidden != mount.path:
        with suppress(OSError), os.scandir(mount.path) as entries:
            for path in sorted(entry.path for entry in entries if not entry.is_symlink()):
                yield from _around(Mount(path=path), hidden)


def _parent_mounts(mount: Mount, hidden: str) -> Iterator[Mount]:
    """The folders between a writable mount and a path hidden in it. Each is mounted again: a mount point cannot be
    moved, and so neither can what is hidden in it."""
    inner = os.path.relpath(hidden, mount.path).split("/")[:-1] if is_inside(hidden, mount.path) else []
    for depth in range(1, len(inner) + 1) if mount.is_writable else ():
        yield Mount(path=os.path.join(mount.path, *inner[:depth]), is_writable=True)


def _user_name(identity: tuple[int, int] | None) -> str:
    try:
        return pwd.getpwuid(os.geteuid() if identity is None else identity[0]).pw_name
    except KeyError:
        return "toolcrib"


def _capped(name: str, limit: int) -> int:
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)


def allow_proxy(
    isolation: Isolation,
    session: Session,
    policy: NetworkPolicy | None,
    find_secret: FindSecret,
    report: Callable[[NetworkDecision], None],
) -> ProxyAccess:
    """Access to the egress proxy for an isolation that allows listed hosts. The caller closes the listener."""
    if isolation.network is not Network.ALLOWLIST:
        return NO_PROXY_ACCESS
    bound = tuple(_bind_secrets(session, find_secret))
    placeholders = {secret.name: secret.placeholder for secret in bound}
    policies = (policy, session.network_policy)
    if isolation.backend is Backend.BWRAP:
        grant = EgressGrant(owner=session.principal, policies=policies, report=report, secrets=bound)
        env = _proxy_env(f"http://{LOOPBACK}:{apply.PROXY_PORT}") | placeholders
        return ProxyAccess(env=env, proxy=0, grant=grant)
    # Every process of this machine can connect to a local port, so a client has to authenticate with a token.
    token = secrets.token_urlsafe(24)
    grant = EgressGrant(owner=session.principal, policies=policies, report=report, secrets=bound, token=token)
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        port: int = listener.getsockname()[1]
        env = _proxy_env(f"http://{PROXY_USER}:{token}@{LOOPBACK}:{port}") | placeholders
        return ProxyAccess(env=env, proxy=port, grant=grant, listener=listener.detach())


def _bind_secrets(session: Session, find_secret: FindSecret) -> Iterator[BoundSecret]:
    """One random placeholder for each name, and a secret for each domain it is bound to."""
    names = dict[str, str]()
    for secret in session.network_policy.domain_secrets if session.network_policy else ():
        if find_secret(session.principal, secret.name) is None:
            raise ToolUnavailable(f"The session's network policy names the secret {secret.name}, which does not exist.")
        placeholder = names.setdefault(secret.name, f"tsec_{secrets.token_hex(16)}")
        yield BoundSecret(secret.name, secret.domain, placeholder)


def _proxy_env(url: str) -> dict[str, str]:
    """Programs read the proxy variables in upper or lower case."""
    env = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": NO_PROXY}
    return env | {name.lower(): value for name, value in env.items()}
