"""Bubblewrap: the file system of one sandboxed process, made of nothing but its mounts.

The root is an empty read-only folder. Into it come the mounts by their own paths, a new /dev and /proc, and tmpfs
where programs expect to write. Mounts are made parents first, so the more specific one wins: a mount inside a hidden
folder is visible, a hidden folder inside a mount is not. Writable mounts are bound by a descriptor, so that nothing
that was put in their place later is bound instead.

A protected path in a writable mount is bound once more, read-only, and so is its folder, writable: a mount point can
be neither moved nor replaced. One that does not exist yet is created empty, to be bound as well, unless its folder is
missing, too.
"""

import errno
import fcntl
import os
import signal
import stat
import termios
from collections.abc import Sequence

from app.sandbox.files.openat2 import O_PATH, open_beneath
from app.sandbox.isolation.landlock import open_mount

TYPE_CHECKING = False  # the spawner needs this module, and has no use for what only types need
if TYPE_CHECKING:
    from app.sandbox.process.spawner import IsolationSpec, Mount, SpawnRequest

OPTIONAL = ("--bind-fd", "--disable-userns")
"""Options that not every version has, and that make the isolation stronger."""

NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
TMPFS = ("/tmp", "/run", "/dev/shm")
TMPFS_BYTES = {"/run": 16 * 1024 * 1024}
VAR_TMP = "/var/tmp"
"""A symlink to /tmp, or a tmpfs of its own where a mount around or in it prevents that."""

EMPTY_BYTES = 4096
SETSID = "/usr/bin/setsid"
OWN_PREFIX = "TOOLCRIB_"
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
MAX_LINKS = 40

Links = list[tuple[str, str]]
"""The path and the target of each symlink."""


def follow_links(path: str) -> tuple[str, Links]:
    """A path without symlinks, and those that were followed. A missing part is taken as it is named.

    Raises `OSError` for a loop.
    """
    resolved, left, links = "/", _parts(path), Links()
    while left:
        part = left.pop(0)
        step = os.path.dirname(resolved) if part == ".." else os.path.join(resolved, part)
        try:
            target = os.readlink(step)
        except OSError:
            resolved = step
            continue
        if len(links) == MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        links.append((step, target))
        resolved = "/" if target.startswith("/") else resolved
        left = _parts(target) + left
    return resolved, links


def resolve(path: str) -> str:
    """A path without symlinks."""
    return follow_links(path)[0]


def is_below(path: str, folder: str) -> bool:
    """Whether a path is inside a folder; a folder is not below itself."""
    return path != folder and path.startswith(folder.rstrip("/") + "/")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


class Bind:
    """A path that is visible under the same path inside. `fd` is its descriptor, if it is bound by one."""

    def __init__(self, path: str, is_writable: bool = False, fd: int | None = None) -> None:
        self.path = path
        self.is_writable = is_writable
        self.fd = fd

    def arguments(self) -> list[str]:
        kind = "--bind" if self.is_writable else "--ro-bind"
        return [kind, self.path, self.path] if self.fd is None else [f"{kind}-fd", str(self.fd), self.path]


class MountPlan:
    """What is visible inside: binds, symlinks, folders covered by an empty one, and files masked by /dev/null."""

    def __init__(self, binds: Sequence[Bind]) -> None:
        self.binds = list(binds)
        self.links: Links = []
        self.covered: list[str] = []
        self.masked: list[str] = []

    def nearest(self, path: str) -> Bind | None:
        """The bind by which a path is visible."""
        around = [bind for bind in self.binds if path == bind.path or is_below(path, bind.path)]
        return max(around, key=lambda bind: len(bind.path), default=None)


def wrap(request: "SpawnRequest", plan: MountPlan, seccomp_program: bytes) -> list[str]:
    """The bwrap command that runs the program of a request with its environment. Raises `OSError`.

    A variable such as LD_PRELOAD would also apply to bwrap itself, so bwrap has to be started with what is left in
    `request.env`: only the service's own marks.
    """
    spec = request.isolation
    if spec is None or not spec.program or not os.path.isabs(spec.program):
        raise OSError(errno.ENOENT, "the path of bwrap has to be absolute")
    arguments = bwrap_arguments(request, spec, plan)
    for name in [name for name in request.env if not name.startswith(OWN_PREFIX)]:
        arguments += ["--setenv", name, request.env.pop(name)]
    arguments += ["--seccomp", str(_memfd(seccomp_program))]
    arguments_fd = _memfd(b"".join(os.fsencode(argument) + b"\0" for argument in arguments))
    command = [spec.program, "--args", str(arguments_fd), "--"]
    if not has_own_session(request, plan):
        return [*command, *request.argv]
    _release_terminal()
    return [*command, SETSID, "-c", *request.argv]


