"""Temporary folders of processes: one for each, of its own, gone with it.

All of a service lie in one folder, whose name tells of which data directory it is: only one service can be at work on
that, so whatever an earlier one left behind belongs to nobody any more.
"""

import asyncio
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from contextlib import suppress

from app.sandbox.files.openat2 import O_PATH

PREFIX = "toolcrib"


class TemporaryFolders:
    """Made when it is first asked for one."""

    def __init__(self, data_dir: str, identity: tuple[int, int] | None) -> None:
        self._stem = f"{PREFIX}-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]}-"
        self._identity = identity
        self._base: str | None = None

    def new(self) -> str:
        """A folder that nobody but its process can look into, by its own path, without symlinks."""
        if self._base is None or not os.path.isdir(self._base):
            self._base = os.path.realpath(tempfile.mkdtemp(prefix=self._stem))
            os.chmod(self._base, 0o711)  # its processes go through, and see nothing of each other
        path = f"{self._base}/{secrets.token_hex(8)}"
        os.mkdir(path, 0o700)
        if self._identity is not None:
            os.chown(path, *self._identity)
        return path

    async def drop(self, path: str) -> None:
        """One whose process has ended. Most often nothing was left in it."""
        try:
            os.rmdir(path)
        except OSError:
            await asyncio.to_thread(self.remove, path)

    @staticmethod
    def remove(path: str) -> None:
        """By descriptors, so that no link in it leads out. What cannot be removed is left to the next start."""
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):  # a process may have closed folders of its own to everybody
            _open_up(path)
            shutil.rmtree(path, ignore_errors=True)

    def sweep(self) -> None:
        """Take away what a service that was killed left behind. Nobody else's, and nothing that a link leads to."""
        root = tempfile.gettempdir()
        with suppress(OSError), os.scandir(root) as entries:
            for path in [entry.path for entry in entries if entry.name.startswith(self._stem)]:
                about = os.lstat(path)
                if path != self._base and stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                    self.remove(path)

    def close(self) -> None:
        if self._base is not None:
            self.remove(self._base)
            self._base = None


def _open_up(path: str) -> None:
    """Give ourselves the rights on every folder in it, before it is gone into. No link is followed."""
    with suppress(OSError):
        os.chmod(path, 0o700)
    for _, folders, _, here in os.fwalk(path):
        for name in folders:
            with suppress(OSError):
                fd = os.open(name, O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
                try:
                    os.chmod(f"/proc/self/fd/{fd}", 0o700)
                finally:
                    os.close(fd)
