"""Isolation that a child applies to itself just before it executes the program of a model.

The order matters: first what needs root, then the privileges are dropped, and last come the filters that forbid
changing any of it. No step is skipped: a step that fails ends the start.
"""

import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from app.sandbox import syscalls
from app.sandbox.isolation import bubblewrap, landlock, seccomp
from app.sandbox.isolation.bubblewrap import follow_links, is_below, resolve
from app.sandbox.syscalls import check_errno, libc, prctl

TYPE_CHECKING = False  # the spawner needs this module, and has no use for what only types need
if TYPE_CHECKING:
    from typing import Literal

    from app.sandbox.process.spawner import IsolationSpec, Mount, SpawnRequest

    Stage = Literal["isolation", "cwd", "program"]

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
TMPFS_OPTIONS = b"mode=0755,size=256k,nr_inodes=512"
PROXY_PORT = 3128
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
GET_DUMPABLE, SET_DUMPABLE = 3, 4
BACKLOG = 128


class IsolationFailed(OSError):
    """A step failed; `stage` says whether it was the isolation, the working directory or the program."""

    def __init__(self, stage: "Stage", step: str, error: OSError) -> None:
        super().__init__(error.errno or errno.EIO, f"{step}: {error.strerror or error}", error.filename)
        self.stage = stage


