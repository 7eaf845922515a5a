"""The lock on a data directory: one service at a time. The file says where the holder can be reached."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

FILE_NAME = "service.lock"


class AlreadyRunning(Exception):
    """Another service holds the data directory."""


class DataDirLock:
    """Held by an open file, so that it ends with the process, however that ends."""

    def __init__(self, data_dir: Path) -> None:
        self._fd = os.open(data_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._fd, 4096, 0)
            os.close(self._fd)
            raise AlreadyRunning(
                f"Another Toolcrib ({_describe(holder)}) uses the data directory {data_dir}. "
                "Stop it, or start this one with another --data-dir."
            ) from None

    def write(self, **facts: Any) -> None:
        """Say who holds the lock and where."""
        data = json.dumps({"pid": os.getpid(), **facts}).encode()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def holder_url(data_dir: Path) -> str | None:
    """Where the running service of a data directory listens; None when none runs."""
    path = data_dir / FILE_NAME
    if not path.exists():
        return None
    try:
        lock = DataDirLock(data_dir)
    except AlreadyRunning:
        url = json.loads(path.read_text() or "{}").get("url")
        return str(url) if url else None
    lock.release()
    return None


def _describe(facts: bytes) -> str:
    try:
        return ", ".join(f"{name} {value}" for name, value in json.loads(facts).items())
    except ValueError:
        return "just starting"
