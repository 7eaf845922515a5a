"""A workspace on this machine's disk. Every path goes through the race-free opener, never by name."""

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import BinaryIO

from app.core.errors import CallError, FileFailed, InvalidArgs, OutsideWorkspace, TooLarge
from app.core.files import Change, Snapshot, Stamp, require_editable
from app.core.ports import MOST_LOADED, Entry, EntryKind
from app.sandbox.changes import make, stamp_of
from app.sandbox.openat2 import O_PATH, StepRefused, open_beneath

# O_NONBLOCK: a pipe or a device must not keep us waiting before we know what it is.
FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
FOLDER = os.O_RDONLY | os.O_NONBLOCK | os.O_DIRECTORY
BUFFER = 65_536
MOST_PATH_BYTES = 4095
MOST_SHOWN = 300

SENTENCES = {
    errno.ENOENT: "{path} does not exist.",
    errno.ENOTDIR: "{path} is not a directory, or a part of it is a file.",
    errno.EISDIR: "{path} is a directory, not a file.",
    errno.EACCES: "{path} may not be read by this service.",
    errno.ELOOP: "{path} goes through too many symlinks, or through one that is never followed.",
    errno.ENAMETOOLONG: "{path} is too long for a path; use a shorter one.",
    errno.ESTALE: "{path} changed after it was checked; try again.",
    errno.EINVAL: "{path} is a pipe, a device or a socket and cannot be read as a file.",
}


