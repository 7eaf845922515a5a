"""Roots: folders that are held open. What they are called may change; what they are does not."""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from app.core.errors import Misconfigured
from app.core.sessions import is_inside
from app.sandbox.files.errors import printable
from app.sandbox.files.openat2 import O_PATH

Access = Literal["read", "write"]


class Root:
    """A folder that exists, held open from the start; closed when it is told to, or when nobody has it any more.

    An extra one lies beside the workspace: what is in it is called by its absolute path.
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
        """Where the folder is now, symlinks resolved, whatever it was opened by."""
        return path_of(self.fd) or os.path.realpath(self.path)

    @property
    def is_in_place(self) -> bool:
        """Whether its path still leads to the folder that is held open."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except OSError:
            return False

    def inner(self, path: str) -> str | None:
        """What an absolute path is called in here, by either name of the root; None: it is not in here."""
        inner = below(path, self.path)
        return inner if inner is not None else below(path, self.place)


class ResolvedPath(NamedTuple):
    """Where something is: in this root, which is at `base` now. `inner` is spelt as the system spells it."""

    root: Root
    base: str
    inner: str

    @property
    def absolute(self) -> str:
        return self.base if self.inner == "." else f"{self.base.rstrip('/')}/{self.inner}"

    @property
    def name(self) -> str:
        """The canonical name, as rules see it."""
        return printable(self.absolute if self.root.is_extra else self.inner)


@dataclass(frozen=True, slots=True)
class RootSet:
    """What is around a workspace: the operator's extra roots, and the folder of the service's own records."""

    extras: tuple[Root, ...] = ()
    records: Root | None = None

    def close(self) -> None:
        for root in (*self.extras, *([self.records] if self.records else [])):
            root.close()

    def records_in(self, root: Root) -> Root | None:
        """The records, if they lie in a root. A root that was put among them is there to be used."""
        return self.records if self.records and is_inside(self.records.place, root.place) else None


def open_extras(settings: Iterable[tuple[Path, Access]], data_dir: Path) -> tuple[Root, ...]:
    """The operator's extra roots, the longest first: it is the one that counts for what is in it."""
    records, found = os.path.realpath(data_dir), dict[str, Root]()
    for path, access in settings:
        root = _opened(path, access)
        if is_inside(root.place, records) or is_inside(records, root.place):
            raise Misconfigured(
                f"extra_roots names {path}, which is in or around the data directory; name a folder apart from it."
            )
        if found.setdefault(root.place, root) is not root:
            raise Misconfigured(f"extra_roots names {path} twice; name each folder once.")
    return tuple(found[place] for place in sorted(found, key=len, reverse=True))


def path_of(fd: int) -> str | None:
    """The kernel's own name for an open thing; None where there is no /proc to ask."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


def normal(path: str) -> str:
    """Lexically normal, with one leading slash (POSIX lets two mean something else)."""
    return "/" + os.path.normpath(path).lstrip("/")


def below(path: str, root: str) -> str | None:
    if path == root:
        return "."
    prefix = root.rstrip("/") + "/"
    return path.removeprefix(prefix) if path.startswith(prefix) else None


def _opened(path: Path, access: Access) -> Root:
    try:
        return Root(path, access, is_extra=True)
    except OSError as error:
        reason = "there is no such folder" if error.errno in (errno.ENOENT, errno.ENOTDIR) else error.strerror
        raise Misconfigured(f"extra_roots names {path}, and it cannot be opened: {reason}.") from None
