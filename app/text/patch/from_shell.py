"""Patches that come as shell commands, which models do that were taught so: they are run as the tool `apply_patch`.

    apply_patch <<'EOF' …               the whole script, with any tag
    cd folder && apply_patch <<'EOF' …  the same in a folder
    apply_patch '…'                     the patch as the one argument
    ["bash", "-lc", any of these]       and argv `["apply_patch", patch]`

Anything more than that is an ordinary command, which the shell may run as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.text.bash.parse import Script, Simple, parse
from app.text.bash.unclear import Unclear
from app.text.bash.words import Word
from app.text.bash.working_dirs import path_of
from app.text.bash.wrappers import SHELLS, basename
from app.text.patch.lenient import NAMES

FLAGS = frozenset({"-c", "-lc"})


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
