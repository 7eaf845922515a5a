"""The enclosure: what a process does to itself just before it becomes the program that a model asked for.

The order is what makes it hold. What needs the rights of root comes first, then these are given up, and last come the
walls that forbid to build any more of them. Nothing is ever left out: what cannot be done ends the matter.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from app.sandbox.isolation import bubblewrap, landlock, netns, path_access, privileges, seccomp
from app.sandbox.isolation.path_access import is_below, real

TYPE_CHECKING = False  # the spawner needs this module, and has no use for what only types need
if TYPE_CHECKING:
    from typing import Literal

    from app.sandbox.process.spawn_request import IsolationSpec, Mount, SpawnRequest

    Stage = Literal["walls", "folder", "program"]


class IsolationFailed(OSError):
    """Something could not be done; `stage` says whether it was the walls, the folder to begin in, or the program."""

    def __init__(self, stage: "Stage", step: str, error: OSError) -> None:
        super().__init__(error.errno or errno.EIO, f"{step}: {error.strerror or error}", error.filename)
        self.stage = stage


class _Temporary:
    """The folder for temporary files, as a place."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_writable = True
        self.inode = None


def prepare() -> None:
    """Do once, in a process that will fork, what would else be done in every child."""
    landlock.abi()
    for has_namespaces in (True, False):
        seccomp.program("none", has_namespaces=has_namespaces)
        seccomp.program("allowlist", has_namespaces=has_namespaces)
        seccomp.program("full", has_namespaces=has_namespaces)


def rehearse() -> None:
    """Go through the motions without effect: memory that was touched once is this process's own, and quicker then."""
    seen = _Temporary("/bin")
    seen.is_writable = False
    with suppress(OSError):
        path_access.closed(["/usr/bin"], 0, 0)
        privileges.has(privileges.CAP_SYS_ADMIN)
        landlock.rehearse(seen.path)
        bubblewrap.rehearse(seen)  # type: ignore[arg-type]


def enter(order: "SpawnRequest", hand_out: Callable[[int], None] | None = None) -> list[str]:
    """Build the walls of an order around this process, and answer with what is to be executed in them.

    It has a single thread, and its input and output are in place. Other descriptors must be closed before or close
    themselves; those that are made here are needed. It is to be executed with what is then in `order.env`. `hand_out`
    is given the listener of a network of its own. Without an enclosure only the user changes. Raises `IsolationFailed`.
    """
    parent, enclosure = os.getppid(), order.enclosure
    if enclosure is None:
        _become(order)
        return list(order.argv)
    _check(enclosure, hand_out)
    places = _places(enclosure)
    if order.identity is not None and os.geteuid() == 0:
        with _step("passage"):
            path_access.open_ways(places, *order.identity)
    listener = _own_network(enclosure, as_root=True)
    _become(order)
    if listener is None:
        listener = _own_network(enclosure, as_root=False)
    if listener is not None and hand_out is not None:
        with _step("listener"):
            hand_out(listener)
            os.close(listener)
    with _step("capabilities"):
        privileges.give_up()
        privileges.die_with(parent)
    with _step("folder", "folder"):
        os.chdir(order.cwd)
    return _enclosed(order, enclosure, places)


def _enclosed(order: "SpawnRequest", enclosure: "IsolationSpec", places: "tuple[Mount, ...]") -> list[str]:
    if enclosure.backend == "bwrap":
        with _step("bwrap"):
            world = bubblewrap.survey(enclosure, places)
        with _step("program", "program"):
            bubblewrap.find(order, world)
        with _step("bwrap"):
            return bubblewrap.wrap(order, world, seccomp.program(enclosure.network, has_namespaces=True))
    if enclosure.backend == "landlock":
        with _step("landlock"):
            terminal = os.ttyname(0) if order.has_terminal else None
            landlock.enclose(places, network=enclosure.network, proxy=enclosure.proxy, terminal=terminal)
        with _step("seccomp"):
            seccomp.install(seccomp.program(enclosure.network, has_namespaces=False))
    return list(order.argv)


def _become(order: "SpawnRequest") -> None:
    if order.identity is not None and (os.geteuid(), os.getegid()) != tuple(order.identity):
        with _step("identity"):
            privileges.become(*order.identity)


def _own_network(enclosure: "IsolationSpec", *, as_root: bool) -> int | None:
    """The listener of a network of its own, if there is to be one and this is the moment."""
    if not _has_own_network(enclosure) or (as_root and not netns.can_enter_as_root()):
        return None
    with _step("network"):
        return netns.enter_as_root() if as_root else netns.enter()


def _has_own_network(enclosure: "IsolationSpec") -> bool:
    return enclosure.backend == "bwrap" and enclosure.network == "allowlist" and enclosure.proxy == 0


def _check(enclosure: "IsolationSpec", hand_out: Callable[[int], None] | None) -> None:
    """What was ordered can be built at all, and keeps its word."""
    with _step("order"):
        if enclosure.backend not in ("bwrap", "landlock", "none"):
            raise OSError(errno.EINVAL, f"there are no walls called {enclosure.backend}")
        if enclosure.network not in ("none", "allowlist", "full"):
            raise OSError(errno.EINVAL, f"there is no network called {enclosure.network}")
        if _has_own_network(enclosure) and hand_out is None:
            raise OSError(errno.EINVAL, "a listener of its own has to be handed to somebody")
        if enclosure.network == "allowlist" and enclosure.backend == "bwrap" and enclosure.proxy != 0:
            raise OSError(errno.EINVAL, "behind bwrap a proxy is reached by a listener of its own only")
        if enclosure.network == "allowlist" and enclosure.backend == "landlock" and not enclosure.proxy:
            raise OSError(errno.EINVAL, "Landlock has to know the port of the proxy")
        if enclosure.backend == "landlock" and enclosure.hidden:
            _check_hidden(enclosure)


def _check_hidden(enclosure: "IsolationSpec") -> None:
    seen = [real(place.path) for place in _places(enclosure)]
    for path in enclosure.hidden:
        if any(real(path) == place or is_below(real(path), place) for place in seen):
            raise OSError(errno.EINVAL, "Landlock cannot hide anything inside a place", path)


def _places(enclosure: "IsolationSpec") -> "tuple[Mount, ...]":
    if enclosure.temporary is None:
        return tuple(enclosure.places)
    return (*enclosure.places, _Temporary(enclosure.temporary))  # type: ignore[arg-type]


@contextmanager
def _step(name: str, stage: "Stage" = "walls") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise IsolationFailed(stage, name, error) from error
