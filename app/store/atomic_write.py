"""Files written whole: under another name first, so that others see the old one or the new one, never a part."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written(path: Path, *, replace: bool) -> Iterator[Path]:
    """A fresh file for the owner alone, which gets the name and is on the disk when the block ends well."""
    part = beside(path)
    try:
        yield part
        sync(part)
        if replace:
            part.replace(path)
        else:
            _name(part, path)
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def beside(path: Path) -> Path:
    """An empty file in the same folder, for the owner alone."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(fd)
    return Path(name)


def sync(path: Path) -> None:
    """Let a file or a folder be on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _name(part: Path, path: Path) -> None:
    """Give the file a name that must be free."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # file systems without links, as on many a stick
        if path.exists():
            raise FileExistsError(f"{path} exists.") from None
        part.rename(path)
