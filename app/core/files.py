"""Permissions and preconditions for reading and editing files."""

import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from app.core.errors import FileFailed, PermissionDenied
from app.core.ports import PathScope, Stamp
from app.core.rules import Need

EXTERNAL = "external_directory"
GIT_DIR = ".git"
BATCH_SIZE = 64


def touching(scope: PathScope, permission: str, paths: Iterable[str]) -> list[Need]:
    """The needs of a tool that reads or edits these paths: one for each canonical name.

    Only paths in an extra root of the operator have absolute names; their folder is a need of its own.
    """
    names = {scope.name(path): path for path in paths}
    if permission == "edit":
        for name in names:
            require_editable(name)
    folders = dict.fromkeys(scope.folder(path) for name, path in names.items() if name.startswith("/"))
    return [Need(permission, name) for name in names] + [Need(EXTERNAL, folder) for folder in folders]


def readable(may: Callable[[Sequence[Need]], list[bool]], names: Iterable[str]) -> Iterator[bool]:
    """Whether the rules allow reading each of these, computed only as far as the caller iterates."""
    needs = (Need("read", name) for name in names)
    while batch := list(islice(needs, BATCH_SIZE)):
        yield from may(batch)


def require_editable(name: str) -> None:
    """Raises `PermissionDenied` for anything in `.git`, at any depth, because git executes what is there."""
    if is_of_git(name):
        raise PermissionDenied(
            f"{name} belongs to git itself, and edit tools do not write there; change it with git.",
            details={"permission": "edit", "pattern": name, "rule": None},
        )


def is_of_git(name: str) -> bool:
    """Compared without case, because some file systems ignore it."""
    return any(part.casefold() == GIT_DIR for part in name.split("/"))


def require_state(
    path: str, stamp: Stamp | None, if_match: Collection[str] | None, if_none_match: Collection[str] | None
) -> None:
    """Check the etag of a file before it is written; `*` is any, None is no condition. Raises `FileFailed`."""
    if if_match is not None and (stamp is None or not {"*", stamp.etag} & set(if_match)):
        now = "does not exist" if stamp is None else "has changed"
        raise FileFailed(errno.ESTALE, path, f"{path} {now}, and was to be written only in the state it had.")
    if if_none_match is not None and stamp is not None and {"*", stamp.etag} & set(if_none_match):
        raise FileFailed(errno.EEXIST, path, f"{path} exists, and was to be written only if it does not.")
