"""Files as tools see them: what tells one state of a file from another, and what is to become of it."""

import errno
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from app.core.errors import FileFailed, PermissionDenied
from app.core.ports import PathScope
from app.core.rules import Need

EXTERNAL = "external_directory"
CLOSED_NAME = ".git"
ASKED_AT_ONCE = 64


def touching(scope: PathScope, permission: str, paths: Iterable[str]) -> list[Need]:
    """What a tool needs that reads or edits these paths: each by its canonical name, and each once.

    Only what lies in an extra root of the operator has an absolute name; its folder is a need of its own.
    """
    names = {scope.name(path): path for path in paths}
    if permission == "edit":
        for name in names:
            require_editable(name)
    folders = dict.fromkeys(scope.folder(path) for name, path in names.items() if name.startswith("/"))
    return [Need(permission, name) for name in names] + [Need(EXTERNAL, folder) for folder in folders]


def readable(may: Callable[[Sequence[Need]], list[bool]], names: Iterable[str]) -> Iterator[bool]:
    """Whether rules let each of these be read, found out no further than somebody asks."""
    needs = (Need("read", name) for name in names)
    while asked := list(islice(needs, ASKED_AT_ONCE)):
        yield from may(asked)


def require_editable(name: str) -> None:
    """Nothing in `.git`, at any depth: what stands there is run by git."""
    if is_of_git(name):
        raise PermissionDenied(
            f"{name} belongs to git itself, and edit tools do not write there; change it with git.",
            details={"permission": "edit", "pattern": name, "rule": None},
        )


def is_of_git(name: str) -> bool:
    """Some file systems do not tell capital letters from small ones."""
    return any(part.casefold() == CLOSED_NAME for part in name.split("/"))


@dataclass(frozen=True, slots=True)
class Stamp:
    """A state of a file. Whoever changes the file, or puts another one in its place, changes the stamp."""

    device: int
    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, about: os.stat_result) -> "Stamp":
        return cls(about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size)

    @property
    def etag(self) -> str:
        """The state in a word, for those who compare it elsewhere. It tells nothing of the machine."""
        state = f"{self.device}:{self.inode}:{self.mtime_ns}:{self.size}"
        return hashlib.sha256(state.encode()).hexdigest()[:32]


def require_state(
    path: str, stamp: Stamp | None, if_match: Collection[str] | None, if_none_match: Collection[str] | None
) -> None:
    """Whether a file is in a state in which it may be written, by its etag; `*` is any, and None no condition."""
    if if_match is not None and (stamp is None or not {"*", stamp.etag} & set(if_match)):
        now = "does not exist" if stamp is None else "has changed"
        raise FileFailed(errno.ESTALE, path, f"{path} {now}, and was to be written only in the state it had.")
    if if_none_match is not None and stamp is not None and {"*", stamp.etag} & set(if_none_match):
        raise FileFailed(errno.EEXIST, path, f"{path} exists, and was to be written only if it does not.")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole file as it was read; `mode` are its permission bits."""

    data: bytes
    stamp: Stamp
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is to become of one path: `data` is its new content, None takes it away.

    `before` is the state it must still have then; None: there must be nothing yet. `mode` are the permission bits
    of a file that is new; None is the usual ones. One that is there keeps its own.
    """

    path: str
    data: bytes | BinaryIO | None
    before: Stamp | None
    mode: int | None = None
