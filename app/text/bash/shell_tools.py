"""Shells: what the tools that run command lines share. What a line needs is found by reading it, not by running it."""

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
from app.text.bash.needs import LONGEST_SHOWN, SHELL, CommandNeeds, wanted
from app.text.bash.safe_commands import is_safe
from app.text.bash.script import Unclear
from app.text.patch.from_shell import Patch, intercepted_patch, relocated

PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GH_PAGER": "cat"}
"""So that programs write for a reader without a screen."""
PATCHING = "apply_patch"
TITLE = 80
SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
SYSTEM = frozenset({"/bin", "/usr/bin", "/usr/local/bin"})
SCRIPTED = frozenset({"-c", "-lc", "-cl"})
PRIVATE = "/tmp"
HOME = "~"
REMEMBERED = 32


def needs_of(argv: Sequence[str], workdir: str, scope: PathScope, args: Escalating) -> list[Need]:
    """What a command line needs: a yes to every command in it, be it to run at all or to run without walls."""
    if _patch(tuple(argv)) is not None:  # the tool that does it says what it needs
        return [Need(SHELL, PATCHING, f"{PATCHING} *")]
    wants = _wants(tuple(argv))
    mine = _escalated(wants, args.prefix_rule) if is_escalated(args) else [*wants.needs, *_files(wants, workdir, scope)]
    if not mine:  # nothing in it that could be named
        mine = [Need(ESCALATE if is_escalated(args) else SHELL, _shown(argv))]
    around = (need for folder in wants.folders for need in _entered(_from(workdir, folder), scope))
    return list(dict.fromkeys([*map(_narrowed, mine), *_started_in(workdir, scope), *around]))


def patch_of(argv: Sequence[str], workdir: str) -> str | None:
    """The patch that a line is, if it is nothing else, with paths that start in the workspace."""
    patch = _patch(tuple(argv))
    return None if patch is None else relocated(patch.text, posixpath.join(workdir, patch.workdir or "."))


def effect_of(argv: Sequence[str], args: Escalating) -> Effect:
    """Known-safe commands only read, so that they may run beside each other."""
    return Effect.READ if not is_escalated(args) and is_safe(_read(tuple(argv))) else Effect.WRITE


def script_of(argv: Sequence[str]) -> str | None:
    """The script that a shell is given here, if it is one: what a workspace calls bash need not be one."""
    folder, _, name = argv[0].rpartition("/") if argv else ("", "", "")
    is_shell = name in SHELLS and (argv[0] == name or folder in SYSTEM)
    return argv[2] if is_shell and len(argv) == 3 and argv[1] in SCRIPTED else None


def title_of(line: str) -> str:
    """The first line of it, and not too much of that."""
    first, *more = line.strip().splitlines() or [""]
    return first if len(first) <= TITLE and not more else f"{first[: TITLE - 1]}…"


@lru_cache(maxsize=REMEMBERED)
def _read(argv: tuple[str, ...]) -> parse.Script | Unclear:
    """A call is looked at more than once: for its needs, for its effect, and when rules have changed."""
    script = script_of(argv)
    return parse.of_argv(argv) if script is None else parse.parse(script)


@lru_cache(maxsize=REMEMBERED)
def _patch(argv: tuple[str, ...]) -> Patch | None:
    return intercepted_patch(argv)


@lru_cache(maxsize=REMEMBERED)
def _wants(argv: tuple[str, ...]) -> CommandNeeds:
    return wanted(_read(argv))


def _narrowed(need: Need) -> Need:
    """An "always" that is the command itself must mean this command, though a rule takes its stars for anything."""
    if need.always is not None or "*" not in need.pattern:
        return need
    return replace(need, always=need.pattern.replace("*", "?"))


def _escalated(wants: CommandNeeds, prefix: Sequence[str] | None) -> list[Need]:
    """Without walls a file that is written is as much as a command."""
    asked = [Need(ESCALATE, need.pattern, always_of(prefix, need.pattern), need.is_unclear) for need in wants.needs]
    return asked + [Need(ESCALATE, f"> {path}") for path in wants.writes]


def _files(wants: CommandNeeds, workdir: str, scope: PathScope) -> Iterator[Need]:
    """The files that something is redirected to. What is read outside is the walls' matter, as with any command."""
    for path in wants.writes:
        yield from _file(_from(workdir, path), "edit", scope)
    for path in wants.reads:
        yield from (need for need in _file(_from(workdir, path), "read", scope) if need.permission == "read")


def _file(path: str, permission: str, scope: PathScope) -> list[Need]:
    if _is_private(path):
        return []
    if path.startswith(HOME):
        return [Need(EXTERNAL, HOME)]
    try:
        return touching(scope, permission, [path])
    except OutsideWorkspace:
        return [Need(EXTERNAL, posixpath.dirname(posixpath.normpath(path)))]


def _started_in(workdir: str, scope: PathScope) -> list[Need]:
    """A folder in an extra root of the operator is a need of its own; one in none of the roots is refused."""
    name = scope.name(workdir)
    return [Need(EXTERNAL, name)] if name.startswith("/") else []


def _entered(path: str, scope: PathScope) -> list[Need]:
    """Where a script goes by itself has to be asked when it is outside."""
    if _is_private(path):
        return []
    if path.startswith(HOME):
        return [Need(EXTERNAL, HOME)]
    try:
        return _started_in(path, scope)
    except OutsideWorkspace:
        return [Need(EXTERNAL, posixpath.normpath(path))]


def _from(workdir: str, path: str) -> str:
    return path if path.startswith(HOME) else posixpath.join(workdir, path)


def _is_private(path: str) -> bool:
    normal = posixpath.normpath(path)
    return normal == PRIVATE or normal.startswith(f"{PRIVATE}/")


def _shown(argv: Sequence[str]) -> str:
    line = script_of(argv)
    return (shlex.join(argv) if line is None else " ".join(line.split()))[:LONGEST_SHOWN]
