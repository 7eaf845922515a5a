"""A workspace on this machine's disk. Every path goes through the race-free opener, never by name."""

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import BinaryIO

from app.core.errors import FileFailed, InvalidArgs, OutsideWorkspace, TooLarge
from app.core.files import require_editable
from app.core.ports import MOST_LOADED, Change, Entry, EntryKind, Snapshot, Stamp
from app.core.sessions import is_inside
from app.sandbox.files.errors import explained, failed, outside, printable, shown, unwritten
from app.sandbox.files.openat2 import O_PATH, open_beneath
from app.sandbox.files.roots import ResolvedPath, Root, RootSet, below, normal, path_of
from app.sandbox.files.transaction import Target, make

# O_NONBLOCK: a pipe or a device must not keep us waiting before we know what it is.
FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
FOLDER = os.O_RDONLY | os.O_NONBLOCK | os.O_DIRECTORY
BUFFER = 65_536
MOST_PATH_BYTES = 4095
MOST_READINGS = 5
ALONE = RootSet()

RESTLESS = "{path} was changed again and again while it was looked at; try again."
READ_ONLY_ROOT = "{path} is in a folder that the operator opened for reading only; nothing can be changed there."


class LocalWorkspace:
    """A folder that exists, held open from the start: renaming it changes nothing, leaving it is impossible.

    It is closed when it is told to, or when nobody holds it any more. Its lane is its own, unless another is given.
    What is `around` it counts too: absolute paths may be in an extra root, and the service's records are closed.
    """

    def __init__(self, root: Path, lane: str | None = None, around: RootSet = ALONE) -> None:
        self._home = Root(root)
        self.root = self._home.path
        self.lane = lane or lane_of(os.fstat(self._home.fd))
        self.around = around
        self._records = around.records_in(self._home)

    def close(self) -> None:
        self._home.close()

    def in_lane(self, lane: str) -> "LocalWorkspace":
        """The same folder, with another lane."""
        other = copy(self)
        other.lane = lane
        return other

    @property
    def path(self) -> str:
        """Where the folder is now, symlinks resolved, whatever it was opened by."""
        return self._home.place

    @property
    def is_in_place(self) -> bool:
        """Whether its path still leads to the folder that is held open."""
        return self._home.is_in_place

    def display(self, path: str) -> str:
        if path.startswith("/"):
            return printable(path)
        return printable(os.path.join(self.root, *(part for part in path.split("/") if part not in ("", "."))))

    def name(self, path: str) -> str:
        return self._locate(path, path).name

    def folder(self, path: str) -> str:
        name = self.name(path)
        try:
            os.close(self._open(path, O_PATH | os.O_DIRECTORY, None))
        except FileFailed:
            return os.path.dirname(name) or "."
        return name

    def open(self, path: str, *, approved: Collection[str] | None = None) -> BinaryIO:
        fd = self._open(path, FILE, approved, _require_regular)
        return os.fdopen(fd, "rb", buffering=BUFFER)

    def scan(self, path: str, *, approved: Collection[str] | None = None) -> Iterator[Entry]:
        fd = self._open(path, FOLDER, approved)
        try:
            return iter(_entries(fd, path))
        finally:
            os.close(fd)

    @contextmanager
    def hold(self, path: str, *, approved: Collection[str] | None = None) -> Iterator[tuple[int, bool]]:
        """A descriptor of a folder or a regular file, open for reading as long as it is held; and whether it is a file.

        It is checked as `open` and `scan` check. Whoever goes on from it by descriptor stays with what was checked.
        """
        fd = self._open(path, FILE, approved, _require_readable)
        try:
            yield fd, stat.S_ISREG(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def closed_below(self, fd: int) -> str | None:
        """Where the service's records are below a folder that is held, seen from it; None where they are not."""
        where = path_of(fd)
        return below(self._records.place, where) if self._records and where else None

    def times(self, path: str, names: Iterable[str], *, approved: Collection[str] | None = None) -> list[int]:
        with self.hold(path, approved=approved) as (fd, _):
            return [_changed(fd, name) for name in names]

    def load(self, path: str, *, approved: Collection[str] | None = None, limit: int = MOST_LOADED) -> Snapshot:
        fd = self._open(path, FILE, approved, _require_regular)
        try:
            for _ in range(MOST_READINGS):
                about = os.fstat(fd)
                data = _read(fd, about.st_size, limit, path)
                if _is_same(os.fstat(fd), about):
                    return Snapshot(data, Stamp.of(about), stat.S_IMODE(about.st_mode))
        finally:
            os.close(fd)
        raise failed(errno.ESTALE, path, RESTLESS)

    def stamp(self, path: str, *, approved: Collection[str] | None = None) -> Stamp | None:
        try:
            fd = self._open(path, FILE, approved, _require_regular)
        except FileFailed as error:
            if error.code != "ENOENT":
                raise
            return None
        try:
            return Stamp.of(os.fstat(fd))
        finally:
            os.close(fd)

    def commit(self, changes: Sequence[Change], *, approved: Collection[str] | None = None) -> None:
        targets = [self._target(change, approved) for change in changes]
        if len({target.place.absolute for target in targets}) < len(targets):
            raise InvalidArgs("The same file is to be changed twice at once; make it one change.")
        if targets:
            make(targets)

    def _target(self, change: Change, approved: Collection[str] | None) -> Target:
        """Where a change is to be made: symlinks are gone through now, and by nobody afterwards."""
        place = self._locate(change.path, change.path)
        if place.inner == "." or change.path.rpartition("/")[2] in ("", ".", ".."):
            raise unwritten(errno.EISDIR, change.path)
        for name in (self._start(change.path)[1], place.name):  # `.git` may be a link, and its target anything
            require_editable(printable(name))
        if approved is not None and place.name not in approved:
            raise failed(errno.ESTALE, change.path)
        if place.root.access == "read":
            raise unwritten(errno.EROFS, change.path, READ_ONLY_ROOT)
        return Target(change, place)

    def _start(self, path: str) -> tuple[Root, str]:
        """A path as the opener takes it: from which root, and how. Whether it stays inside is for the opener to say."""
        _require_sane(path)
        if not path.startswith("/"):
            return self._home, path
        asked = normal(path)
        for root in (self._home, *self.around.extras):
            if (inner := root.inner(asked)) is not None:
                return root, inner
        raise OutsideWorkspace(f"{shown(path)} is outside the workspace; use a path inside {printable(self.root)}.")

    def _locate(self, path: str, given: str) -> ResolvedPath:
        """Where a path leads. What is renamed while it is looked at is not at the path's end any more."""
        root, relative = self._start(path)
        place = self._look_up(root, relative, given)
        if place.inner == os.path.normpath(relative) and place.root is root:
            return place
        for _ in range(MOST_READINGS):  # through a link, or somebody came between: then the next look is another one
            before, place = place, self._look_up(root, relative, given)
            if place == before:
                return place
        raise failed(errno.ESTALE, given, RESTLESS)

    def _look_up(self, root: Root, here: str, given: str) -> ResolvedPath:
        """Where a path leads now. As far as it does not exist, it is taken literally."""
        rest, flags = list[str](), O_PATH
        while True:
            try:
                fd = _open(root, here, flags, given)
            except FileFailed as error:
                if error.code not in ("ENOENT", "ENOTDIR") or here == ".":
                    raise
            else:
                break
            here, _, last = here.rstrip("/").rpartition("/")
            here, rest, flags = here or ".", [last, *rest], O_PATH | os.O_DIRECTORY
        try:
            place = self._place(fd, root, here, given)
        finally:
            os.close(fd)
        return self._extended(place, rest, given)

    def _extended(self, folder: ResolvedPath, rest: list[str], given: str) -> ResolvedPath:
        """A place below an existing folder. What `..` leads back from is not there; what it leads back to may be."""
        if not rest:
            return folder
        inner = os.path.normpath(os.path.join(folder.inner, *rest))
        if inner == ".." or inner.startswith("../"):
            raise outside(given)
        place = ResolvedPath(folder.root, folder.base, inner)
        if ".." in rest:
            return self._locate(place.absolute if place.root.is_extra else inner, given)
        return self._require_open(place, given)

    def _open(
        self, path: str, flags: int, approved: Collection[str] | None, require: Callable[[int, str], None] | None = None
    ) -> int:
        """A descriptor of what a path leads to, once it is known to be what may be opened."""
        root, relative = self._start(path)
        try:
            fd = _open(root, relative, flags, path)
        except FileFailed:
            if self._records:
                self._locate(path, path)  # nobody is to learn what is missing among them
            raise
        try:
            place = self._place(fd, root, relative, path)
            if require is not None:
                require(fd, path)
            if approved is not None and place.name not in approved:
                raise failed(errno.ESTALE, path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _place(self, fd: int, root: Root, relative: str, given: str) -> ResolvedPath:
        """Where an open thing is now. What is in the workspace is the workspace's, whichever root led there."""
        where = path_of(fd) or os.path.realpath(os.path.join(root.path, relative))
        for owner in (self._home, *self.around.extras):
            base = owner.place
            if (inner := below(where, base)) is not None:
                return self._require_open(ResolvedPath(owner, base, inner), given)
        raise OutsideWorkspace(f"{shown(given)} has been moved out of the workspace.")

    def _require_open(self, place: ResolvedPath, given: str) -> ResolvedPath:
        """Not the service's own records. They may have been moved with a folder around them, so they are asked."""
        if self._records and not place.root.is_extra and is_inside(place.absolute, self._records.place):
            raise OutsideWorkspace(f"{shown(given)} belongs to the service's own records, which no tool may touch.")
        return place


def lane_of(about: os.stat_result) -> str:
    """The name of a folder's own gate: the same by whatever path it is reached."""
    return f"workspace:{about.st_dev:x}:{about.st_ino:x}"


def _open(root: Root, relative: str, flags: int, path: str) -> int:
    try:
        return open_beneath(root.fd, relative, flags)
    except OSError as error:
        raise explained(error, path) from None


def _require_sane(path: str) -> None:
    if not path:
        raise InvalidArgs('The path is empty; "." is the workspace itself.')
    if "\0" in path:
        raise InvalidArgs("The path contains a NUL byte, which no file name can have.")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise InvalidArgs("The path contains characters that no file name can have (lone surrogates).") from None
    if size > MOST_PATH_BYTES:
        raise failed(errno.ENAMETOOLONG, path)


def _require_regular(fd: int, path: str) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise failed(errno.EISDIR, path)
    if not stat.S_ISREG(mode):
        raise failed(errno.EINVAL, path)


def _require_readable(fd: int, path: str) -> None:
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        _require_regular(fd, path)


def _read(fd: int, size: int, limit: int, path: str) -> bytes:
    """All of an open file from its start. Most often its size is told rightly, and two reads are enough."""
    pieces, room, start = list[bytes](), limit + 1, 0
    try:
        while room and (piece := os.pread(fd, min(room, max(size - start, 0) + BUFFER), start)):
            pieces.append(piece)
            room, start = room - len(piece), start + len(piece)
    except OSError as error:
        raise explained(error, path) from None
    if not room:
        raise TooLarge(f"{shown(path)} has more than {limit:,} bytes, which is more than this tool takes.")
    return b"".join(pieces)


def _is_same(about: os.stat_result, before: os.stat_result) -> bool:
    """Whether a file was left alone: its change time also tells of who sets the time back after a change."""
    return Stamp.of(about) == Stamp.of(before) and about.st_ctime_ns == before.st_ctime_ns


def _entries(fd: int, path: str) -> list[Entry]:
    try:
        with os.scandir(fd) as items:
            entries = [Entry(item.name, _kind(item)) for item in items]
    except OSError as error:
        raise explained(error, path) from None
    return sorted(entries, key=lambda entry: os.fsencode(entry.name))


def _kind(item: os.DirEntry[str]) -> EntryKind:
    try:
        if item.is_symlink():
            return "symlink"
        if item.is_dir(follow_symlinks=False):
            return "directory"
        return "file" if item.is_file(follow_symlinks=False) else "other"
    except OSError:  # gone, or in a folder that may be listed but not entered
        return "other"


def _changed(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0
