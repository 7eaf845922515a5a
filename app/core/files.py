"""Files as tools see them: what tells one state of a file from another, and what is to become of it."""

import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from app.core.errors import FileFailed, PermissionDenied
from app.core.ports import PathScope, Stamp
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
    """Whether the rules allow reading each of these, computed only as far as the caller iterates."""
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


def require_state(
    path: str, stamp: Stamp | None, if_match: Collection[str] | None, if_none_match: Collection[str] | None
) -> None:
    """Whether a file is in a state in which it may be written, by its etag; `*` is any, and None no condition."""
    if if_match is not None and (stamp is None or not {"*", stamp.etag} & set(if_match)):
        now = "does not exist" if stamp is None else "has changed"
        raise FileFailed(errno.ESTALE, path, f"{path} {now}, and was to be written only in the state it had.")
    if if_none_match is not None and stamp is not None and {"*", stamp.etag} & set(if_none_match):
        raise FileFailed(errno.EEXIST, path, f"{path} exists, and was to be written only if it does not.")
