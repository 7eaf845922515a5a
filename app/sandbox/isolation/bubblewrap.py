"""Bubblewrap: a world of its own for one process, made of nothing but the places it was promised.

The root is an empty folder that cannot be written. Into it come the places by their own paths, a new /dev and /proc,
and folders in memory where programs expect to leave things. Mounts are made parents first, so the more exact word
wins: a place inside a hidden folder is seen, a hidden folder inside a place is not. What can be written is bound by
a handle, so that nothing else can have come to stand there when bwrap looks.

What is protected in a writable place is bound once more, unwritable, and so is the folder it stands in, writable:
what is mounted can be neither moved away nor replaced. What is not there yet is made, empty, to be held as well,
unless the folder for it is missing too.
"""

import errno
import fcntl
import os
import signal
import stat
import termios
from collections.abc import Sequence

from app.sandbox.files.openat2 import O_PATH, open_beneath
from app.sandbox.isolation.landlock import opened_place
from app.sandbox.isolation.path_access import Links, follow, is_below, real

TYPE_CHECKING = False  # the spawner needs this module, and has no use for what only types need
if TYPE_CHECKING:
    from app.sandbox.process.spawn_request import IsolationSpec, Mount, SpawnRequest

OPTIONAL = ("--bind-fd", "--disable-userns")
"""Options that not every version has, and that make the walls better where they are there."""

NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
IN_MEMORY = ("/tmp", "/run", "/dev/shm")
SMALL = {"/run": 16 * 1024 * 1024}
SECOND_TEMPORARY = "/var/tmp"
"""It is the first one, or where that cannot be because of a place around or in it, one more."""

NOTHING_BYTES = 4096
SET_TERMINAL = "/usr/bin/setsid"
OURS = "TOOLCRIB_"
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class Bind:
    """Something from outside that is seen by the same path inside. `fd` is a handle on it, if it is bound by one."""

    def __init__(self, path: str, is_writable: bool = False, fd: int | None = None) -> None:
        self.path = path
        self.is_writable = is_writable
        self.fd = fd

    def arguments(self) -> list[str]:
        kind = "--bind" if self.is_writable else "--ro-bind"
        return [kind, self.path, self.path] if self.fd is None else [f"{kind}-fd", str(self.fd), self.path]


class MountPlan:
    """What is seen inside: binds, symlinks, folders covered by empty ones, and files covered by nothing."""

    def __init__(self, binds: Sequence[Bind]) -> None:
        self.binds = list(binds)
        self.links: Links = []
        self.covered: list[str] = []
        self.masked: list[str] = []

    def nearest(self, path: str) -> Bind | None:
        """The bind by which a path is seen."""
        around = [bind for bind in self.binds if path == bind.path or is_below(path, bind.path)]
        return max(around, key=lambda bind: len(bind.path), default=None)


def wrap(order: "SpawnRequest", world: MountPlan, filter: bytes) -> list[str]:
    """The command that puts this order's behind bwrap's walls; its environment is taken along. Raises `OSError`.

    A variable can make every program load what it names, so bwrap itself is to be started with what is left in
    `order.env`, the service's own marks.
    """
    enclosure = order.enclosure
    if enclosure is None or not enclosure.program or not os.path.isabs(enclosure.program):
        raise OSError(errno.ENOENT, "where bwrap is has to be said by its whole path")
    given = arguments(order, enclosure, world)
    for name in [name for name in order.env if not name.startswith(OURS)]:
        given += ["--setenv", name, order.env.pop(name)]
    given += ["--seccomp", str(_in_memory(filter))]
    said = _in_memory(b"".join(os.fsencode(word) + b"\0" for word in given))
    command = [enclosure.program, "--args", str(said), "--"]
    if not has_own_session(order, world):
        return [*command, *order.argv]
    _let_go_of_terminal()
    return [*command, SET_TERMINAL, "-c", *order.argv]


def arguments(order: "SpawnRequest", enclosure: "IsolationSpec", world: MountPlan) -> list[str]:
    """What bwrap is told, but for the environment and the filter."""
    given = [*NAMESPACES, "--die-with-parent", "--cap-drop", "ALL"]
    if enclosure.network == "none":
        given.append("--unshare-net")
    if "--disable-userns" in enclosure.options:
        given.append("--disable-userns")
    if not order.has_terminal:
        given.append("--new-session")
    for mount in _mounts(enclosure, world):
        given += mount
    return [*given, "--chdir", order.cwd]


def survey(enclosure: "IsolationSpec", places: "Sequence[Mount]") -> MountPlan:
    """Look at what is there now, and take hold of what can be written."""
    has_handles = "--bind-fd" in enclosure.options
    world = _world(places, [real(path) for path in enclosure.hidden], has_handles)
    world.binds += _protections(enclosure.protected, world, has_handles)
    return world


def _world(places: "Sequence[Mount]", hidden: Sequence[str], has_handles: bool) -> MountPlan:
    binds: dict[str, Bind] = {}
    links: dict[str, str] = {}
    for place in sorted(places, key=lambda place: not place.is_writable):
        path, met = follow(place.path)
        links.update(met)
        if path not in binds and (bind := _bound(place, path, has_handles)):
            binds[path] = bind
    world = MountPlan([bind for bind in binds.values() if not _is_shown_by_another(bind, binds, hidden)])
    world.links = [(link, target) for link, target in links.items() if world.nearest(link) is None]
    for path in hidden:
        if world.nearest(path) and os.path.lexists(path):
            (world.covered if os.path.isdir(path) else world.masked).append(path)
    return world


