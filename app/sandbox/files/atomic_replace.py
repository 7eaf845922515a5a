"""Swaps: one change of one file, in steps that can be gone back.

    write    the new content stands beside its place, on the disk
    put      it is in its place, and what was there stands beside it
    undo     everything is as it was: the same file again, not one like it
    finish   what was there before is gone

Nothing is put over another file unseen: what is in the place is looked at before, so that hardly ever the wrong one
is taken; and what was taken is looked at after, and given back if it is the wrong one all the same. What somebody else
has put in the place meanwhile is newer, and stays.
"""

import errno
import os
import stat

from app.core.ports import Change, Stamp
from app.sandbox.files import renameat2, temp_files
from app.sandbox.files.errors import unwritten
from app.sandbox.files.parent_dirs import Parent
from app.sandbox.files.temp_files import Identity, Names

NEW_MODE = 0o644
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
READ_ONLY = "{path} is read-only: this service may not write to it."


class Swap:
    """What all kinds have. `spare` is the temporary name in use: of what is not in its place yet, or not any more."""

    def __init__(self, parent: Parent, name: str, change: Change, names: Names) -> None:
        self.parent = parent
        self.name = name
        self.change = change
        self.names = names
        self.spare: str | None = None
        self.is_put = False

    @property
    def path(self) -> str:
        return self.change.path

    def write(self) -> None: ...

    def put(self) -> None: ...

    def finish(self) -> None:
        self._drop()

    def undo(self) -> None:
        if self.is_put:
            self._take_back()
            self.is_put = False
        self._drop()

    def keep(self) -> str | None:
        """Nothing can be undone here any more: let what stands beside stay there, and say how it is called."""
        return self.spare and temp_files.keep(self.parent.fd, self.spare)

    def _take_back(self) -> None: ...

    def _drop(self) -> None:
        if self.spare is not None:
            temp_files.drop(self.parent.fd, self.spare)
            self.spare = None

    def _is(self, name: str, identity: Identity | None) -> bool:
        about = self.parent.about(name)
        return about is not None and Identity(about.st_dev, about.st_ino) == identity

    def _require_before(self, name: str) -> None:
        """What has this name must be the file that the change is for, in the state it was in."""
        about = self.parent.about(name)
        if about is None or not stat.S_ISREG(about.st_mode) or Stamp.of(about) != self.change.before:
            raise unwritten(errno.ESTALE, self.path)


class Creation(Swap):
    """A file where there is none."""

    new: Identity | None = None

    def write(self) -> None:
        assert self.change.data is not None, "what has no content is a removal"
        mode = NEW_MODE if self.change.mode is None else self.change.mode
        self.spare = self.names.new()
        self.new = temp_files.write(self.parent.fd, self.spare, self.change.data, mode, self.parent.owner)

    def put(self) -> None:
        assert self.spare is not None, "it was written"
        renameat2.give(self.parent.fd, self.spare, self.name)
        self.spare, self.is_put = None, True

    def _take_back(self) -> None:
        if not self._is(self.name, self.new):
            return
        aside = self.names.new()
        renameat2.move(self.parent.fd, self.name, aside)
        self.spare = aside
        if not self._is(aside, self.new):
            renameat2.give(self.parent.fd, aside, self.name)
            self.spare = None


class Replacement(Swap):
    """Another content for a file that is there. Its mode stays, and its owner where the service may give files away."""

    new: Identity | None = None
    old: os.stat_result

    def write(self) -> None:
        assert self.change.data is not None, "what has no content is a removal"
        mode = stat.S_IMODE(self.old.st_mode)
        self.spare = self.names.new()
        self.new = temp_files.write(self.parent.fd, self.spare, self.change.data, mode, self.old)

    def put(self) -> None:
        assert self.spare is not None, "it was written"
        self._require_before(self.name)
        try:
            renameat2.exchange(self.parent.fd, self.spare, self.name)
        except renameat2.Unsupported:
            self._put_over()
            return
        self.is_put = True
        self._require_before(self.spare)

    def _put_over(self) -> None:
        """In two steps: between the last look and the rename somebody else's change can be lost, but no content."""
        folder, new, old = self.parent.fd, self.spare, self.names.new()
        assert new is not None, "it was written"
        try:
            self._save(old)
            self._require_before(self.name)
            renameat2.move(folder, new, self.name)
        except BaseException:
            temp_files.drop(folder, old)
            raise
        self.spare, self.is_put = old, True

    def _save(self, name: str) -> None:
        """The old file by a second name, or else a copy of it."""
        if renameat2.link(self.parent.fd, self.name, name):
            self._require_before(name)
            return
        fd = os.open(self.name, READ, dir_fd=self.parent.fd)
        try:
            temp_files.copy(self.parent.fd, name, fd)
        finally:
            os.close(fd)

    def _take_back(self) -> None:
        assert self.spare is not None, "the old file stands there"
        if not self._is(self.name, self.new):
            return
        try:
            renameat2.exchange(self.parent.fd, self.spare, self.name)
        except renameat2.Unsupported:
            renameat2.move(self.parent.fd, self.spare, self.name)
            self.spare = None
            return
        if not self._is(self.spare, self.new):
            renameat2.exchange(self.parent.fd, self.spare, self.name)


class Removal(Swap):
    """A file taken away."""

    def put(self) -> None:
        spare = self.names.new()
        self._require_before(self.name)
        renameat2.move(self.parent.fd, self.name, spare)
        self.spare, self.is_put = spare, True
        self._require_before(spare)

    def _take_back(self) -> None:
        assert self.spare is not None, "the old file stands there"
        try:
            renameat2.give(self.parent.fd, self.spare, self.name)
        except FileExistsError:
            return
        self.spare = None


def swap_for(change: Change, name: str, parent: Parent, names: Names) -> Swap:
    """The swap that makes a change, once it is clear that it can be made as things are now."""
    about = parent.about(name)
    if about is not None:
        _require_regular(about, change.path)
    if change.before is None:
        if about is not None:
            raise unwritten(errno.EEXIST, change.path)
        if change.data is None:
            raise unwritten(errno.ENOENT, change.path)
        return Creation(parent, name, change, names)
    if about is None or Stamp.of(about) != change.before:
        raise unwritten(errno.ESTALE, change.path)
    if change.data is None:
        return Removal(parent, name, change, names)
    if not os.access(name, os.W_OK, dir_fd=parent.fd, effective_ids=True):
        raise unwritten(errno.EACCES, change.path, READ_ONLY)
    replacement = Replacement(parent, name, change, names)
    replacement.old = about
    return replacement


def _require_regular(about: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(about.st_mode):
        raise unwritten(errno.ELOOP, path)
    if stat.S_ISDIR(about.st_mode):
        raise unwritten(errno.EISDIR, path)
    if not stat.S_ISREG(about.st_mode):
        raise unwritten(errno.EINVAL, path)
