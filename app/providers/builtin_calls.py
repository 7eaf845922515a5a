"""Errands: which of our tools carry out what a model asked for, and how the commands of a shell ended.

Providers have tools of their own that are run by whoever called the model. Ours do the same under other names.

One file's change as a provider's own patch tool sends it, as the whole patch that our tool takes.

There, a diff is what stands between the lines that name the files. Models also send those lines, or the first lines of
a unified diff; what they say is known already, so they are left out.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeGuard

from app.core.runs import CallSpec, CommandEnd, Known, ModelCall, ToolOffer

BEGIN = "*** Begin Patch"
END = "*** End Patch"
FILES = ("*** Add File:", "*** Update File:")
HEADS = {
    "create_file": "*** Add File: ",
    "update_file": "*** Update File: ",
    "delete_file": "*** Delete File: ",
}
NO_LAST_END = "\\ No newline at end of file"
_NUMBERED = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@.*")


def patch_of(operation: dict[str, Any]) -> str:
    """The operation as a patch of one file. It has a known type, a path, and a diff where one is needed."""
    kind = operation["type"]
    lines = [] if kind == "delete_file" else _bare(operation["diff"])
    if kind == "create_file":
        lines = _added(lines)
    if kind == "update_file":
        lines = ["@@" if _NUMBERED.fullmatch(line) else line for line in lines]
    return "\n".join([BEGIN, HEADS[kind] + operation["path"], *lines, END]) + "\n"


def _bare(diff: str) -> list[str]:
    """The lines of a diff, without what names the file."""
    text = diff.strip() if diff.strip().startswith(BEGIN) else diff
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if not lines[-1]:
        lines.pop()
    if lines and lines[0].strip() == BEGIN:
        lines.pop(0)
    if lines and lines[-1].strip() == END:
        lines.pop()
    if lines and lines[0].startswith(FILES):
        lines.pop(0)
    if len(lines) > 1 and lines[0].startswith("--- ") and lines[1].startswith("+++ "):
        del lines[:2]
    return [line for line in lines if line != NO_LAST_END]


def _added(lines: list[str]) -> list[str]:
    """The lines of a new file, each after a plus. Where none has one, they were sent as they are to be."""
    lines = [line for line in lines if not _NUMBERED.fullmatch(line)]
    if any(line.startswith("+") for line in lines):
        return [line or "+" for line in lines]
    return [f"+{line}" for line in lines]


LINES = "shell_command"
WORDS = "shell"
RESTART = "echo 'Every command runs in a new shell, so there is none to restart; this one works.'"
QUERIES = ("query", "goal", "q", "search")
LIMITS = ("limit", "max_results", "top_k")
MOST_FOUND = 50
_EXIT = re.compile(r"ExitCode:(-?\d+)")


def errands(call: ModelCall, known: Known) -> list[CallSpec]:
    """What is to be run for a call; for one whose arguments cannot be read, nothing.

    A shell call is one errand for each of its commands, in their order; any other is one.
    """
    if call.arguments_error is not None:
        return []
    if call.type in BUILT_IN:
        return BUILT_IN[call.type](call.arguments or {})
    offer = known(call.name)
    if call.name == "bash" and _only_restarts(call.arguments) and not _knows(offer, "restart"):
        return [CallSpec(tool=LINES, arguments={"command": RESTART})]
    tool = call.name if offer is None else offer.name
    if call.type == "function":
        return [CallSpec(tool=tool, arguments=call.arguments or {})]
    if offer is not None and offer.takes == "arguments":
        return [CallSpec(tool=tool, arguments={"input": call.input or ""})]
    return [CallSpec(tool=tool, input=call.input or "")]


def command_end(result: dict[str, Any] | None, error: dict[str, Any] | None) -> CommandEnd:
    """How a command ended, from the result and the error that its call has in the record."""
    structured = (result or {}).get("structured")
    told: dict[str, Any] = structured if isinstance(structured, dict) else {}
    stdout, stderr = told.get("stdout", (result or {}).get("output") or ""), told.get("stderr", "")
    code = (told.get("outcome") or {}).get("exit_code")
    if error is None:
        return CommandEnd(stdout=stdout, stderr=stderr, exit_code=_exit_code(result, code))
    if ended := _EXIT.fullmatch(error["code"]):
        return CommandEnd(stdout=stdout, stderr=stderr, exit_code=int(ended[1]))
    if error["code"] == "Timeout":
        return CommandEnd(stdout=stdout, stderr=stderr)
    failed = f"[ERROR:{error['code']}] {error['message']}"
    joint = "\n" if stderr and not stderr.endswith("\n") else ""
    return CommandEnd(stdout=stdout, stderr=f"{stderr}{joint}{failed}", exit_code=code or 1)


def cut(end: CommandEnd, most: int | None) -> CommandEnd:
    """The same with no more characters in both its outputs together. What is short is kept whole, if it can be."""
    if most is None or len(end.stdout) + len(end.stderr) <= most:
        return end
    half = max(most, 0) // 2
    errors = min(len(end.stderr), max(half, most - len(end.stdout)))
    return replace(end, stdout=_middle_out(end.stdout, most - errors), stderr=_middle_out(end.stderr, errors))


def _apply_patch(operation: dict[str, Any]) -> list[CallSpec]:
    return [CallSpec(tool="apply_patch", input=patch_of(operation))]


def _shell(action: dict[str, Any]) -> list[CallSpec]:
    return [CallSpec(tool=LINES, arguments={"command": line} | _time(action)) for line in action["commands"]]


def _local_shell(action: dict[str, Any]) -> list[CallSpec]:
    variables = [f"{name}={value}" for name, value in (action.get("env") or {}).items()]
    arguments = {"command": (["env", *variables] if variables else []) + action["command"]} | _time(action)
    if action.get("working_directory"):
        arguments["workdir"] = action["working_directory"]
    return [CallSpec(tool=WORDS, arguments=arguments)]


def _computer(actions: dict[str, Any]) -> list[CallSpec]:
    return [CallSpec(tool="computer", arguments=actions)]


def _tool_search(arguments: dict[str, Any]) -> list[CallSpec]:
    """What is searched for is named in many ways; where none is known, our tool says what it takes."""
    query = next((arguments[name] for name in QUERIES if isinstance(arguments.get(name), str)), None)
    if query is None:
        return [CallSpec(tool="tool_search", arguments=arguments)]
    limits = [given for name in LIMITS if _is_number(given := arguments.get(name))]
    wanted = {"limit": int(min(max(limits[0], 1), MOST_FOUND))} if limits else {}
    return [CallSpec(tool="tool_search", arguments={"query": query} | wanted)]


BUILT_IN: dict[str, Callable[[dict[str, Any]], list[CallSpec]]] = {
    "apply_patch": _apply_patch,
    "shell": _shell,
    "local_shell": _local_shell,
    "computer": _computer,
    "tool_search": _tool_search,
}


def _time(action: dict[str, Any]) -> dict[str, Any]:
    given = action.get("timeout_ms")
    return {"timeout_ms": given} if _is_number(given) and given > 0 else {}


def _is_number(given: Any) -> TypeGuard[int | float]:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _knows(offer: ToolOffer | None, name: str) -> bool:
    return offer is not None and name in offer.schema.get("properties", {})


def _only_restarts(arguments: dict[str, Any] | None) -> bool:
    given = arguments or {}
    return given.get("restart") is True and not given.get("command")


def _exit_code(result: dict[str, Any] | None, told: int | None) -> int:
    if told is not None:
        return told
    code = ((result or {}).get("metadata") or {}).get("exit_code")
    return code if isinstance(code, int) else 0


def _middle_out(text: str, most: int) -> str:
    """Both ends of a text, and a note between them; where that does not fit, its beginning."""
    if len(text) <= most:
        return text
    note = f"\n[the middle of these {len(text)} characters is left out]\n"
    room = most - len(note)
    if room < 2:
        return text[: max(most, 0)]
    return text[: room - room // 2] + note + text[len(text) - room // 2 :]
