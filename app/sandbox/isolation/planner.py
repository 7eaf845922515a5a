"""Plans: what goes into the order of a walled process. What is not named here is not there behind the walls."""

import os
import pwd
import resource
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from app.core.errors import SandboxUnavailable
from app.core.network_policy import NetworkPolicy
from app.core.sandbox import Backend, Command, Isolation, Network
from app.core.sessions import Profile, is_inside
from app.sandbox.files.ownership import tool_owner
from app.sandbox.isolation import bubblewrap, features, path_access, privileges
from app.sandbox.isolation.proxy_access import NO_EXIT, ProxyAccess
from app.sandbox.process.spawn_request import IsolationSpec, Mount, SpawnRequest

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store")
PROCESSORS = "/sys/devices/system/cpu"
"""Where programs look how many threads are worth while."""
RESOLVER = "/etc/resolv.conf"
"""Who resolves names. It is often a link to where nothing else is to be seen."""
OWN = (sys.base_prefix, sys.prefix)
"""Where our own interpreter is."""
ADDRESS_SPACE = 4
"""How many times the memory a process may reserve. Interpreters reserve far more than they ever touch."""
CROWD = 4
"""How many times the processes of one call the kernel allows all calls of one user together."""
PROTECTED = (".git/hooks/", ".git/config")
"""What git runs by itself, for whoever uses it next. Only where the walls can: in a writable folder Landlock cannot."""
PLAIN = {"TERM": "dumb", "NO_COLOR": "1", "COLORTERM": "", "PAGER": "cat", "GIT_PAGER": "cat", "GH_PAGER": "cat"}
TERMINAL = {"TERM": "xterm-256color"}
SURROUNDING = (
    "The service keeps its records inside this workspace, and the walls of this machine (landlock) cannot hide them "
    "there. The operator can move the data directory elsewhere, or allow user namespaces, so that bubblewrap is used."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """What the operator set. The names are those of the settings."""

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
    def of(cls, given: Mapping[str, Any]) -> "SandboxSettings":
        """Those of all settings that count here."""
        known = {one.name: given[one.name] for one in fields(cls) if one.name in given}
        return cls(**known | {"read_roots": tuple(given.get("read_roots", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLocation:
    """Where one process stands: its folder and the workspace around it.

    `workspace` is the kernel's name for it, with which its `inode` goes; `root` is what everybody calls it. What is
    `hidden` lies in it and belongs to the service.
    """

    workspace: str
    root: str
    cwd: str
    inode: tuple[int, int] | None = None
    hidden: tuple[str, ...] = ()
    temporary: str | None = None


@dataclass(frozen=True)
class SpawnPlanner:
    """Makes orders. What does not change between two of them is found out once."""

    settings: SandboxSettings
    data_dir: str
    extras: tuple[Mount, ...] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @cached_property
    def identity(self) -> tuple[int, int] | None:
        """Whom processes become. Only root can make them somebody else."""
        owner = tool_owner(self.settings.uid)
        return None if owner is None else (owner.uid, owner.gid)

    @cached_property
    def bwrap(self) -> str | None:
        """By whole paths only: none that depends on where the service was started."""
        folders = self.environ.get("PATH", os.defpath).split(":")
        return shutil.which("bwrap", path=":".join(folder for folder in folders if folder.startswith("/")))

    @cached_property
    def options(self) -> tuple[str, ...]:
        return () if self.bwrap is None else features.options(self.bwrap, bubblewrap.OPTIONAL)

    @cached_property
    def system(self) -> tuple[Mount, ...]:
        """What programs need to run, ours too, as far as it is there and can be reached."""
        return self._seen(OWN)

    @cached_property
    def _system_of_commands(self) -> tuple[Mount, ...]:
        """The same without our own interpreter, where a way to it would have to be made: that takes longer than most
        commands run."""
        identity = self.identity
        return self._seen(path for path in OWN if identity is None or not path_access.closed([path], *identity))

    def _seen(self, own: Iterable[str]) -> tuple[Mount, ...]:
        wanted = [*SYSTEM, PROCESSORS, *own, *map(str, self.settings.read_roots)]
        real = {path: os.path.realpath(path) for path in wanted if os.path.exists(path)}
        paths = dict.fromkeys([*(path for path in SYSTEM if path in real), *real.values()])
        return tuple(Mount(path=path) for path in _outermost(paths) if self.reaches(path))

    def reaches(self, path: str) -> bool:
        """Whether a process can come to a path at all, or a way can be made for it."""
        if self.identity is None or privileges.has(privileges.CAP_SYS_ADMIN):
            return True
        return not path_access.closed([path], *self.identity)

    def order(
        self, command: Command, walls: Isolation, stand: ProcessLocation, way: ProxyAccess = NO_EXIT
    ) -> SpawnRequest:
        memory = min(command.memory or self.settings.memory, self.settings.memory)
        return SpawnRequest(
            argv=command.argv,
            env=self.environment(command, stand) | dict(command.env) | way.env,
            cwd=stand.cwd,
            identity=self.identity,
            limits=self.limits(memory),
            memory=memory,
            processes=self.settings.processes,
            has_terminal=command.tty is not None,
            enclosure=self.enclosure(walls, stand, way.proxy, is_ours=command.has_channel),
        )

    def environment(self, command: Command, stand: ProcessLocation) -> dict[str, str]:
        """The same for everybody: nothing of the service's own but what is harmless."""
        own = {"HOME": stand.root, "TMPDIR": stand.temporary or "/tmp"}  # behind these walls /tmp is its own
        return self._basics | own | (PLAIN if command.tty is None else TERMINAL)

    @cached_property
    def _basics(self) -> dict[str, str]:
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
        """The kernel's own, never above what the service itself has."""
        return self._limits | {"AS": min(ADDRESS_SPACE * memory, self._limits["AS"])}

    @cached_property
    def _limits(self) -> dict[str, int]:
        settings = self.settings
        wanted = {
            "AS": ADDRESS_SPACE * settings.memory,
            "FSIZE": settings.file_size,
            "NOFILE": settings.open_files,
            "CPU": settings.cpu_seconds,
            "CORE": 0,
        }
        if self.identity is not None:
            wanted["NPROC"] = CROWD * settings.processes
        return {name: _within_reach(name, limit) for name, limit in wanted.items()}

    def enclosure(
        self, walls: Isolation, stand: ProcessLocation, proxy: int | None = None, *, is_ours: bool = False
    ) -> IsolationSpec:
        is_writable = walls.profile is Profile.WORKSPACE_WRITE
        own = [Mount(path=stand.workspace, is_writable=is_writable, inode=stand.inode)]
        if stand.root != stand.workspace:
            own.append(replace(own[0], path=stand.root))
        extras = [replace(one, is_writable=one.is_writable and is_writable) for one in self.extras]
        names = [Mount(path=os.path.realpath(RESOLVER))] if walls.network is Network.FULL else []
        places = (*(self.system if is_ours else self._system_of_commands), *names, *extras, *own)
        hidden = [path for path in dict.fromkeys((self.data_dir, *stand.hidden)) if _is_seen(path, places)]
        if walls.backend is Backend.LANDLOCK:
            places, hidden = _without(places, hidden), []
        steps = (step for path in hidden for place in places for step in _steps(place, path))
        return IsolationSpec(
            backend=walls.backend.value,
            places=(*places, *steps),
            hidden=tuple(hidden),
            protected=tuple(f"{stand.workspace}/{path}" for path in PROTECTED) if is_writable else (),
            temporary=stand.temporary,
            network=walls.network.value,
            proxy=proxy,
            program=self.bwrap if walls.backend is Backend.BWRAP else None,
            options=self.options if walls.backend is Backend.BWRAP else (),
            temporary_bytes=self.settings.temporary,
        )


def network_of(mode: Network, policies: Iterable[NetworkPolicy | None]) -> Network:
    """The narrowest of what the operator lets out and what every policy says. Who lists nobody reaches nobody."""
    types = {policy.type for policy in policies if policy is not None}
    if mode is Network.NONE or "disabled" in types:
        return Network.NONE
    if "allowlist" in types:
        return Network.ALLOWLIST
    return Network.FULL if mode is Network.FULL else Network.NONE


def _is_seen(path: str, places: Iterable[Mount]) -> bool:
    """Whether a folder lies in what can be seen, or would, if it were not for a place further in."""
    return any(is_inside(path, place.path) and place.path != path for place in places)


def _without(places: Iterable[Mount], hidden: Iterable[str]) -> tuple[Mount, ...]:
    """Landlock knows allowed trees only, so what is hidden in one is left out of it. Where things can be made nothing
    can be left out: not even rights on the hidden folder would help, as the folder it is in can be turned over."""
    for path in hidden:
        if any(place.is_writable and is_inside(path, place.path) for place in places):
            raise SandboxUnavailable(SURROUNDING)
        places = [part for place in places for part in _around(place, path)]
    return tuple(places)


def _around(place: Mount, hidden: str) -> Iterator[Mount]:
    """The parts of a place without one that is hidden in it."""
    if not is_inside(hidden, place.path):
        yield place
    elif hidden != place.path:
        with suppress(OSError), os.scandir(place.path) as entries:
            for path in sorted(entry.path for entry in entries if not entry.is_symlink()):
                yield from _around(Mount(path=path), hidden)


def _steps(place: Mount, hidden: str) -> Iterator[Mount]:
    """The folders on the way from a writable place to what is hidden in it. Each is mounted once more: what is mounted
    cannot be moved away, and with it what is hidden."""
    inner = os.path.relpath(hidden, place.path).split("/")[:-1] if is_inside(hidden, place.path) else []
    for depth in range(1, len(inner) + 1) if place.is_writable else ():
        yield Mount(path=os.path.join(place.path, *inner[:depth]), is_writable=True)


def _outermost(paths: Iterable[str]) -> list[str]:
    given = list(paths)
    return [path for path in given if not any(path != other and is_inside(path, other) for other in given)]


def _user_name(identity: tuple[int, int] | None) -> str:
    try:
        return pwd.getpwuid(os.geteuid() if identity is None else identity[0]).pw_name
    except KeyError:
        return "toolcrib"


def _within_reach(name: str, limit: int) -> int:
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)