def rehearse(place: "Mount") -> None:
    """Look at a place, and say nothing to anybody."""
    world = _world([place], (), False)
    for bind in world.binds:
        bind.arguments()


def find(order: "SpawnRequest", world: MountPlan) -> None:
    """See that the program is there; bwrap itself says so only in words. Raises `OSError`."""
    name, reason = order.argv[0], errno.ENOENT
    folders = [""] if "/" in name else order.env.get("PATH", DEFAULT_PATH).split(":")
    for folder in folders:
        path = real(os.path.join(order.cwd, folder, name))
        if world.nearest(path) is None or not os.path.isfile(path):
            continue
        if os.access(path, os.X_OK):
            return
        reason = errno.EACCES
    raise OSError(reason, os.strerror(reason), name)


def has_own_session(order: "SpawnRequest", world: MountPlan) -> bool:
    """Whether the terminal becomes the program's alone, in a session that it leads.

    Else bwrap is in the foreground with it, and Ctrl-C ends bwrap, and with it everything behind the walls.
    """
    return order.has_terminal and world.nearest(real(SET_TERMINAL)) is not None and os.path.exists(SET_TERMINAL)


def _mounts(enclosure: "IsolationSpec", world: MountPlan) -> list[list[str]]:
    """Parents first; at one path what is bound, then what covers it. In the end what must not grow any more."""
    taken, in_memory = {bind.path for bind in world.binds}, [*IN_MEMORY]
    mounts = [("/dev", ["--dev", "/dev"]), ("/proc", ["--proc", "/proc"])]
    if world.nearest(SECOND_TEMPORARY) is None and not any(is_below(path, SECOND_TEMPORARY) for path in taken):
        mounts.append((SECOND_TEMPORARY, ["--symlink", "/tmp", SECOND_TEMPORARY]))
    else:
        in_memory.append(SECOND_TEMPORARY)
    for path in in_memory:
        if path not in taken and _can_stand(path, world):
            most = min(enclosure.temporary_bytes, SMALL.get(path, enclosure.temporary_bytes))
            mounts.append((path, _empty(path, most)))
    mounts += [(bind.path, bind.arguments()) for bind in world.binds]
    mounts += [(link, ["--symlink", target, link]) for link, target in world.links]
    mounts += [(path, _empty(path, NOTHING_BYTES)) for path in world.covered]
    mounts += [(path, ["--ro-bind", "/dev/null", path]) for path in world.masked]
    last = [["--remount-ro", path] for path in ("/", "/dev", *world.covered)]
    return [arguments for _, arguments in sorted(mounts, key=lambda mount: _depth(mount[0]))] + last


def _empty(path: str, most: int) -> list[str]:
    return ["--size", str(most), "--tmpfs", path]


def _depth(path: str) -> int:
    return len([part for part in path.split("/") if part])


def _can_stand(path: str, world: MountPlan) -> bool:
    """Inside a bound folder nothing can be made to mount on."""
    return path.startswith("/dev/") or world.nearest(path) is None or os.path.isdir(path)


def _bound(place: "Mount", path: str, has_handles: bool) -> Bind | None:
    try:
        fd = opened_place(place)
    except (FileNotFoundError, NotADirectoryError):
        if place.is_writable:
            raise
        return None
    if place.is_writable and has_handles:
        os.set_inheritable(fd, True)
        return Bind(path, True, fd)
    os.close(fd)
    return Bind(path, place.is_writable)


def _is_shown_by_another(bind: Bind, binds: dict[str, Bind], hidden: Sequence[str]) -> bool:
    """Whether the next one around it shows it already, in the same way, and nothing between hides it.

    What can be written is always bound, since it may have been named to be held where it is.
    """
    around = [path for path in (*binds, *hidden) if is_below(bind.path, path)]
    next_one = max(around, key=len, default="")
    return not bind.is_writable and next_one in binds and next_one not in hidden and not binds[next_one].is_writable


def _protections(protected: Sequence[str], world: MountPlan, has_handles: bool) -> list[Bind]:
    binds: dict[str, Bind] = {}
    for path in protected:
        target = real(path.rstrip("/"))
        around, folder = world.nearest(target), os.path.dirname(target)
        if around is None or not around.is_writable or target == around.path:
            continue
        held = _held(around, folder, has_handles, is_writable=True)
        if held is None:
            continue
        _make_if_missing(around, target, is_folder=path.endswith("/") or os.path.basename(target) == "hooks")
        if folder != around.path:
            binds[folder] = held
        if (bind := _held(around, target, has_handles, is_writable=False)) is not None:
            binds[target] = bind
    return list(binds.values())


def _held(around: Bind, path: str, has_handles: bool, *, is_writable: bool) -> Bind | None:
    """A bind of something below another one, not by way of a symlink that came there meanwhile; None if not there."""
    root = os.open(around.path, O_PATH | os.O_CLOEXEC)
    try:
        fd = open_beneath(root, os.path.relpath(path, around.path), O_PATH, follow=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    finally:
        os.close(root)
    if has_handles:
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


def _let_go_of_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # who lets go of a terminal is told that it hung up
    try:
        fcntl.ioctl(0, termios.TIOCNOTTY)
    except OSError as error:
        if error.errno != errno.ENOTTY:  # it is nobody's yet
            raise
    finally:
        signal.signal(signal.SIGHUP, before)


def _in_memory(data: bytes) -> int:
    """A file without a name that bwrap reads by its descriptor."""
    fd = os.memfd_create("toolcrib", 0)
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
