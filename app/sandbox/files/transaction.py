"""All-or-nothing changes of files: each is written to a temporary file, synced, and renamed into place.

First every change is checked, then all new contents are written, then one after the other is put in place. If any
step fails, everything is undone. A reader always finds each file whole, old or new.

Each change is a swap with these steps:

    write    the new content is on the disk in a temporary file
    put      it is in place, and the old file has the temporary name
    undo     everything is as before: the same file again, not a copy
    finish   the old file is removed

No file is overwritten unseen: it is checked before the rename, and what was actually replaced is checked after it and
put back if it is the wrong one. A file that another process has put in place meanwhile is newer, and stays.

A replaced file has a new inode: it keeps its mode and, if the service may set them, its owner and group; extended
attributes are lost, and other hard links of the old file keep the old content.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from app.core.errors import CallError
from app.core.ports import Change, Stamp
from app.core.util.path_text import printable
from app.sandbox.files import renameat2, temp_files
from app.sandbox.files.errors import write_error, writing
from app.sandbox.files.parent_dirs import Parent, Parents
from app.sandbox.files.roots import ResolvedPath
from app.sandbox.files.temp_files import Identity, Names

NEW_MODE = 0o644
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
READ_ONLY = "{path} is read-only: this service may not write to it."


@dataclass(frozen=True, slots=True)
class Target:
    """A change, and the path it is for."""

    change: Change
    place: ResolvedPath


def commit(targets: Sequence[Target]) -> None:
    """Make all changes or none. Raises a `CallError`."""
    with closing(Parents()) as parents, closing(Names()) as names, ExitStack() as lock:
        swaps = list[Swap]()
        try:
            for target in targets:
                with writing(target.change.path):
                    name = target.place.inner.rpartition("/")[2]
                    swaps.append(swap_for(target.change, name, parents.find(target.place), names))
            _each(swaps, lambda swap: parents.make(swap.parent))
            _each(swaps, lambda swap: swap.write())
            lock.enter_context(parents.lock())
            _each(swaps, lambda swap: swap.put())
            lock.close()
            with writing(targets[0].change.path):
                parents.sync()
        except BaseException as error:
            lost = _undo(swaps)
            parents.undo()
            if lost and isinstance(error, CallError):
                error.message += f" What was changed could not be put back: {', '.join(lost)}."
                error.args = (error.message,)
            raise
        for swap in swaps:
            swap.finish()
        parents.sweep()


def _each(swaps: "Sequence[Swap]", step: "Callable[[Swap], None]") -> None:
    """A missing file existed when it was checked, so it is reported as changed."""
    for swap in swaps:
        with writing(swap.path):
            try:
                step(swap)
            except FileNotFoundError:
                raise write_error(errno.ESTALE, swap.path) from None


def _undo(swaps: "Sequence[Swap]") -> list[str]:
    """The paths that could not be undone, with the names that their old contents have now."""
    lost = []
    for swap in reversed(swaps):
        try:
            swap.undo()
        except OSError:
            saved = swap.preserve()
            lost.append(printable(f"{swap.path} is kept beside it as {saved}" if saved else swap.path))
    return lost


class Swap:
    """A reversible change of one file. `temp_name` is the temporary file in use: the new content, or the old one."""

    def __init__(self, parent: Parent, name: str, change: Change, names: Names) -> None:
        self.parent = parent
        self.name = name
        self.change = change
        self.names = names
        self.temp_name: str | None = None
        self.is_in_place = False

    @property
    def path(self) -> str:
        return self.change.path

    def write(self) -> None: ...

    def put(self) -> None: ...

    def finish(self) -> None:
        self._drop()

    def undo(self) -> None:
        if self.is_in_place:
            self._take_back()
            self.is_in_place = False
        self._drop()

    def preserve(self) -> str | None:
        """Undoing failed: keep the temporary file under a lasting name, which is returned."""
        return self.temp_name and temp_files.preserve(self.parent.fd, self.temp_name)

    def _take_back(self) -> None: ...

    def _drop(self) -> None:
        if self.temp_name is not None:
            temp_files.drop(self.parent.fd, self.temp_name)
            self.temp_name = None

    def _is(self, name: str, identity: Identity | None) -> bool:
        status = self.parent.status(name)
        return status is not None and Identity(status.st_dev, status.st_ino) == identity

    def _require_before(self, name: str) -> None:
        """The file of this name must be the one that the change is for, in its expected state."""
        status = self.parent.status(name)
        if status is None or not stat.S_ISREG(status.st_mode) or Stamp.of(status) != self.change.before:
            raise write_error(errno.ESTALE, self.path)


class Creation(Swap):
    """A new file."""

    new: Identity | None = None

    def write(self) -> None:
        assert self.change.data is not None, "a change without content is a removal"
        mode = NEW_MODE if self.change.mode is None else self.change.mode
        self.temp_name = self.names.new()
        self.new = temp_files.write(self.parent.fd, self.temp_name, self.change.data, mode, self.parent.owner)

    def put(self) -> None:
        assert self.temp_name is not None, "it was written"
        renameat2.rename_new(self.parent.fd, self.temp_name, self.name)
        self.temp_name, self.is_in_place = None, True

    def _take_back(self) -> None:
        if not self._is(self.name, self.new):
            return
        aside = self.names.new()
        renameat2.move(self.parent.fd, self.name, aside)
        self.temp_name = aside
        if not self._is(aside, self.new):
            renameat2.rename_new(self.parent.fd, aside, self.name)
            self.temp_name = None


class Replacement(Swap):
    """New content for an existing file. It keeps its mode, and its owner where the service may set it."""

    new: Identity | None = None
    old: os.stat_result

    def write(self) -> None:
        assert self.change.data is not None, "a change without content is a removal"
        mode = stat.S_IMODE(self.old.st_mode)
        self.temp_name = self.names.new()
        self.new = temp_files.write(self.parent.fd, self.temp_name, self.change.data, mode, self.old)

    def put(self) -> None:
        assert self.temp_name is not None, "it was written"
        self._require_before(self.name)
        try:
            renameat2.exchange(self.parent.fd, self.temp_name, self.name)
        except renameat2.Unsupported:
            self._rename_over()
            return
        self.is_in_place = True
        self._require_before(self.temp_name)

    def _rename_over(self) -> None:
        """In two steps: a change between the last check and the rename can be lost, but the old content is saved."""
        folder, new, old = self.parent.fd, self.temp_name, self.names.new()
        assert new is not None, "it was written"
        try:
            self._save(old)
            self._require_before(self.name)
            renameat2.move(folder, new, self.name)
        except BaseException:
            temp_files.drop(folder, old)
            raise
        self.temp_name, self.is_in_place = old, True

    def _save(self, name: str) -> None:
        """Save the old file under a second name, as a hard link or a copy."""
        if renameat2.link(self.parent.fd, self.name, name):
            self._require_before(name)
            return
        fd = os.open(self.name, READ, dir_fd=self.parent.fd)
        try:
            temp_files.copy(self.parent.fd, name, fd)
        finally:
            os.close(fd)

    def _take_back(self) -> None:
        assert self.temp_name is not None, "it names the old file"
        if not self._is(self.name, self.new):
            return
        try:
            renameat2.exchange(self.parent.fd, self.temp_name, self.name)
        except renameat2.Unsupported:
            renameat2.move(self.parent.fd, self.temp_name, self.name)
            self.temp_name = None
            return
        if not self._is(self.temp_name, self.new):
            renameat2.exchange(self.parent.fd, self.temp_name, self.name)


class Removal(Swap):
    """The removal of a file."""

    def put(self) -> None:
        temp_name = self.names.new()
        self._require_before(self.name)
        renameat2.move(self.parent.fd, self.name, temp_name)
        self.temp_name, self.is_in_place = temp_name, True
        self._require_before(temp_name)

    def _take_back(self) -> None:
        assert self.temp_name is not None, "it names the old file"
        try:
            renameat2.rename_new(self.parent.fd, self.temp_name, self.name)
        except FileExistsError:
            return
        self.temp_name = None


def swap_for(change: Change, name: str, parent: Parent, names: Names) -> Swap:
    """The swap for a change, after checking that it can be made now."""
    status = parent.status(name)
    if status is not None:
        _require_regular(status, change.path)
    if change.before is None:
        if status is not None:
            raise write_error(errno.EEXIST, change.path)
        if change.data is None:
            raise write_error(errno.ENOENT, change.path)
        return Creation(parent, name, change, names)
    if status is None or Stamp.of(status) != change.before:
        raise write_error(errno.ESTALE, change.path)
    if change.data is None:
        return Removal(parent, name, change, names)
    if not os.access(name, os.W_OK, dir_fd=parent.fd, effective_ids=True):
        raise write_error(errno.EACCES, change.path, READ_ONLY)
    replacement = Replacement(parent, name, change, names)
    replacement.old = status
    return replacement


def _require_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise write_error(errno.ELOOP, path)
    if stat.S_ISDIR(status.st_mode):
        raise write_error(errno.EISDIR, path)
    if not stat.S_ISREG(status.st_mode):
        raise write_error(errno.EINVAL, path)
