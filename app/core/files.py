"""Files as tools see them: what tells one state of a file from another, and what is to become of it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from app.core.errors import PermissionDenied
from app.core.ports import Scope
from app.core.rules import Need

EXTERNAL = "external_directory"
CLOSED_NAME = ".git"
ASKED_AT_ONCE = 64


def touching(scope: Scope, permission: str, paths: Iterable[str]) -> list[Need]:
    """What a tool needs that reads or edits these paths: each by its canonical name, and each once.

    Only what lies in an extra root of the operator has an absolute name; its folder is a need of its own.
    """
    names = list(dict.fromkeys(scope.name(path) for path in paths))
    if permission == "edit":
        for name in names:
            require_editable(name)
    folders = dict.fromkeys(name.rpartition("/")[0] or "/" for name in names if name.startswith("/"))
    return [Need(permission, name) for name in names] + [Need(EXTERNAL, folder) for folder in folders]


def readable(may: Callable[[Sequence[Need]], list[bool]], names: Iterable[str]) -> Iterator[bool]:
    """Whether rules let each of these be read, found out no further than somebody asks."""
    needs = (Need("read", name) for name in names)
    while asked := list(islice(needs, ASKED_AT_ONCE)):
        yield from may(asked)


def require_editable(name: str) -> None:
    """Nothing in `.git`, at any depth: what stands there is run by git."""
    if any(part.casefold() == CLOSED_NAME for part in name.split("/")):
        raise PermissionDenied(
            f"{name} belongs to git itself, and edit tools do not write there; change it with git.",
            details={"permission": "edit", "pattern": name, "rule": None},
        )


@dataclass(frozen=True, slots=True)
class Stamp:
    """A state of a file. Whoever changes the file, or puts another one in its place, changes the stamp."""

    device: int
    inode: int
    mtime_ns: int
    size: int


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
