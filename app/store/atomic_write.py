"""Atomic file writes: under a temporary name first, so that readers see the old file or the new one, never a part."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(path: Path, *, replace: bool) -> Iterator[Path]:
    """A temporary file with mode 0600 that is synced and renamed to `path` when the block succeeds."""
    part = temporary_file(path)
    try:
        yield part
        sync(part)
        if replace:
            part.replace(path)
        else:
            _link(part, path)
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def temporary_file(path: Path) -> Path:
    """An empty file with mode 0600 in the same directory."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(fd)
    return Path(name)


def sync(path: Path) -> None:
    """fsync a file or a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _link(part: Path, path: Path) -> None:
    """Name the file; raises `FileExistsError` if the name is in use."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links, such as FAT
        if path.exists():
            raise FileExistsError(f"{path} exists.") from None
        part.rename(path)