class LocalWorkspace:
    """A folder that exists, held open from the start: renaming it changes nothing, leaving it is impossible.

    It is closed when it is told to, or when nobody holds it any more. Its lane is its own, unless another is given.
    """

    _fd = -1

    def __init__(self, root: Path, lane: str | None = None) -> None:
        self.root = _normal(os.path.abspath(root))
        self._fd = os.open(self.root, O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.lane = lane or lane_of(os.fstat(self._fd))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def in_lane(self, lane: str) -> "LocalWorkspace":
        """The same folder, held once more, with another lane."""
        held = os.dup(self._fd)
        other = copy(self)
        other._fd, other.lane = held, lane
        return other

    @property
    def whereabouts(self) -> str:
        """Where the folder is now, symlinks resolved, whatever it was opened by."""
        return _whereabouts(self._fd) or os.path.realpath(self.root)

    @property
    def is_in_place(self) -> bool:
        """Whether its path still leads to the folder that is held open."""
        try:
            return os.path.samestat(os.stat(self.root), os.fstat(self._fd))
        except OSError:
            return False

    def display(self, path: str) -> str:
        if path.startswith("/"):
            return _printable(path)
        return _printable(os.path.join(self.root, *(part for part in path.split("/") if part not in ("", "."))))

    def name(self, path: str) -> str:
        here, rest, flags = self._relative(path), list[str](), O_PATH
        while True:
            try:
                with self._opened(here, flags, path) as fd:
                    return _joined(self._name_of(fd, here), rest, path)
            except FileFailed as error:
                if error.code not in ("ENOENT", "ENOTDIR") or here == ".":
                    raise
            here, _, last = here.rstrip("/").rpartition("/")
            here, rest, flags = here or ".", [last, *rest], O_PATH | os.O_DIRECTORY

    def open(self, path: str, *, approved: Collection[str] | None = None) -> BinaryIO:
        relative = self._relative(path)
        with self._opened(relative, FILE, path) as fd:
            _require_regular(fd, path)
            self._require_approved(fd, relative, path, approved)
            return os.fdopen(os.dup(fd), "rb", buffering=BUFFER)

    def scan(self, path: str, *, approved: Collection[str] | None = None) -> Iterator[Entry]:
        relative = self._relative(path)
        with self._opened(relative, FOLDER, path) as fd:
            self._require_approved(fd, relative, path, approved)
            return iter(_entries(fd, path))

    @contextmanager
    def hold(self, path: str, *, approved: Collection[str] | None = None) -> Iterator[tuple[int, bool]]:
        relative = self._relative(path)
        with self._opened(relative, FILE, path) as fd:
            is_file = not stat.S_ISDIR(os.fstat(fd).st_mode)
            if is_file:
                _require_regular(fd, path)
            self._require_approved(fd, relative, path, approved)
            yield fd, is_file

    def closed_below(self, fd: int) -> str | None:
        return None

    def times(self, path: str, names: Iterable[str], *, approved: Collection[str] | None = None) -> list[int]:
        with self.hold(path, approved=approved) as (fd, _):
            return [_changed(fd, name) for name in names]

    def load(self, path: str, *, approved: Collection[str] | None = None, limit: int = MOST_LOADED) -> Snapshot:
        with self.open(path, approved=approved) as file:
            about = os.fstat(file.fileno())
            data = file.read(limit + 1)
        if len(data) > limit:
            raise TooLarge(f"{_shown(path)} has more than {limit:,} bytes, which is more than this tool takes.")
        return Snapshot(data, stamp_of(about), stat.S_IMODE(about.st_mode))

    def stamp(self, path: str, *, approved: Collection[str] | None = None) -> Stamp | None:
        relative = self._relative(path)
        try:
            with self._opened(relative, FILE, path) as fd:
                _require_regular(fd, path)
                self._require_approved(fd, relative, path, approved)
                return stamp_of(os.fstat(fd))
        except FileFailed as error:
            if error.code != "ENOENT":
                raise
            return None

    def commit(self, changes: Sequence[Change], *, approved: Collection[str] | None = None) -> None:
        names = [self.name(change.path) for change in changes]
        for change, name in zip(changes, names, strict=True):
            require_editable(name)
            if approved is not None and name not in approved:
                raise _failed(errno.ESTALE, change.path)
        make(self._fd, list(zip(names, changes, strict=True)))

    def _relative(self, path: str) -> str:
        """The path as the opener takes it. Whether it stays inside is for the opener to find out."""
        _require_sane(path)
        if not path.startswith("/"):
            return path
        asked = _normal(path)
        for root in (self.root, self.whereabouts):
            inner = _below(asked, root)
            if inner is not None:
                return inner
        raise OutsideWorkspace(f"{_shown(path)} is outside the workspace; use a path inside {_printable(self.root)}.")

    @contextmanager
    def _opened(self, relative: str, flags: int, path: str) -> Iterator[int]:
        try:
            fd = open_beneath(self._fd, relative, flags)
        except OSError as error:
            raise _explained(error, path) from None
        try:
            yield fd
        finally:
            os.close(fd)

    def _require_approved(self, fd: int, relative: str, path: str, approved: Collection[str] | None) -> None:
        if approved is not None and self._name_of(fd, relative) not in approved:
            raise _failed(errno.ESTALE, path)

    def _name_of(self, fd: int, relative: str) -> str:
        """Where an open thing is now, seen from the root. Bytes that are not UTF-8 are replaced: rules match text."""
        where = _whereabouts(fd) or os.path.realpath(os.path.join(self.root, relative))
        inner = _below(where, self.whereabouts)
        if inner is None:
            raise OutsideWorkspace(f"{_shown(relative)} has been moved out of the workspace.")
        return _printable(inner)


def lane_of(about: os.stat_result) -> str:
    """The name of a folder's own gate: the same by whatever path it is reached."""
    return f"workspace:{about.st_dev:x}:{about.st_ino:x}"


def _whereabouts(fd: int) -> str | None:
    """The kernel's own name for an open thing; None where there is no /proc to ask."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


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
        raise _failed(errno.ENAMETOOLONG, path)


def _require_regular(fd: int, path: str) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise _failed(errno.EISDIR, path)
    if not stat.S_ISREG(mode):
        raise _failed(errno.EINVAL, path)


def _changed(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def _joined(folder: str, rest: list[str], path: str) -> str:
    """A name below an existing folder. The rest does not exist, so `..` in it can only be taken literally."""
    if not rest:
        return folder
    name = os.path.normpath(os.path.join(folder, *rest))
    if name == ".." or name.startswith("../"):
        raise _outside(path)
    return _printable(name)


def _entries(fd: int, path: str) -> list[Entry]:
    try:
        with os.scandir(fd) as items:
            entries = [Entry(item.name, _kind(item)) for item in items]
    except OSError as error:
        raise _explained(error, path) from None
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


def _explained(error: OSError, path: str) -> CallError:
    """The system's error as one that shows the path as the caller gave it, and no other."""
    if isinstance(error, StepRefused):
        return OutsideWorkspace(
            f"{_shown(path)} goes through `{_shown(error.filename)}`: symlinks and `..` are not followed"
            " on this system; name the file by its own path."
        )
    if error.errno == errno.EXDEV:
        return _outside(path)
    if error.errno in (errno.ENXIO, errno.ENODEV):  # what opening a socket or a device without driver gives
        return _failed(errno.EINVAL, path)
    return _failed(error.errno or errno.EIO, path)


def _outside(path: str) -> OutsideWorkspace:
    return OutsideWorkspace(
        f"{_shown(path)} leads out of the workspace by `..` or a symlink (absolute symlinks count as outside);"
        " use a path that stays inside."
    )


def _failed(number: int, path: str) -> FileFailed:
    sentence = SENTENCES.get(number)
    return FileFailed(number, _shown(path), sentence and sentence.format(path=_shown(path)))


def _normal(path: str) -> str:
    """Lexically normal, with one leading slash (POSIX lets two mean something else)."""
    return "/" + os.path.normpath(path).lstrip("/")


def _below(path: str, root: str) -> str | None:
    if path == root:
        return "."
    prefix = root.rstrip("/") + "/"
    return path.removeprefix(prefix) if path.startswith(prefix) else None


def _shown(path: str) -> str:
    text = _printable(path)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"


def _printable(path: str) -> str:
    return os.fsencode(path).decode(errors="replace")
