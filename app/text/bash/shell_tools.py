"""What the shell tools share: the needs, the effect and the title of a command, and patches sent as commands."""

import posixpath
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from app.core.errors import OutsideWorkspace
from app.core.escalation import ESCALATE, Escalating, always_of, is_escalated
from app.core.files import EXTERNAL, touching
from app.core.ports import PathScope
from app.core.rules import Need
from app.core.tools import Effect
from app.text.bash import parse
from app.text.bash.needs import HOME, MAX_SHOWN_LENGTH, SHELL, CommandNeeds, command_needs
from app.text.bash.safe_commands import is_safe
from app.text.bash.script import Script, Unclear
from app.text.patch.from_shell import Patch, intercepted_patch, relocate

APPLY_PATCH = "apply_patch"
MAX_TITLE_LENGTH = 80
SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
SYSTEM_DIRS = frozenset({"/bin", "/usr/bin", "/usr/local/bin"})
SCRIPT_FLAGS = frozenset({"-c", "-lc", "-cl"})
PRIVATE_DIR = "/tmp"
CACHED_COMMANDS = 32


def needs_of(argv: Sequence[str], workdir: str, scope: PathScope, args: Escalating) -> list[Need]:
    """The needs of every command in a command line, to run in the sandbox or, escalated, outside it."""
    if _patch(tuple(argv)) is not None:  # the tool apply_patch asks for its own needs
        return [Need(SHELL, APPLY_PATCH, f"{APPLY_PATCH} *")]
    found = _command_needs(tuple(argv))
    if is_escalated(args):
        needs = [
            Need(ESCALATE, need.pattern, always_of(args.prefix_rule, need.pattern), need.is_unclear)
            for need in found.needs
        ]
        needs += [Need(ESCALATE, f"> {path}") for path in found.writes]
    else:
        needs = [*found.needs, *_file_needs(found, workdir, scope)]
    if not needs:  # a command without a pattern, such as `cd`
        script = script_of(argv)
        line = shlex.join(argv) if script is None else " ".join(script.split())
        needs = [Need(ESCALATE if is_escalated(args) else SHELL, line[:MAX_SHOWN_LENGTH])]
    folders = (need for folder in found.folders for need in _entered_needs(_resolve(workdir, folder), scope))
    return list(dict.fromkeys([*map(_narrow, needs), *_folder_needs(workdir, scope), *folders]))


def patch_of(argv: Sequence[str], workdir: str) -> str | None:
    """The patch, if a command is only that, with paths relative to the workspace."""
    patch = _patch(tuple(argv))
    return None if patch is None else relocate(patch.text, posixpath.join(workdir, patch.workdir or "."))


def effect_of(argv: Sequence[str], args: Escalating) -> Effect:
    """Known-safe commands only read, so they may run in parallel."""
    return Effect.READ if not is_escalated(args) and is_safe(_parse(tuple(argv))) else Effect.WRITE


def script_of(argv: Sequence[str]) -> str | None:
    """The script of a shell with `-c`. The shell must be a system one: a workspace may have another bash."""
    folder, _, name = argv[0].rpartition("/") if argv else ("", "", "")
    is_shell = name in SHELLS and (argv[0] == name or folder in SYSTEM_DIRS)
    return argv[2] if is_shell and len(argv) == 3 and argv[1] in SCRIPT_FLAGS else None


def title_of(line: str) -> str:
    """The first line, cut to a reasonable length."""
    first, *rest = line.strip().splitlines() or [""]
    return first if len(first) <= MAX_TITLE_LENGTH and not rest else f"{first[: MAX_TITLE_LENGTH - 1]}…"


@lru_cache(maxsize=CACHED_COMMANDS)
def _parse(argv: tuple[str, ...]) -> Script | Unclear:
    """Cached, because a call is analyzed for its needs, for its effect, and again when rules change."""
    script = script_of(argv)
    return parse.parse_argv(argv) if script is None else parse.parse(script)


@lru_cache(maxsize=CACHED_COMMANDS)
def _patch(argv: tuple[str, ...]) -> Patch | None:
    return intercepted_patch(argv)


@lru_cache(maxsize=CACHED_COMMANDS)
def _command_needs(argv: tuple[str, ...]) -> CommandNeeds:
    return command_needs(_parse(argv))


def _narrow(need: Need) -> Need:
    """An "always" rule of the command itself must not match more, so its stars become `?`."""
    if need.always is not None or "*" not in need.pattern:
        return need
    return replace(need, always=need.pattern.replace("*", "?"))


def _file_needs(found: CommandNeeds, workdir: str, scope: PathScope) -> Iterator[Need]:
    """Needs of redirects. Reads outside the workspace are left to the sandbox, as with any command."""
    for path in found.writes:
        yield from _path_needs(_resolve(workdir, path), "edit", scope)
    for path in found.reads:
        yield from (need for need in _path_needs(_resolve(workdir, path), "read", scope) if need.permission == "read")


def _path_needs(path: str, permission: str, scope: PathScope) -> list[Need]:
    if _is_private(path):
        return []
    if path.startswith(HOME):
        return [Need(EXTERNAL, HOME)]
    try:
        return touching(scope, permission, [path])
    except OutsideWorkspace:
        return [Need(EXTERNAL, posixpath.dirname(posixpath.normpath(path)))]


def _folder_needs(workdir: str, scope: PathScope) -> list[Need]:
    """A folder in an extra root of the operator is a need; one outside all roots raises `OutsideWorkspace`."""
    name = scope.name(workdir)
    return [Need(EXTERNAL, name)] if name.startswith("/") else []


def _entered_needs(path: str, scope: PathScope) -> list[Need]:
    """A folder that a script changes to, which is asked for if it is outside."""
    if _is_private(path):
        return []
    if path.startswith(HOME):
        return [Need(EXTERNAL, HOME)]
    try:
        return _folder_needs(path, scope)
    except OutsideWorkspace:
        return [Need(EXTERNAL, posixpath.normpath(path))]


def _resolve(workdir: str, path: str) -> str:
    return path if path.startswith(HOME) else posixpath.join(workdir, path)


def _is_private(path: str) -> bool:
    normal = posixpath.normpath(path)
    return normal == PRIVATE_DIR or normal.startswith(f"{PRIVATE_DIR}/")
