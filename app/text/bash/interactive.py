"""Prompts: programs on a terminal that may be shells, and what is typed into them.

A shell that waits at a terminal is allowed by its name, because each line that
is typed into it is judged as if it were a command of its own. What belongs to
a line that was begun in an earlier writing counts with it. What cannot be read
as commands (keys that edit or complete a line, half a quotation) is asked.

Into any other program whatever it takes may be typed, as long as that program
itself is allowed: what an editor, a debugger or an interpreter makes of its
input is its own affair, as it is when it was given as an argument.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.core.escalation import ESCALATE, is_escalated
from app.core.ports import PathScope
from app.core.rules import Need
from app.core.terminals import Terminal
from app.text.bash import parse, shell_tools
from app.text.bash.needs import LONGEST_SHOWN, SHELL
from app.text.bash.script import Unclear, Word
from app.text.bash.wrappers import SHELLS, basename

WAITING = frozenset({"-i", "-l", "-il", "-li", "--login", "--norc", "--noprofile", "--noediting", "--posix"})
"""Options with which a shell still reads from its terminal, and from nothing else that the caller wrote."""
OTHERS = frozenset(
    {
        *("busybox", "csh", "doas", "elvish", "expect", "fish", "machinectl", "mosh", "nix", "nix-shell", "nsenter"),
        *("nu", "pipenv", "poetry", "pwsh", "rlwrap", "screen", "script", "ssh", "su", "sudo", "tcsh", "telnet"),
        *("tmux", "unshare", "vagrant", "xonsh"),
    }
)
"""Programs that are no shells of ours, or none at all, and yet may hand what is typed to one."""

_SIGNALS = re.compile("[\x03\x04\x1a\x1c]")
"""What a terminal turns into a signal or the end of the input."""
_KEYS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
"""What edits, completes or recalls a line: what is run then is not what was typed."""


@dataclass(slots=True)
class _Wish:
    """The part of a tool's arguments that says whether it runs without walls."""

    sandbox_permissions: Literal["use_default", "require_escalated"] | None
    justification: str | None = None
    prefix_rule: list[str] | None = None


def opening(needs: Sequence[Need], command: str) -> list[Need]:
    """The needs of a command that gets a terminal: if it is a shell and nothing else, it is no riddle what it runs."""
    if not _is_prompt(parse.parse(command)):
        return list(needs)
    return [replace(need, is_unclear=False) if _waits(need.pattern.split()) else need for need in needs]


def typing(terminal: Terminal, chars: str, scope: PathScope) -> list[Need]:
    """What has to be allowed before this is typed."""
    if not _SIGNALS.sub("", chars):
        return []
    wish = _Wish("require_escalated" if terminal.isolation.is_escalated else None)
    if not may_be_shell(terminal.command):
        needs = opening(shell_tools.needs_of(("bash", "-c", terminal.command), ".", scope, wish), terminal.command)
        return [need for need in needs if need.permission in (SHELL, ESCALATE)]
    found = (need for text in _readings(terminal.typed + chars) for need in _typed(text, scope, wish))
    return list(dict.fromkeys(found))


def may_be_shell(command: str) -> bool:
    """Whether what is typed into it may be run as commands. A shell may be meant by any word: `docker exec it bash`."""
    script = parse.parse(command)
    if isinstance(script, Unclear):
        return True
    words = (word for part in script.every() for simple in part.commands for word in simple.words)
    return any(part.unclear for part in script.every()) or any(basename(word.text) in SHELLS | OTHERS for word in words)


def _is_prompt(script: parse.Script | Unclear) -> bool:
    """Whether it is one command, and that is a shell which reads from the terminal."""
    if isinstance(script, Unclear) or len(script.commands) != 1 or script.redirects:
        return False
    [command] = script.commands
    if command.inner:
        return len(command.inner) == 1 and _is_prompt(command.inner[0])
    return all(word.is_static for word in command.words) and _waits([word.text for word in command.words])


def _waits(words: Sequence[str]) -> bool:
    return bool(words) and basename(words[0]) in SHELLS and WAITING.issuperset(words[1:])


def _readings(text: str) -> Iterator[str]:
    """A signal mostly throws away the line before it, and where it is ignored it does not."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    yield _SIGNALS.sub("", lines)
    yield _SIGNALS.split(lines)[-1]


def _typed(text: str, scope: PathScope, wish: _Wish) -> list[Need]:
    if not text.strip():
        return []
    if _KEYS.search(text):
        permission = ESCALATE if is_escalated(wish) else SHELL
        return [Need(permission, Word(text[:LONGEST_SHOWN]).plain.strip(), is_unclear=True)]
    return shell_tools.needs_of(("bash", "-c", text), ".", scope, wish)
