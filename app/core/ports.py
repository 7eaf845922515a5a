"""The ports: what the house needs of the world, said as Protocols. `main` hands the implementations in."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, Protocol

EntryKind = Literal["file", "directory", "symlink", "other"]


class Clock(Protocol):
    """Wall time for records, monotonic time for durations."""

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory."""

    name: str
    kind: EntryKind


class Scope(Protocol):
    """What `needs` may ask before anything runs."""

    def name(self, path: str) -> str:
        """The canonical workspace-relative path ("." is the root), symlinks resolved.

        Raises `OutsideWorkspace`. A path that does not exist is named by its nearest existing folder.
        """
        ...


class Workspace(Scope, Protocol):
    """A folder tools may touch, and nothing outside it. Every path goes through the race-free opener."""

    @property
    def root(self) -> str:
        """The absolute path, for messages meant for the model."""
        ...

    @property
    def lane(self) -> str:
        """The name of the gate that orders work in this workspace."""
        ...

    def display(self, path: str) -> str:
        """The absolute form of a path as the caller gave it, for showing."""
        ...

    def open(self, path: str, *, approved: str | None = None) -> BinaryIO:
        """Open a regular file for reading.

        With `approved`, the file that was opened must be the one of that canonical name.
        Raises `OutsideWorkspace` or `FileFailed` (ENOENT, EACCES, EISDIR, EINVAL for pipes and devices …).
        """
        ...

    def scan(self, path: str, *, approved: str | None = None) -> Iterator[Entry]:
        """The entries of one directory, sorted by name; symlinks are told, not followed."""
        ...
