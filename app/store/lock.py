"""The lock on a data directory: one service at a time. The file says where the holder can be reached.

It is a lock of the open file (F_OFD_SETLK), because of all kinds it is the one
that others can look at without taking it, and that ends with its process.
"""

import fcntl
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE_NAME = "service.lock"
MOST_BYTES = 64 * 1024

_FLOCK = "hhqqi"  # struct flock: type, whence, start, length, pid
_WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class AlreadyRunning(Exception):
    """Another service holds the data directory."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a data directory. What it has not said yet is None."""

    pid: int | None = None
    url: str | None = None
    certificate: str | None = None

    def __str__(self) -> str:
        said = [f"{name} {value}" for name, value in (("pid", self.pid), ("url", self.url)) if value]
        return ", ".join(said) or "just starting"


class DataDirLock:
    """Held by an open file, so that it ends with the process, however that ends. `url` is where the holder listens."""

    url: str | None = None

    def __init__(self, data_dir: Path) -> None:
        self._fd = os.open(data_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except BlockingIOError:
            found = _said(self._fd)
            os.close(self._fd)
            raise already_running(data_dir, found) from None
        except OSError:
            os.close(self._fd)
            raise

    def write(self, **facts: Any) -> None:
        """Say who holds the lock and where."""
        self.url = facts.get("url")
        data = json.dumps({"pid": os.getpid(), **facts}).encode()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def holder(data_dir: Path) -> Holder | None:
    """Who holds a data directory now, found without taking or changing anything; None when nobody does."""
    try:
        fd = os.open(data_dir / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        kind = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WHOLE_FILE))[0]
        return None if kind == fcntl.F_UNLCK else _said(fd)
    finally:
        os.close(fd)


def holder_url(data_dir: Path) -> str | None:
    """Where the running service of a data directory listens; None when none runs."""
    found = holder(data_dir)
    return found.url if found else None


def already_running(data_dir: Path, found: Holder) -> AlreadyRunning:
    return AlreadyRunning(
        f"Another Toolcrib ({found}) uses the data directory {data_dir}. "
        "Stop it, or start this one with another --data-dir."
    )


def _said(fd: int) -> Holder:
    try:
        facts = json.loads(os.pread(fd, MOST_BYTES, 0))
        return Holder(facts.get("pid"), facts.get("url"), facts.get("certificate"))
    except (ValueError, AttributeError):  # between being taken and being written it is empty
        return Holder()
