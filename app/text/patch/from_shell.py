"""Patches sent as shell commands, as some models are trained to: they are run by the tool `apply_patch`.

    apply_patch <<'EOF' …               the whole script, with any tag
    cd folder && apply_patch <<'EOF' …  the same in a folder
    apply_patch '…'                     the patch as the only argument
    ["bash", "-lc", any of these]       and argv `["apply_patch", patch]`

Anything else is an ordinary command, which the shell runs as it is.
"""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.core.errors import InvalidArgs
from app.text.bash.needs import path_of
from app.text.bash.parse import parse
from app.text.bash.script import Script, SimpleCommand, Unclear, Word
from app.text.bash.wrappers import SHELLS, basename
from app.text.patch.lenient import NAMES, read
from app.text.patch.parse import ADD, DELETE, MOVE, UPDATE, Operation, Update

_PATH = re.compile(
    rf"^(?P<header>{'|'.join(re.escape(header) for header in (ADD, DELETE, UPDATE, MOVE))})(?P<path>.*?)[ \t\r]*$",
    re.MULTILINE,
)

FLAGS = frozenset({"-c", "-lc"})


def relocate(text: str, folder: str) -> str:
    """A patch whose paths are relative to a folder, with paths relative to the workspace.

    Both are parsed and must be equal except for the folder. A patch that cannot be parsed stays as it is; the tool
    that applies it reports the error.
    """
    if posixpath.normpath(folder) == ".":
        return text
    try:
        expected = [_relocate_operation(operation, folder) for operation in read(text)]
    except InvalidArgs:
        return text
    moved = _PATH.sub(lambda found: found["header"] + _join(folder, found["path"].strip().strip("\"'`")), text)
    if read(moved) != expected:
        raise InvalidArgs(
            "The paths of this patch cannot be rewritten for the folder it is for; use the tool apply_patch, with only"
            " the patch and paths relative to the workspace."
        )
    return moved


def _relocate_operation(operation: Operation, folder: str) -> Operation:
    moved = replace(operation, path=_join(folder, operation.path))
    if isinstance(moved, Update) and moved.move_to is not None:
        return replace(moved, move_to=_join(folder, moved.move_to))
    return moved


def _join(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch, and the folder to apply it in; None is the folder of the command."""

    text: str
    workdir: str | None = None


def intercepted_patch(command: str | Sequence[str]) -> Patch | None:
    """The patch, if a script or an argv does nothing else."""
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
    """Only one command, or `cd` and one command with `&&` between them."""
    if not script.is_flat or script.is_background or script.unclear or script.assignments or script.redirects:
        return None
    match script.commands:
        case [command]:
            return _of_command(command)
        case [folder, command] if folder.name == Word("cd", is_unquoted=True) and folder.guards_until >= command.at:
            path = path_of(folder.words[1]) if len(folder.words) == 2 else None
            patch = _of_command(command)
            is_certain = path is not None and not folder.assignments and not path.startswith(("-", "~"))
            return Patch(patch.text, path) if patch is not None and is_certain else None
    return None


def _of_command(command: SimpleCommand) -> Patch | None:
    if command.assignments or not all(word.is_static for word in command.words):
        return None
    texts = [word.text for word in command.words]
    if texts[0] in NAMES and command.stdin is not None:
        return Patch(command.stdin.text) if len(texts) == 1 and command.stdin.is_static else None
    return _of_argv(texts) if command.stdin is None else None