class _TempDirMount:
    """The folder for temporary files, with the fields of a `Mount`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_writable = True
        self.inode = None


def prepare() -> None:
    """Compute once, in the process that forks, what every child would else compute."""
    landlock.abi()
    for has_namespaces in (True, False):
        seccomp.program("none", has_namespaces=has_namespaces)
        seccomp.program("allowlist", has_namespaces=has_namespaces)
        seccomp.program("full", has_namespaces=has_namespaces)


def warm_up() -> None:
    """Run the same code without effect: copy-on-write pages that were touched once are faster afterwards."""
    mount = _TempDirMount("/bin")
    mount.is_writable = False
    with suppress(OSError):
        closed_folders(["/usr/bin"], 0, 0)
        syscalls.has_capabilities(syscalls.CAP_SYS_ADMIN)
        landlock.warm_up(mount.path)
        bubblewrap.warm_up(mount)  # type: ignore[arg-type]


def apply(request: "SpawnRequest", send_listener: Callable[[int], None] | None = None) -> list[str]:
    """Isolate this process as requested; the command that is to be executed in it, with what is then in `request.env`.

    The process has one thread, and its stdio is in place. All other descriptors must be closed or close-on-exec; those
    opened here are needed. `send_listener` gets the listener of the process's own network namespace. Without an
    isolation only the user changes. Raises `IsolationFailed`.
    """
    parent, spec = os.getppid(), request.isolation
    if spec is None:
        _become_user(request)
        return list(request.argv)
    _check(spec, send_listener)
    mounts = _mounts(spec)
    if request.identity is not None and os.geteuid() == 0:
        with _step("path access"):
            grant_path_access(mounts, *request.identity)
    listener = _network_namespace(spec, as_root=True)
    _become_user(request)
    if listener is None:
        listener = _network_namespace(spec, as_root=False)
    if listener is not None and send_listener is not None:
        with _step("listener"):
            send_listener(listener)
            os.close(listener)
    with _step("capabilities"):
        syscalls.drop_privileges()
        syscalls.die_with_parent(parent)
    with _step("working directory", "cwd"):
        os.chdir(request.cwd)
    return _apply_backend(request, spec, mounts)


def _apply_backend(request: "SpawnRequest", spec: "IsolationSpec", mounts: "tuple[Mount, ...]") -> list[str]:
    if spec.backend == "bwrap":
        with _step("bwrap"):
            plan = bubblewrap.plan_mounts(spec, mounts)
        with _step("program", "program"):
            bubblewrap.require_program(request, plan)
        with _step("bwrap"):
            return bubblewrap.wrap(request, plan, seccomp.program(spec.network, has_namespaces=True))
    if spec.backend == "landlock":
        with _step("landlock"):
            terminal = os.ttyname(0) if request.has_terminal else None
            landlock.restrict(mounts, network=spec.network, proxy=spec.proxy, terminal=terminal)
        with _step("seccomp"):
            seccomp.install(seccomp.program(spec.network, has_namespaces=False))
    return list(request.argv)


def _become_user(request: "SpawnRequest") -> None:
    if request.identity is not None and (os.geteuid(), os.getegid()) != tuple(request.identity):
        with _step("identity"):
            syscalls.become_user(*request.identity)


def _check(spec: "IsolationSpec", send_listener: Callable[[int], None] | None) -> None:
    """The specification is consistent, and can be enforced."""
    is_allowlist = spec.network == "allowlist"
    with _step("request"):
        if spec.backend not in ("bwrap", "landlock", "none"):
            raise OSError(errno.EINVAL, f"there is no backend called {spec.backend}")
        if spec.network not in ("none", "allowlist", "full"):
            raise OSError(errno.EINVAL, f"there is no network called {spec.network}")
        if _has_own_network(spec) and send_listener is None:
            raise OSError(errno.EINVAL, "the listener of a network namespace needs a receiver")
        if is_allowlist and spec.backend == "bwrap" and spec.proxy != 0:
            raise OSError(errno.EINVAL, "in bwrap a proxy can be reached only by a listener in the namespace")
        if is_allowlist and spec.backend == "landlock" and not spec.proxy:
            raise OSError(errno.EINVAL, "Landlock needs the port of the proxy")
        if spec.backend == "landlock" and spec.hidden:
            _check_hidden(spec)


def _check_hidden(spec: "IsolationSpec") -> None:
    visible = [resolve(mount.path) for mount in _mounts(spec)]
    for path in spec.hidden:
        if any(resolve(path) == mount or is_below(resolve(path), mount) for mount in visible):
            raise OSError(errno.EINVAL, "Landlock cannot hide a path inside a mount", path)


def _mounts(spec: "IsolationSpec") -> "tuple[Mount, ...]":
    if spec.temp_dir is None:
        return tuple(spec.mounts)
    return (*spec.mounts, _TempDirMount(spec.temp_dir))  # type: ignore[arg-type]


@contextmanager
def _step(name: str, stage: "Stage" = "isolation") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise IsolationFailed(stage, name, error) from error


def closed_folders(paths: Iterable[str], user: int, group: int) -> list[str]:
    """The folders on the way to these paths that this user, without supplementary groups, cannot enter."""
    folders: set[str] = set()
    for path in paths:
        target, links = follow_links(path)
        folders.update(parent for step in (target, *(link for link, _ in links)) for parent in _parents(step))
    return sorted(folder for folder in folders if not _can_enter(folder, user, group))


def grant_path_access(mounts: "Sequence[Mount]", user: int, group: int) -> None:
    """Make the mounts reachable for this user, if needed in a mount namespace. Raises `OSError`.

    A service that runs as root keeps its workspaces in folders closed to other users, and may itself be installed below
    /root. A child that runs as another user has to reach them by their ordinary paths. So each closed folder is
    covered by an empty tmpfs, in which only the requested mounts are.
    """
    closed = closed_folders((mount.path for mount in mounts), user, group)
    if not closed:
        return
    if not syscalls.has_capabilities(syscalls.CAP_SYS_ADMIN):
        raise PermissionError(errno.EACCES, "the user of the process cannot enter it", closed[0])
    check_errno(libc().unshare(CLONE_NEWNS))
    check_errno(libc().mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    links = [link for mount in mounts for link in follow_links(mount.path)[1]]
    old_umask = os.umask(0o022)
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    for path, fd in _mount_steps(mounts, closed):
        if fd is None:
            check_errno(libc().mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, TMPFS_OPTIONS))
        else:
            _bind(path, fd)
    for link, target in links:
        if not os.path.lexists(link):  # else it came with the mount that it is in
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(target, link)
    os.umask(old_umask)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/", *("/".join(parts[:length]) for length in range(2, len(parts)))]


def _can_enter(folder: str, user: int, group: int) -> bool:
    try:
        status = os.stat(folder)
    except OSError:
        return True  # opening the mount will fail with the right error
    if status.st_uid == user:
        return bool(status.st_mode & stat.S_IXUSR)
    return bool(status.st_mode & (stat.S_IXGRP if status.st_gid == group else stat.S_IXOTH))


def _mount_steps(mounts: "Sequence[Mount]", closed: Sequence[str]) -> list[tuple[str, int | None]]:
    """What is covered by a tmpfs (None) and what is bound back there, by a descriptor opened before. Parents first.

    A folder below a cover need not be covered, and what is below a bound folder has come with it.
    """
    steps: list[tuple[str, int | None]] = []
    by_path = {resolve(mount.path): mount for mount in sorted(mounts, key=lambda mount: mount.is_writable)}
    for path in sorted({*closed, *by_path}):
        is_covered = next((fd is None for above, fd in reversed(steps) if is_below(path, above)), False)
        if path in closed:
            steps += [] if is_covered else [(path, None)]
        elif is_covered and (fd := _open_if_there(by_path[path])) is not None:
            steps.append((path, fd))
    return steps


def _open_if_there(mount: "Mount") -> int | None:
    try:
        return landlock.open_mount(mount)
    except FileNotFoundError:
        if mount.is_writable:
            raise
        return None


def _bind(path: str, fd: int) -> None:
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444))
    check_errno(libc().mount(f"/proc/self/fd/{fd}".encode(), os.fsencode(path), None, MS_BIND | MS_REC, None))
    os.close(fd)


def _has_own_network(spec: "IsolationSpec") -> bool:
    return spec.backend == "bwrap" and spec.network == "allowlist" and spec.proxy == 0


def _network_namespace(spec: "IsolationSpec", *, as_root: bool) -> int | None:
    """Enter a new network namespace, if there is to be one and this user can; its listener.

    The listener is opened inside and sent to the service by its descriptor, which stays in that namespace. So neither
    a relay nor a named socket is needed.
    """
    if not _has_own_network(spec):
        return None
    if as_root and not syscalls.has_capabilities(syscalls.CAP_SYS_ADMIN, syscalls.CAP_NET_ADMIN):
        return None
    with _step("network"):
        if as_root:
            check_errno(libc().unshare(CLONE_NEWNET))
        else:
            _enter_user_and_network_namespace()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", PROXY_PORT))
            listener.listen(BACKLOG)
            return listener.detach()


def _enter_user_and_network_namespace() -> None:
    """An ordinary user needs a user namespace around the network namespace; it maps only this user."""
    user, group = os.geteuid(), os.getegid()
    check_errno(libc().unshare(CLONE_NEWUSER | CLONE_NEWNET))
    # A process that has changed its user cannot open its own files in /proc until it executes a program.
    dumpable = prctl(GET_DUMPABLE)
    prctl(SET_DUMPABLE, 1)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    prctl(SET_DUMPABLE, dumpable if dumpable == 1 else 0)
