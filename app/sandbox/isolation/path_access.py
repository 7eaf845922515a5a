"""Passages: how somebody who may not go through a folder comes to a place below it all the same.

A service that runs as root keeps its workspaces where nobody else gets in, and may itself stand below /root. What it
starts as another user has to reach those places by their ordinary paths. So in a mount namespace of that one process
each closed folder is covered by an empty one, and in it only the places it was promised are there.

Ways: where a path leads, and over which symlinks.
"""

import errno
import os
import stat
from collections.abc import Iterable, Sequence

from app.sandbox.isolation import privileges
from app.sandbox.isolation.landlock import opened_place
from app.sandbox.syscalls import answered, libc

TYPE_CHECKING = False  # the spawner needs this module, and has no use for what only types need
if TYPE_CHECKING:
    from app.sandbox.process.spawn_request import Mount


MOST_LINKS = 40

Links = list[tuple[str, str]]
"""Where each symlink stands, and what it says."""


def follow(path: str) -> tuple[str, Links]:
    """A path as it is without symlinks, and those that were met. What is not there is taken as it is named.

    Raises `OSError` for a loop.
    """
    here, left, links = "/", _parts(path), Links()
    while left:
        part = left.pop(0)
        step = os.path.dirname(here) if part == ".." else os.path.join(here, part)
        try:
            target = os.readlink(step)
        except OSError:
            here = step
            continue
        if len(links) == MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        links.append((step, target))
        here = "/" if target.startswith("/") else here
        left = _parts(target) + left
    return here, links


def real(path: str) -> str:
    """A path without symlinks."""
    return follow(path)[0]


def is_below(path: str, folder: str) -> bool:
    """Whether a path leads into a folder; a folder is not below itself."""
    return path != folder and path.startswith(folder.rstrip("/") + "/")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
EMPTY = b"mode=0755,size=256k,nr_inodes=512"


def closed(paths: Iterable[str], user: int, group: int) -> list[str]:
    """The folders on the way to these paths that this user, without other groups, cannot go through."""
    folders: set[str] = set()
    for path in paths:
        last, links = follow(path)
        folders.update(parent for step in (last, *(link for link, _ in links)) for parent in _parents(step))
    return sorted(folder for folder in folders if not _is_open(folder, user, group))


def open_ways(places: "Sequence[Mount]", user: int, group: int) -> None:
    """Make the places reachable for this user, in a mount namespace of our own if need be. Raises `OSError`."""
    found = closed((place.path for place in places), user, group)
    if not found:
        return
    if not privileges.has(privileges.CAP_SYS_ADMIN):
        raise PermissionError(errno.EACCES, "cannot be gone through by whom the process is to be", found[0])
    answered(libc().unshare(CLONE_NEWNS))
    answered(libc().mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    links = [link for place in places for link in follow(place.path)[1]]
    before = os.umask(0o022)
    for path, fd in _steps(places, found):
        if fd is None:
            answered(libc().mount(b"tmpfs", os.fsencode(path), b"tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, EMPTY))
        else:
            _put(path, fd)
    for link, target in links:
        _link(link, target)
    os.umask(before)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/", *("/".join(parts[:length]) for length in range(2, len(parts)))]


def _is_open(folder: str, user: int, group: int) -> bool:
    try:
        about = os.stat(folder)
    except OSError:
        return True  # who opens the place will hear about it
    if about.st_uid == user:
        return bool(about.st_mode & stat.S_IXUSR)
    return bool(about.st_mode & (stat.S_IXGRP if about.st_gid == group else stat.S_IXOTH))


def _steps(places: "Sequence[Mount]", closed: Sequence[str]) -> list[tuple[str, int | None]]:
    """What is covered (None) and what is put back there, by a handle taken before. Parents first.

    What was closed below a cover is open there, and what is below something that was put back has come with it.
    """
    steps: list[tuple[str, int | None]] = []
    wanted = {real(place.path): place for place in sorted(places, key=lambda place: place.is_writable)}
    for path in sorted({*closed, *wanted}):
        is_below_cover = next((fd is None for above, fd in reversed(steps) if is_below(path, above)), False)
        if path in closed:
            steps += [] if is_below_cover else [(path, None)]
        elif is_below_cover and (fd := _taken(wanted[path])) is not None:
            steps.append((path, fd))
    return steps


def _taken(place: "Mount") -> int | None:
    try:
        return opened_place(place)
    except FileNotFoundError:
        if place.is_writable:
            raise
        return None


def _put(path: str, fd: int) -> None:
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444))
    answered(libc().mount(f"/proc/self/fd/{fd}".encode(), os.fsencode(path), None, MS_BIND | MS_REC, None))
    os.close(fd)


def _link(path: str, target: str) -> None:
    """Unless it is there already, with the place that it stands in."""
    if not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
