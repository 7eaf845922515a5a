"""Shells: what the tools that run command lines share. What a line needs is found by reading it, not by running it."""

import shlex
from collections.abc import Sequence

from app.core.escalations import ESCALATE, Escalating, always_of, is_escalated
from app.core.files import EXTERNAL
from app.core.ports import Scope
from app.core.rules import Need
from app.core.tools import Effect

PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GH_PAGER": "cat"}
"""So that programs write for a reader without a screen."""
TITLE = 80
_SPECIAL = frozenset("\n;&|<>()$`\\\"'*?[]{}#~!")


def needs_of(argv: Sequence[str], workdir: str, scope: Scope, args: Escalating) -> list[Need]:
    """What a command line needs: a yes to every command in it, be it to run at all or to run without walls."""
    need = _need(argv)
    if is_escalated(args):
        need = Need(ESCALATE, need.pattern, always_of(args.prefix_rule, need.pattern), need.is_unclear)
    return [need, *_around(workdir, scope)]


def effect_of(argv: Sequence[str], args: Escalating) -> Effect:
    return Effect.WRITE


def script_of(argv: Sequence[str]) -> str | None:
    """The script that a shell is given here, if it is one."""
    is_script = len(argv) == 3 and argv[0].rpartition("/")[2] in ("bash", "sh", "zsh") and argv[1] in ("-c", "-lc")
    return argv[2] if is_script else None


def title_of(line: str) -> str:
    """The first line of it, and not too much of that."""
    first, *more = line.strip().splitlines() or [""]
    return first if len(first) <= TITLE and not more else f"{first[: TITLE - 1]}…"


def _around(workdir: str, scope: Scope) -> list[Need]:
    """A folder in an extra root of the operator is a need of its own; one in no root is refused."""
    name = scope.name(workdir)
    return [Need(EXTERNAL, name)] if name.startswith("/") else []


def _need(argv: Sequence[str]) -> Need:
    script = script_of(argv)
    if script is None:
        return Need("shell", shlex.join(argv), f"{argv[0]} *")
    return Need("shell", script, is_unclear=bool(_SPECIAL & set(script)))
