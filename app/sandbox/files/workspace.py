"""A workspace on the local disk. Every path is opened race-free (openat2), never checked first and opened by name."""

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
from app.core.ports import MAX_LOADED_BYTES, Change, Entry, EntryKind, Snapshot, Stamp
from app.core.sessions import is_inside
from app.core.util.path_text import printable
from app.sandbox.files import transaction
from app.sandbox.files.errors import open_error, outside_error, read_error, shown, write_error
from app.sandbox.files.openat2 import O_PATH, open_beneath
from app.sandbox.files.roots import ResolvedPath, Root, RootSet, below, normal, path_of
from app.sandbox.files.transaction import Target

# O_NONBLOCK: opening a pipe or a device must not block before its type is known.
FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
FOLDER = os.O_RDONLY | os.O_NONBLOCK | os.O_DIRECTORY
BUFFER_BYTES = 65_536
MAX_PATH_BYTES = 4095
MAX_TRIES = 5
NO_ROOTS = RootSet()

KEEPS_CHANGING = "{path} was changed again and again while it was read; try again."
READ_ONLY_ROOT = "{path} is in a folder that the operator opened for reading only; nothing can be changed there."


class LocalWorkspace:
    """An existing folder, open from the start: renaming it changes nothing, and no path leads out of it.

    It is closed by `close`, or when it is garbage-collected. It has a lane of its own, unless another one is passed.
    `around`: absolute paths may be in an extra root, and the data directory of the service is closed.
    """

    def __init__(self, root: Path, lane: str | None = None, around: RootSet = NO_ROOTS) -> None:
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
        """The current path of the folder, symlinks resolved."""
        return self._home.place

    @property
    def is_in_place(self) -> bool:
        """Whether its path still leads to the open folder."""
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
        return os.fdopen(fd, "rb", buffering=BUFFER_BYTES)

    def scan(self, path: str, *, approved: Collection[str] | None = None) -> Iterator[Entry]:
        fd = self._open(path, FOLDER, approved)
        try:
            return iter(_entries(fd, path))
        finally:
            os.close(fd)

    @contextmanager
    def hold(self, path: str, *, approved: Collection[str] | None = None) -> Iterator[tuple[int, bool]]:
        """A descriptor of a folder or a regular file, open for reading in the context; and whether it is a file.

        It is checked as in `open` and `scan`; access by the descriptor stays with what was checked.
        """
        fd = self._open(path, FILE, approved, _require_readable)
        try:
            yield fd, stat.S_ISREG(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def closed_below(self, fd: int) -> str | None:
        """The data directory of the service, relative to an open folder; None if it is not inside."""
        path = path_of(fd)
        return below(self._records.place, path) if self._records and path else None

    def times(self, path: str, names: Iterable[str], *, approved: Collection[str] | None = None) -> list[int]:
        with self.hold(path, approved=approved) as (fd, _):
            return [_mtime(fd, name) for name in names]

    def load(self, path: str, *, approved: Collection[str] | None = None, limit: int = MAX_LOADED_BYTES) -> Snapshot:
        fd = self._open(path, FILE, approved, _require_regular)
        try:
            for _ in range(MAX_TRIES):
                status = os.fstat(fd)
                data = _read(fd, status.st_size, limit, path)
                if _is_same(os.fstat(fd), status):
                    return Snapshot(data, Stamp.of(status), stat.S_IMODE(status.st_mode))
        finally:
            os.close(fd)
        raise read_error(errno.ESTALE, path, KEEPS_CHANGING)

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
            transaction.commit(targets)

    def _target(self, change: Change, approved: Collection[str] | None) -> Target:
        """The resolved path of a change: symlinks are followed now, and not again later."""
        place = self._locate(change.path, change.path)
        if place.inner == "." or change.path.rpartition("/")[2] in ("", ".", ".."):
            raise write_error(errno.EISDIR, change.path)
        for name in (self._start(change.path)[1], place.name):  # `.git` may be a link, and its target anything
            require_editable(printable(name))
        if approved is not None and place.name not in approved:
            raise read_error(errno.ESTALE, change.path)
        if place.root.access == "read":
            raise write_error(errno.EROFS, change.path, READ_ONLY_ROOT)
        return Target(change, place)

    def _start(self, path: str) -> tuple[Root, str]:
        """The root of a path, and the path relative to it. Whether it stays inside is checked when it is opened."""
        _require_sane(path)
        if not path.startswith("/"):
            return self._home, path
        absolute = normal(path)
        for root in (self._home, *self.around.extras):
            if (inner := root.inner(absolute)) is not None:
                return root, inner
        raise OutsideWorkspace(f"{shown(path)} is outside the workspace; use a path inside {printable(self.root)}.")

    def _locate(self, path: str, shown_path: str) -> ResolvedPath:
        """Where a path leads. It is looked up again if a link or a rename made the result differ."""
        root, relative = self._start(path)
        place = self._look_up(root, relative, shown_path)
        if place.inner == os.path.normpath(relative) and place.root is root:
            return place
        for _ in range(MAX_TRIES):  # through a link, or it was renamed meanwhile: the result must be stable
            before, place = place, self._look_up(root, relative, shown_path)
            if place == before:
                return place
        raise read_error(errno.ESTALE, shown_path, KEEPS_CHANGING)

    def _look_up(self, root: Root, here: str, shown_path: str) -> ResolvedPath:
        """Where a path leads now. A part that does not exist is taken literally."""
        rest, flags = list[str](), O_PATH
        while True:
            try:
                fd = _open(root, here, flags, shown_path)
            except FileFailed as error:
                if error.code not in ("ENOENT", "ENOTDIR") or here == ".":
                    raise
            else:
                break
            here, _, last = here.rstrip("/").rpartition("/")
            here, rest, flags = here or ".", [last, *rest], O_PATH | os.O_DIRECTORY
        try:
            place = self._place(fd, root, here, shown_path)
        finally:
            os.close(fd)
        return self._extended(place, rest, shown_path)

    def _extended(self, folder: ResolvedPath, rest: list[str], shown_path: str) -> ResolvedPath:
        """A path below an existing folder. The folder before a `..` does not exist; the one after it may."""
        if not rest:
            return folder
        inner = os.path.normpath(os.path.join(folder.inner, *rest))
        if inner == ".." or inner.startswith("../"):
            raise outside_error(shown_path)
        place = ResolvedPath(folder.root, folder.base, inner)
        if ".." in rest:
            return self._locate(place.absolute if place.root.is_extra else inner, shown_path)
        return self._require_open(place, shown_path)

    def _open(
        self, path: str, flags: int, approved: Collection[str] | None, require: Callable[[int, str], None] | None = None
    ) -> int:
        """A descriptor of what a path leads to, after checking that it may be opened."""
        root, relative = self._start(path)
        try:
            fd = _open(root, relative, flags, path)
        except FileFailed:
            if self._records:
                self._locate(path, path)  # do not reveal which of the service's files exist
            raise
        try:
            place = self._place(fd, root, relative, path)
            if require is not None:
                require(fd, path)
            if approved is not None and place.name not in approved:
                raise read_error(errno.ESTALE, path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _place(self, fd: int, root: Root, relative: str, shown_path: str) -> ResolvedPath:
        """The current path of an open file. One in the workspace belongs to it, whichever root led there."""
        path = path_of(fd) or os.path.realpath(os.path.join(root.path, relative))
        for owner in (self._home, *self.around.extras):
            base = owner.place
            if (inner := below(path, base)) is not None:
                return self._require_open(ResolvedPath(owner, base, inner), shown_path)
        raise OutsideWorkspace(f"{shown(shown_path)} has been moved out of the workspace.")

    def _require_open(self, place: ResolvedPath, shown_path: str) -> ResolvedPath:
        """Refuse the data directory of the service. Its path is read, as a parent folder may have been moved."""
        if self._records and not place.root.is_extra and is_inside(place.absolute, self._records.place):
            raise OutsideWorkspace(
                f"{shown(shown_path)} belongs to the service's own records, which no tool may touch."
            )
        return place


def lane_of(status: os.stat_result) -> str:
    """The lane of a folder: the same for every path that leads to it."""
    return f"workspace:{status.st_dev:x}:{status.st_ino:x}"


def _open(root: Root, relative: str, flags: int, path: str) -> int:
    try:
        return open_beneath(root.fd, relative, flags)
    except OSError as error:
        raise open_error(error, path) from None


def _require_sane(path: str) -> None:
    if not path:
        raise InvalidArgs('The path is empty; "." is the workspace itself.')
    if "\0" in path:
        raise InvalidArgs("The path contains a NUL byte, which no file name can have.")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise InvalidArgs("The path contains characters that no file name can have (lone surrogates).") from None
    if size > MAX_PATH_BYTES:
        raise read_error(errno.ENAMETOOLONG, path)


def _require_regular(fd: int, path: str) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise read_error(errno.EISDIR, path)
    if not stat.S_ISREG(mode):
        raise read_error(errno.EINVAL, path)


def _require_readable(fd: int, path: str) -> None:
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        _require_regular(fd, path)


def _read(fd: int, size: int, limit: int, path: str) -> bytes:
    """The whole content of an open file. If its size is right, two reads are enough."""
    chunks, room, start = list[bytes](), limit + 1, 0
    try:
        while room and (chunk := os.pread(fd, min(room, max(size - start, 0) + BUFFER_BYTES), start)):
            chunks.append(chunk)
            room, start = room - len(chunk), start + len(chunk)
    except OSError as error:
        raise open_error(error, path) from None
    if not room:
        raise TooLarge(f"{shown(path)} has more than {limit:,} bytes, which is more than this tool takes.")
    return b"".join(chunks)


def _is_same(status: os.stat_result, before: os.stat_result) -> bool:
    """Whether a file is unchanged. The ctime also shows a change whose mtime was set back."""
    return Stamp.of(status) == Stamp.of(before) and status.st_ctime_ns == before.st_ctime_ns


def _entries(fd: int, path: str) -> list[Entry]:
    try:
        with os.scandir(fd) as items:
            entries = [Entry(item.name, _kind(item)) for item in items]
    except OSError as error:
        raise open_error(error, path) from None
    return sorted(entries, key=lambda entry: os.fsencode(entry.name))


def _kind(item: os.DirEntry[str]) -> EntryKind:
    try:
        if item.is_symlink():
            return "symlink"
        if item.is_dir(follow_symlinks=False):
            return "directory"
        return "file" if item.is_file(follow_symlinks=False) else "other"
    except OSError:  # gone, or in a folder without search permission
        return "other"


def _mtime(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0
