"""Escalation: a command asks to run without the sandbox, with a justification that a person has to approve."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from app.core.errors import InvalidArgs
from app.core.rules import matches

ESCALATE = "escalate"
ESCALATED = "require_escalated"

Permissions = Annotated[
    Literal["use_default", "require_escalated"] | None,
    Field(
        description="`use_default` runs the command in the sandbox of the session. `require_escalated` asks a person"
        " to let it run without the sandbox; use it only when the command cannot work otherwise."
    ),
]
Justification = Annotated[
    str | None,
    Field(description="With `require_escalated`: one question to the person who decides, such as why this is needed."),
]
PrefixRule = Annotated[
    list[str] | None,
    Field(
        description="With `require_escalated`: the first words of the command, if the person could allow every command"
        ' that begins so from now on, such as ["git", "pull"].'
    ),
]

TOO_WIDE = frozenset(
    """
    ash awk bash bun busybox chroot csh dash deno doas docker env eval exec find fish gawk java julia ksh lua make node
    nodejs nohup npx osascript perl php pipx pwsh python python2 python3 ruby script setsid sh ssh stdbuf su sudo tclsh
    time timeout uv uvx watch xargs zsh
    """.split()  # noqa: SIM905 - one word beside the other, not one below the other
)
"""Programs that run other programs: allowing them by name would allow everything."""


class Escalating(Protocol):
    """The arguments of a tool that supports escalation."""

    sandbox_permissions: Literal["use_default", "require_escalated"] | None
    justification: str | None
    prefix_rule: list[str] | None


def is_escalated(args: Escalating) -> bool:
    return args.sandbox_permissions == ESCALATED


def require_reason(args: Escalating) -> None:
    """An escalation needs a justification. A justification without an escalation is ignored."""
    if is_escalated(args) and not (args.justification or "").strip():
        raise InvalidArgs(
            "To run without the sandbox needs a `justification`: tell the person who decides in one sentence why."
        )


def explained(args: Escalating) -> dict[str, Any]:
    """What the ask shows to the person besides the command."""
    return {"justification": (args.justification or "").strip()} if is_escalated(args) else {}


def always_of(prefix: Sequence[str] | None, pattern: str) -> str | None:
    """The pattern that an "always" would allow, if the proposed prefix is narrow enough and matches this command."""
    words = [word for word in prefix or () if word]
    if not words or any(set(word) & set("*?\n\0") for word in words) or _is_too_wide(words):
        return None
    proposed = f"{' '.join(words)} *"
    return proposed if matches(proposed, pattern) else None


def _is_too_wide(words: Sequence[str]) -> bool:
    """A program that runs others needs the program it runs in the prefix, not only an option."""
    name = words[0].rpartition("/")[2]
    return name in TOO_WIDE and (len(words) == 1 or words[1].startswith("-") or "=" in words[1] or words[1] in TOO_WIDE)
