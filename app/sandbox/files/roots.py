"""Roots: folders that stay open, so that a rename does not change which folder is meant."""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from app.core.errors import Misconfigured
from app.core.sessions import is_inside
from app.core.util.path_text import printable
from app.sandbox.files.openat2 import O_PATH

Access = Literal["read", "write"]


class Root:
    """An existing folder, open until `close` or until it is garbage-collected.

    An extra root is outside the workspace: files in it are named by absolute paths.
    """

    fd = -1

    def __init__(self, path: Path, access: Access = "write", *, is_extra: bool = False) -> None:
        self.path = normal(os.path.abspath(path))
        self.access = access
        self.is_extra = is_extra
        self.fd = os.open(self.path, O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    @property
    def place(self) -> str:
        """The current path of the folder, symlinks resolved."""
        return path_of(self.fd) or os.path.realpath(self.path)

    @property
    def is_in_place(self) -> bool:
        """Whether its path still leads to the open folder."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except OSError:
            return False

    def inner(self, path: str) -> str | None:
        """An absolute path relative to the root, by either path of the root; None: it is not inside."""
        inner = below(path, self.path)
        return inner if inner is not None else below(path, self.place)


class ResolvedPath(NamedTuple):
    """A path in a root, whose current path is `base`. `inner` is spelled as in the file system."""

    root: Root
    base: str
    inner: str

    @property
    def absolute(self) -> str:
        return self.base if self.inner == "." else f"{self.base.rstrip('/')}/{self.inner}"

    @property
    def name(self) -> str:
        """The canonical name, which rules match."""
        return printable(self.absolute if self.root.is_extra else self.inner)


@dataclass(frozen=True, slots=True)
class RootSet:
    """The operator's extra roots, and the data directory of the service (`records`)."""

    extras: tuple[Root, ...] = ()
    records: Root | None = None

    def close(self) -> None:
        for root in (*self.extras, *([self.records] if self.records else [])):
            root.close()

    def records_in(self, root: Root) -> Root | None:
        """The data directory, if it is inside a root. A root inside the data directory may be used."""
        return self.records if self.records and is_inside(self.records.place, root.place) else None


def open_extras(settings: Iterable[tuple[Path, Access]], data_dir: Path) -> tuple[Root, ...]:
    """Open the operator's extra roots, longest path first, so that the innermost one applies."""
    records, found = os.path.realpath(data_dir), dict[str, Root]()
    for path, access in settings:
        root = _open(path, access)
        if is_inside(root.place, records) or is_inside(records, root.place):
            raise Misconfigured(
                f"extra_roots names {path}, which is in or around the data directory; name a folder outside of it."
            )
        if found.setdefault(root.place, root) is not root:
            raise Misconfigured(f"extra_roots names {path} twice; name each folder once.")
    return tuple(found[place] for place in sorted(found, key=len, reverse=True))


def path_of(fd: int) -> str | None:
    """The path of an open descriptor; None without /proc."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


def normal(path: str) -> str:
    """Lexically normalized, with one leading slash (POSIX allows a special meaning for two)."""
    return "/" + os.path.normpath(path).lstrip("/")


def below(path: str, root: str) -> str | None:
    """A path relative to a root; None if it is not inside."""
    if path == root:
        return "."
    prefix = root.rstrip("/") + "/"
    return path.removeprefix(prefix) if path.startswith(prefix) else None


def _open(path: Path, access: Access) -> Root:
    try:
        return Root(path, access, is_extra=True)
    except OSError as error:
        reason = "there is no such folder" if error.errno in (errno.ENOENT, errno.ENOTDIR) else error.strerror
        raise Misconfigured(f"extra_roots names {path}, which cannot be opened: {reason}.") from None
