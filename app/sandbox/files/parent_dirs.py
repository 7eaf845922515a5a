"""Parents: the folders that changes are made in. Each is opened once, and made where it is missing."""

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
MOST_FOLDERS = 512
SYNCLESS = (errno.EINVAL, errno.ENOTSUP)

_turns = dict[int, Lock]()


class Parent:
    """A folder, open as far down as it is there; `missing` is what has to be made of it.

    What is made in it is to belong to whom `owner` belongs; None: to the service itself.
    """

    def __init__(self, fd: int, missing: list[str], owner: os.stat_result | None) -> None:
        self.fd = fd
        self.missing = missing
        self.owner = owner

    def about(self, name: str) -> os.stat_result | None:
        """What has a name in here; a symlink is itself."""
        if self.missing:
            return None
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None


class Parents:
    """The folders of one commit. Nothing in them is reached by any other name than the canonical one."""

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
            except FileExistsError:  # somebody else's, or of a change before
                is_new = False
            else:
                self._made.append((above, part))
            parent.fd = self._hold(open_beneath(above, part, FOLDER, follow=False))
            if is_new and parent.owner is not None:
                os.fchown(parent.fd, parent.owner.st_uid, parent.owner.st_gid)
            del parent.missing[0]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other commit of this service is in here with the same devices: none sees what another may take back."""
        with ExitStack() as stack:
            for device in sorted(self._devices):
                stack.enter_context(_turns.setdefault(device, Lock()))
            yield

    def sync(self) -> None:
        """Until here a power cut may bring the old names back; from here on it cannot."""
        for fd in self._held:
            try:
                os.fsync(fd)
            except OSError as error:
                if error.errno not in SYNCLESS:
                    raise

    def sweep(self) -> None:
        for parent in self._found.values():
            sweep(parent.fd)

    def undo(self) -> None:
        """Take away what was made; where somebody has put something in meanwhile, it stays."""
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
                _require_place(fd, os.path.join(place.base, here).rstrip("/") or "/")
                return Parent(fd, missing, _owner(place.root))

    def _hold(self, fd: int) -> int:
        """Descriptors are everybody's, so no commit has very many of them."""
        self._held.append(fd)
        self._devices.add(os.fstat(fd).st_dev)
        if len(self._held) > MOST_FOLDERS:
            raise TooLarge(f"These changes are in more than {MOST_FOLDERS} folders; make them in several calls.")
        return fd


def _owner(root: Root) -> os.stat_result | None:
    """Whose the root is. A service that is root gives away what it makes: processes run as somebody else."""
    about = os.fstat(root.fd)
    return about if os.geteuid() == 0 and about.st_uid != 0 else None


def _require_place(fd: int, expected: str) -> None:
    """What was opened must be where it was said to be when it was approved."""
    if (where := path_of(fd)) is not None and where != expected:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