def bwrap_arguments(request: "SpawnRequest", spec: "IsolationSpec", plan: MountPlan) -> list[str]:
    """The arguments of bwrap, without the environment and the seccomp program."""
    arguments = [*NAMESPACES, "--die-with-parent", "--cap-drop", "ALL"]
    if spec.network == "none":
        arguments.append("--unshare-net")
    if "--disable-userns" in spec.options:
        arguments.append("--disable-userns")
    if not request.has_terminal:
        arguments.append("--new-session")
    for mount in _mount_arguments(spec, plan):
        arguments += mount
    return [*arguments, "--chdir", request.cwd]


def plan_mounts(spec: "IsolationSpec", mounts: "Sequence[Mount]") -> MountPlan:
    """Look at what exists now, and open what is writable."""
    by_fd = "--bind-fd" in spec.options
    plan = _plan(mounts, [resolve(path) for path in spec.hidden], by_fd)
    plan.binds += _protections(spec.protected, plan, by_fd)
    return plan


def _plan(mounts: "Sequence[Mount]", hidden: Sequence[str], by_fd: bool) -> MountPlan:
    binds: dict[str, Bind] = {}
    links: dict[str, str] = {}
    for mount in sorted(mounts, key=lambda mount: not mount.is_writable):
        path, followed = follow_links(mount.path)
        links.update(followed)
        if path not in binds and (bind := _bind(mount, path, by_fd)):
            binds[path] = bind
    plan = MountPlan([bind for bind in binds.values() if not _is_redundant(bind, binds, hidden)])
    plan.links = [(link, target) for link, target in links.items() if plan.nearest(link) is None]
    for path in hidden:
        if plan.nearest(path) and os.path.lexists(path):
            (plan.covered if os.path.isdir(path) else plan.masked).append(path)
    return plan


def warm_up(mount: "Mount") -> None:
    """Plan one mount without using it."""
    for bind in _plan([mount], (), False).binds:
        bind.arguments()


def require_program(request: "SpawnRequest", plan: MountPlan) -> None:
    """The program exists inside; bwrap would report that only as text. Raises `OSError`."""
    name, reason = request.argv[0], errno.ENOENT
    folders = [""] if "/" in name else request.env.get("PATH", DEFAULT_PATH).split(":")
    for folder in folders:
        path = resolve(os.path.join(request.cwd, folder, name))
        if plan.nearest(path) is None or not os.path.isfile(path):
            continue
        if os.access(path, os.X_OK):
            return
        reason = errno.EACCES
    raise OSError(reason, os.strerror(reason), name)


def has_own_session(request: "SpawnRequest", plan: MountPlan) -> bool:
    """Whether the program gets the terminal in a session of its own.

    Else bwrap is in the foreground process group with it, and Ctrl-C ends bwrap and everything in it.
    """
    return request.has_terminal and plan.nearest(resolve(SETSID)) is not None and os.path.exists(SETSID)


def _mount_arguments(spec: "IsolationSpec", plan: MountPlan) -> list[list[str]]:
    """Parents first; at one path the bind, then what covers it. The remounts come last."""
    taken, tmpfs = {bind.path for bind in plan.binds}, [*TMPFS]
    mounts = [("/dev", ["--dev", "/dev"]), ("/proc", ["--proc", "/proc"])]
    if plan.nearest(VAR_TMP) is None and not any(is_below(path, VAR_TMP) for path in taken):
        mounts.append((VAR_TMP, ["--symlink", "/tmp", VAR_TMP]))
    else:
        tmpfs.append(VAR_TMP)
    for path in tmpfs:
        # Inside a bound folder no mount point can be created.
        if path not in taken and (path.startswith("/dev/") or plan.nearest(path) is None or os.path.isdir(path)):
            mounts.append((path, _tmpfs(path, min(spec.tmpfs_bytes, TMPFS_BYTES.get(path, spec.tmpfs_bytes)))))
    mounts += [(bind.path, bind.arguments()) for bind in plan.binds]
    mounts += [(link, ["--symlink", target, link]) for link, target in plan.links]
    mounts += [(path, _tmpfs(path, EMPTY_BYTES)) for path in plan.covered]
    mounts += [(path, ["--ro-bind", "/dev/null", path]) for path in plan.masked]
    last = [["--remount-ro", path] for path in ("/", "/dev", *plan.covered)]
    return [arguments for _, arguments in sorted(mounts, key=lambda mount: len(_parts(mount[0])))] + last


