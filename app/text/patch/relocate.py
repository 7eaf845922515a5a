"""Patches that were written for another folder: their paths, said from where they are applied."""

import posixpath
import re
from dataclasses import replace

from app.core.errors import InvalidArgs
from app.text.patch.lenient import read
from app.text.patch.parse import ADD, DELETE, MOVE, UPDATE, Operation, Update

_PATH = re.compile(
    rf"^(?P<header>{'|'.join(re.escape(header) for header in (ADD, DELETE, UPDATE, MOVE))})(?P<path>.*?)[ \t\r]*$",
    re.MULTILINE,
)


def relocated(text: str, folder: str) -> str:
    """A patch whose paths start in a folder, with paths that start above it.

    Whether that went well is seen by reading both: they must say the same but for the folder. A patch that cannot be
    read at all stays as it is, for whoever applies it to say why.
    """
    if posixpath.normpath(folder) == ".":
        return text
    try:
        wanted = [_moved(operation, folder) for operation in read(text)]
    except InvalidArgs:
        return text
    moved = _PATH.sub(lambda found: found["header"] + _joined(folder, found["path"].strip().strip("\"'`")), text)
    if read(moved) != wanted:
        raise InvalidArgs(
            "This patch is wrapped in a way that its paths cannot be put into the folder it is for; use the tool"
            " apply_patch, with the patch alone and paths that start in the workspace."
        )
    return moved


def _moved(operation: Operation, folder: str) -> Operation:
    moved = replace(operation, path=_joined(folder, operation.path))
    if isinstance(moved, Update) and moved.move_to is not None:
        return replace(moved, move_to=_joined(folder, moved.move_to))
    return moved


def _joined(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))
