"""The lock on a data directory: one service at a time. The file holds the URL of the running service.

It is an open file description lock (F_OFD_SETLK): other processes can test it
without taking it, and the kernel releases it when the process ends.
"""

import fcntl
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE_NAME = "service.lock"
MAX_BYTES = 64 * 1024

_FLOCK = "hhqqi"  # struct flock: type, whence, start, length, pid
_WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class AlreadyRunning(Exception):
    """Another service uses the data directory."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds the lock; None for what it has not written yet."""

    pid: int | None = None
    url: str | None = None
    certificate: str | None = None

    def __str__(self) -> str:
        facts = [f"{name} {value}" for name, value in (("pid", self.pid), ("url", self.url)) if value]
        return ", ".join(facts) or "just starting"


class DataDirLock:
    """The lock held by this process. `url` is where the service listens."""

    url: str | None = None

    def __init__(self, data_dir: Path) -> None:
        self._fd = os.open(data_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except BlockingIOError:
            holder = _read(self._fd)
            os.close(self._fd)
            raise already_running(data_dir, holder) from None
        except OSError:
            os.close(self._fd)
            raise

    def write(self, **facts: Any) -> None:
        """Write the pid and these facts into the lock file."""
        self.url = facts.get("url")
        data = json.dumps({"pid": os.getpid(), **facts}).encode()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def find_holder(data_dir: Path) -> Holder | None:
    """The process that holds the lock, without taking it; None when it is free."""
    try:
        fd = os.open(data_dir / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        kind = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WHOLE_FILE))[0]
        return None if kind == fcntl.F_UNLCK else _read(fd)
    finally:
        os.close(fd)


def holder_url(data_dir: Path) -> str | None:
    """The URL of the running service of a data directory; None when no service runs."""
    holder = find_holder(data_dir)
    return holder.url if holder else None


def already_running(data_dir: Path, holder: Holder) -> AlreadyRunning:
    return AlreadyRunning(
        f"Another Toolcrib ({holder}) uses the data directory {data_dir}. "
        "Stop it, or start this one with another --data-dir."
    )


def _read(fd: int) -> Holder:
    try:
        facts = json.loads(os.pread(fd, MAX_BYTES, 0))
        return Holder(facts.get("pid"), facts.get("url"), facts.get("certificate"))
    except (ValueError, AttributeError):  # the file is empty until the holder writes it
        return Holder()