def _tmpfs(path: str, size: int) -> list[str]:
    return ["--size", str(size), "--tmpfs", path]


def _bind(mount: "Mount", path: str, by_fd: bool) -> Bind | None:
    try:
        fd = open_mount(mount)
    except (FileNotFoundError, NotADirectoryError):
        if mount.is_writable:
            raise
        return None
    if mount.is_writable and by_fd:
        os.set_inheritable(fd, True)
        return Bind(path, True, fd)
    os.close(fd)
    return Bind(path, mount.is_writable)


def _is_redundant(bind: Bind, binds: dict[str, Bind], hidden: Sequence[str]) -> bool:
    """Whether the next bind around it shows it already, read-only as well, and nothing between hides it.

    A writable one is never redundant: it may be listed so that its path cannot be moved.
    """
    around = [path for path in (*binds, *hidden) if is_below(bind.path, path)]
    parent = max(around, key=len, default="")
    return not bind.is_writable and parent in binds and parent not in hidden and not binds[parent].is_writable


def _protections(protected: Sequence[str], plan: MountPlan, by_fd: bool) -> list[Bind]:
    binds: dict[str, Bind] = {}
    for path in protected:
        target = resolve(path.rstrip("/"))
        around, folder = plan.nearest(target), os.path.dirname(target)
        if around is None or not around.is_writable or target == around.path:
            continue
        folder_bind = _bind_below(around, folder, by_fd, is_writable=True)
        if folder_bind is None:
            continue
        _make_if_missing(around, target, is_folder=path.endswith("/") or os.path.basename(target) == "hooks")
        if folder != around.path:
            binds[folder] = folder_bind
        if (bind := _bind_below(around, target, by_fd, is_writable=False)) is not None:
            binds[target] = bind
    return list(binds.values())


def _bind_below(around: Bind, path: str, by_fd: bool, *, is_writable: bool) -> Bind | None:
    """A bind of a path below another one, not through a symlink put there meanwhile; None if it does not exist."""
    root = os.open(around.path, O_PATH | os.O_CLOEXEC)
    try:
        fd = open_beneath(root, os.path.relpath(path, around.path), O_PATH, follow=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    finally:
        os.close(root)
    if by_fd:
        os.set_inheritable(fd, True)
        return Bind(path, is_writable, fd)
    os.close(fd)
    return Bind(path, is_writable)


def _make_if_missing(around: Bind, path: str, *, is_folder: bool) -> None:
    root = os.open(around.path, O_PATH | os.O_CLOEXEC)
    folder = open_beneath(root, os.path.relpath(os.path.dirname(path), around.path), O_PATH, follow=False)
    os.close(root)
    try:
        if not stat.S_ISDIR(os.fstat(folder).st_mode):
            return
        if is_folder:
            os.mkdir(os.path.basename(path), 0o755, dir_fd=folder)
        else:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(os.path.basename(path), flags, 0o644, dir_fd=folder))
    except FileExistsError:
        pass
    finally:
        os.close(folder)


def _release_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # releasing a terminal sends SIGHUP
    try:
        fcntl.ioctl(0, termios.TIOCNOTTY)
    except OSError as error:
        if error.errno != errno.ENOTTY:  # it is no controlling terminal yet
            raise
    finally:
        signal.signal(signal.SIGHUP, before)


def _memfd(data: bytes) -> int:
    """A file in memory that bwrap reads by its descriptor."""
    fd = os.memfd_create("toolcrib", 0)
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
