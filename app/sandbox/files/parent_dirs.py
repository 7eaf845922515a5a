"""The parent folders of changed files. Each is opened once, and created if it is missing."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock

from app.core.errors import TooLarge
from app.sandbox.files.openat2 import open_beneath
from app.sandbox.files.roots import ResolvedPath, Root, path_of
from app.sandbox.files.temp_files import sweep

FOLDER = os.O_RDONLY | os.O_NONBLOCK | os.O_DIRECTORY
MAX_FOLDERS = 512
NO_FSYNC = (errno.EINVAL, errno.ENOTSUP)

_locks = dict[int, Lock]()


class Parent:
    """A folder, open as far down as it exists; `missing` are the parts that have to be created.

    What is created in it gets the owner of `owner`; None: the service itself.
    """

    def __init__(self, fd: int, missing: list[str], owner: os.stat_result | None) -> None:
        self.fd = fd
        self.missing = missing
        self.owner = owner

    def status(self, name: str) -> os.stat_result | None:
        """The status of a file in it; symlinks are not followed."""
        if self.missing:
            return None
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None


class Parents:
    """The folders of one commit. Files in them are accessed by their canonical names only."""

    def __init__(self) -> None:
        self._found = dict[tuple[Root, str], Parent]()
        self._held = list[int]()
        self._devices = set[int]()
        self._made = list[tuple[int, str]]()

    def find(self, place: ResolvedPath) -> Parent:
        path = place.inner.rpartition("/")[0]
        found = self._found.get((place.root, path))
        if found is None:
            found = self._found[place.root, path] = self._open(place, path)
        return found

    def make(self, parent: Parent) -> None:
        while parent.missing:
            part = parent.missing[0]
            above, is_new = parent.fd, True
            try:
                os.mkdir(part, dir_fd=above)
            except FileExistsError:  # of another process, or of an earlier change
                is_new = False
            else:
                self._made.append((above, part))
            parent.fd = self._hold(open_beneath(above, part, FOLDER, follow=False))
            if is_new and parent.owner is not None:
                os.fchown(parent.fd, parent.owner.st_uid, parent.owner.st_gid)
            del parent.missing[0]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one commit of this service per device: none sees what another may undo."""
        with ExitStack() as stack:
            for device in sorted(self._devices):
                stack.enter_context(_locks.setdefault(device, Lock()))
            yield

    def sync(self) -> None:
        """After this a power failure cannot bring the old names back."""
        for fd in self._held:
            try:
                os.fsync(fd)
            except OSError as error:
                if error.errno not in NO_FSYNC:
                    raise

    def sweep(self) -> None:
        for parent in self._found.values():
            sweep(parent.fd)

    def undo(self) -> None:
        """Remove the folders that were created, unless they are not empty any more."""
        for fd, part in reversed(self._made):
            with suppress(OSError):
                os.rmdir(part, dir_fd=fd)

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)

    def _open(self, place: ResolvedPath, path: str) -> Parent:
        here, missing = path, list[str]()
        while True:
            try:
                fd = self._hold(open_beneath(place.root.fd, here or ".", FOLDER, follow=False))
            except FileNotFoundError:
                if not here:
                    raise
                here, _, last = here.rpartition("/")
                missing.insert(0, last)
            else:
                _require_path(fd, os.path.join(place.base, here).rstrip("/") or "/")
                return Parent(fd, missing, _owner(place.root))

    def _hold(self, fd: int) -> int:
        """Descriptors are limited for the whole service, so a commit may not use too many."""
        self._held.append(fd)
        self._devices.add(os.fstat(fd).st_dev)
        if len(self._held) > MAX_FOLDERS:
            raise TooLarge(f"These changes are in more than {MAX_FOLDERS} folders; make them in several calls.")
        return fd


def _owner(root: Root) -> os.stat_result | None:
    """The owner of the root. A service that is root gives files to it: processes run as another user."""
    status = os.fstat(root.fd)
    return status if os.geteuid() == 0 and status.st_uid != 0 else None


def _require_path(fd: int, expected: str) -> None:
    """The opened folder must have the path that was approved."""
    if (path := path_of(fd)) is not None and path != expected:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
