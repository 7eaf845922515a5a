"""Small disks: a tmpfs in a mount namespace of its own, which services can be started in."""

import errno
import shutil
import subprocess
from pathlib import Path

WAYS_IN = (["-m"], ["-U", "-r", "-m"])  # as root, or as anybody where the kernel lets him
MOUNT = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && echo ready && exec cat'


class NoNamespace(Exception):
    """This machine lets nobody have a mount of his own."""


class SmallDisk:
    """A few megabytes at a path that only those inside see. It lives as long as the process that holds it."""

    def __init__(self, where: Path, size: str) -> None:
        where.mkdir()
        self.path = where
        said = []
        for flags in WAYS_IN:
            self._flags = flags
            self._holder = subprocess.Popen(
                ["unshare", *flags, "sh", "-c", MOUNT, "sh", size, str(where)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert self._holder.stdout is not None
            said.append(self._holder.stdout.readline().strip())
            if said[-1] == "ready":
                return
            self.close()
        raise NoNamespace(f"no private mount here: {'; '.join(said)}")

    def inside(self, command: list[str]) -> list[str]:
        """The same command, started where the disk is."""
        user = ["-U", "--preserve-credentials"] if "-U" in self._flags else []
        return ["nsenter", "-t", str(self._holder.pid), *user, "-m", "--", *command]

    @property
    def seen(self) -> Path:
        """Where the disk is for those outside."""
        return Path(f"/proc/{self._holder.pid}/root{self.path}")

    def fill(self, name: str) -> int:
        """Take all the space that is left; how much that was."""
        with (self.seen / name).open("ab", buffering=0) as file:
            before = file.tell()
            for size in (4096, 1):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
            return file.tell() - before

    def free(self, *names: str) -> None:
        for name in names:
            (self.seen / name).unlink()

    def copy(self, data_dir: str, to: Path) -> Path:
        """The database as it lies on the disk, brought out; SQLite would not find its way through /proc."""
        to.mkdir()
        for file in (self.seen / data_dir).glob("toolcrib.db*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, to)
        return to / "toolcrib.db"

    def close(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(60)
        self._holder.stdout.close()
