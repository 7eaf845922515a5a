"""Needs of programs on a terminal, and of input written to them.

An interactive shell is allowed by its name, because each line written to it is judged like a command of its own,
together with what was written before on the same line. Input that cannot be analyzed as commands (keys that edit or
complete a line, half a quotation) is asked for.

Any input may be written to another program if the program itself is allowed: what an editor, a debugger or an
interpreter does with its input is up to it, as with its arguments.
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
from app.text.bash.needs import MAX_SHOWN_LENGTH, SHELL
from app.text.bash.script import Script, Unclear, Word
from app.text.bash.wrappers import SHELLS, basename

INTERACTIVE_OPTIONS = frozenset(
    {"-i", "-l", "-il", "-li", "--login", "--norc", "--noprofile", "--noediting", "--posix"}
)
"""Options with which a shell reads commands only from its terminal."""
SHELL_RUNNERS = frozenset(
    {
        *("busybox", "csh", "doas", "elvish", "expect", "fish", "machinectl", "mosh", "nix", "nix-shell", "nsenter"),
        *("nu", "pipenv", "poetry", "pwsh", "rlwrap", "screen", "script", "ssh", "su", "sudo", "tcsh", "telnet"),
        *("tmux", "unshare", "vagrant", "xonsh"),
    }
)
"""Other programs that may pass their input to a shell."""

_SIGNALS = re.compile("[\x03\x04\x1a\x1c]")
"""Characters that a terminal turns into a signal or the end of input."""
_KEYS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
"""Keys that edit, complete or recall a line: then the line that runs is not what was typed."""


@dataclass(slots=True)
class _Escalation:
    """The arguments of a tool that say whether it runs outside the sandbox."""

    sandbox_permissions: Literal["use_default", "require_escalated"] | None
    justification: str | None = None
    prefix_rule: list[str] | None = None


def terminal_needs(needs: Sequence[Need], command: str) -> list[Need]:
    """The needs of a command that gets a terminal: an interactive shell is not unclear, since its input is judged."""
    if not _is_interactive_shell(parse.parse(command)):
        return list(needs)
    return [replace(need, is_unclear=False) if _is_interactive(need.pattern.split()) else need for need in needs]


def input_needs(terminal: Terminal, chars: str, scope: PathScope) -> list[Need]:
    """What has to be allowed before this input is written."""
    if not _SIGNALS.sub("", chars):
        return []
    escalation = _Escalation("require_escalated" if terminal.isolation.is_escalated else None)
    if not may_be_shell(terminal.command):
        needs = terminal_needs(
            shell_tools.needs_of(("bash", "-c", terminal.command), ".", scope, escalation), terminal.command
        )
        return [need for need in needs if need.permission in (SHELL, ESCALATE)]
    found = (need for text in _possible_texts(terminal.typed + chars) for need in _text_needs(text, scope, escalation))
    return list(dict.fromkeys(found))


def may_be_shell(command: str) -> bool:
    """Whether input may be run as commands. Any word may name a shell: `docker exec it bash`."""
    script = parse.parse(command)
    if isinstance(script, Unclear):
        return True
    words = (word for part in script.with_inner() for simple in part.commands for word in simple.words)
    return any(part.unclear for part in script.with_inner()) or any(
        basename(word.text) in SHELLS | SHELL_RUNNERS for word in words
    )


def _is_interactive_shell(script: Script | Unclear) -> bool:
    """Whether it is one command, a shell that reads from the terminal."""
    if isinstance(script, Unclear) or len(script.commands) != 1 or script.redirects:
        return False
    [command] = script.commands
    if command.inner:
        return len(command.inner) == 1 and _is_interactive_shell(command.inner[0])
    return all(word.is_static for word in command.words) and _is_interactive([word.text for word in command.words])


def _is_interactive(words: Sequence[str]) -> bool:
    return bool(words) and basename(words[0]) in SHELLS and INTERACTIVE_OPTIONS.issuperset(words[1:])


def _possible_texts(text: str) -> Iterator[str]:
    """A signal usually discards the line before it, unless it is ignored; so both texts are judged."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    yield _SIGNALS.sub("", lines)
    yield _SIGNALS.split(lines)[-1]


def _text_needs(text: str, scope: PathScope, escalation: _Escalation) -> list[Need]:
    if not text.strip():
        return []
    if _KEYS.search(text):
        permission = ESCALATE if is_escalated(escalation) else SHELL
        return [Need(permission, Word(text[:MAX_SHOWN_LENGTH]).one_line.strip(), is_unclear=True)]
    return shell_tools.needs_of(("bash", "-c", text), ".", scope, escalation)
