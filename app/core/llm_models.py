"""Facts about LLMs that decide which tools they are offered."""

from typing import Literal

from app.core.rules import matches

ShellVariant = Literal["shell_command", "exec_command", "shell"]
ShellChoice = Literal["auto", "disabled", "shell_command", "unified_exec", "shell"]
"""The operator's setting: by model, none, or always the same."""

SHELL_TOOLS: dict[str, ShellVariant] = {
    "shell": "shell",
    "shell_command": "shell_command",
    "exec_command": "exec_command",
    "write_stdin": "exec_command",
}
"""The tools that run commands, and the shell variant of each."""
NO_PATCHES = ("gpt-4", "oss")
SHELLS: tuple[tuple[str, ShellVariant], ...] = (
    ("exp-codex*", "shell_command"),
    ("exp-*", "exec_command"),
    ("codex-mini*", "shell"),
    ("*codex*", "shell_command"),
    ("gpt-5.*", "shell_command"),
    ("gpt-5*", "shell"),
    ("gpt-4*", "shell"),
    ("gpt-3*", "shell"),
    ("gpt-oss*", "shell"),
    ("gpt-*", "exec_command"),
    ("o1*", "shell"),
    ("o3*", "shell"),
    ("o4*", "shell"),
)
"""The shell variant that each model family was trained with, first match first: a command line (`shell_command`), an
argument list (`shell`), or a persistent terminal (`exec_command`). Others get a command line."""

FREEFORM = ("gpt-5*", "*codex*")
"""Models with free-form tools and grammars."""


def takes_patches(model: str | None) -> bool:
    """Whether a model edits by `apply_patch`; the others edit by `edit` and `write`."""
    name = (model or "").lower()
    return "gpt-" in name and not any(part in name for part in NO_PATCHES)


def shell_variant(model: str | None) -> ShellVariant:
    """The shell tool a model knows."""
    name = _bare(model)
    return next((variant for pattern, variant in SHELLS if matches(pattern, name)), "shell_command")


def takes_freeform(model: str | None) -> bool:
    """Whether a model can be offered a tool that takes free text; the others get it as the one argument `input`."""
    return any(matches(pattern, _bare(model)) for pattern in FREEFORM)


def offers_shell(choice: ShellChoice, model: str | None, tool: str) -> bool:
    """Whether a model is offered this one of the shell tools; one that is not known has what most know best."""
    match choice:
        case "disabled":
            return False
        case "auto":
            return SHELL_TOOLS[tool] == shell_variant(model)
        case "unified_exec":
            return SHELL_TOOLS[tool] == "exec_command"
        case _:
            return SHELL_TOOLS[tool] == choice


def _bare(model: str | None) -> str:
    """A model's own name: what stands before the last slash names its provider."""
    return (model or "").lower().rpartition("/")[2]
