"""Patches in shell commands."""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.core.errors import InvalidArgs
from app.text.bash.needs import path_of
from app.text.bash.parse import Script, Simple, parse
from app.text.bash.script import Unclear, Word
from app.text.bash.wrappers import SHELLS, basename
from app.text.patch.lenient import NAMES, read
from app.text.patch.parse import ADD, DELETE, MOVE, UPDATE, Operation, Update

_PATH = re.compile(
    rf"^(?P<header>{'|'.join(re.escape(header) for header in (ADD, DELETE, UPDATE, MOVE))})(?P<path>.*?)[ \t\r]*$",
    re.MULTILINE,
)

FLAGS = frozenset({"-c", "-lc"})


def relocated(text: str, folder: str) -> str:
    """A patch whose paths start in a folder, with paths that start above it.

    Whether that went well is seen by reading both: they must say the same but for the folder. A patch that cannot be
    read at all stays as it is, for whoever applies it to say why.
    """
    if posixpath.normpath(folder) == ".":
        return text
    try:
        wanted = [_relocated(operation, folder) for operation in read(text)]
    except InvalidArgs:
        return text
    moved = _PATH.sub(lambda found: found["header"] + _join(folder, found["path"].strip().strip("\"'`")), text)
    if read(moved) != wanted:
        raise InvalidArgs(
            "This patch is wrapped in a way that its paths cannot be put into the folder it is for; use the tool"
            " apply_patch, with the patch alone and paths that start in the workspace."
        )
    return moved


def _relocated(operation: Operation, folder: str) -> Operation:
    moved = replace(operation, path=_join(folder, operation.path))
    if isinstance(moved, Update) and moved.move_to is not None:
        return replace(moved, move_to=_join(folder, moved.move_to))
    return moved


def _join(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch, and the folder it is to be applied in; None is where the command would have run."""

    text: str
    workdir: str | None = None


def intercepted_patch(command: str | Sequence[str]) -> Patch | None:
    """The patch that a script or an argv is, if it is nothing else."""
    if not isinstance(command, str):
        return _of_argv(list(command))
    if not any(name in command for name in NAMES):
        return None
    script = parse(command)
    if isinstance(script, Unclear):
        return None
    return _of_script(script)


def _of_argv(argv: list[str]) -> Patch | None:
    match argv:
        case [name, text] if name in NAMES:
            return Patch(text)
        case [shell, flag, script] if basename(shell) in SHELLS and flag in FLAGS:
            return intercepted_patch(script)
    return None


def _of_script(script: Script) -> Patch | None:
    """Only one command, or two with `&&` between them, and nothing around them."""
    if not script.is_flat or script.is_background or script.unclear or script.assignments or script.redirects:
        return None
    match script.commands:
        case [command]:
            return _of_command(command)
        case [folder, command] if folder.name == Word("cd", is_bare=True) and folder.sure_until >= command.at:
            path = path_of(folder.words[1]) if len(folder.words) == 2 else None
            patch = _of_command(command)
            is_certain = path is not None and not folder.assignments and not path.startswith(("-", "~"))
            return Patch(patch.text, path) if patch is not None and is_certain else None
    return None


def _of_command(command: Simple) -> Patch | None:
    if command.assignments or not all(word.is_static for word in command.words):
        return None
    texts = [word.text for word in command.words]
    if texts[0] in NAMES and command.stdin is not None:
        return Patch(command.stdin.text) if len(texts) == 1 and command.stdin.is_static else None
    return _of_argv(texts) if command.stdin is None else None
