"""Calls of a provider's built-in tools that the client runs (shell, apply_patch, ...) as calls of our tools.

A call becomes one or more `CallSpec`s, and their ends become the output that the provider expects.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeGuard

from app.core.runs import CallSpec, CommandEnd, Known, ModelCall, ToolOffer
from app.core.util.head_tail import cut_middle

BEGIN = "*** Begin Patch"
END = "*** End Patch"
FILES = ("*** Add File:", "*** Update File:")
HEADS = {
    "create_file": "*** Add File: ",
    "update_file": "*** Update File: ",
    "delete_file": "*** Delete File: ",
}
NO_NEWLINE = "\\ No newline at end of file"
_NUMBERED = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@.*")


def to_patch(operation: dict[str, Any]) -> str:
    """An `apply_patch_call` operation as a patch of one file.

    Lines that name the file, and the first lines of a unified diff, do not belong into its diff and are dropped.
    """
    kind = operation["type"]
    lines = [] if kind == "delete_file" else _diff_lines(operation["diff"])
    if kind == "create_file":
        lines = _added_lines(lines)
    if kind == "update_file":
        lines = ["@@" if _NUMBERED.fullmatch(line) else line for line in lines]
    return "\n".join([BEGIN, HEADS[kind] + operation["path"], *lines, END]) + "\n"


def _diff_lines(diff: str) -> list[str]:
    """The lines of a diff, without those that name the file."""
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
    return [line for line in lines if line != NO_NEWLINE]


def _added_lines(lines: list[str]) -> list[str]:
    """The lines of a new file, each after a plus, also when the model sent none."""
    lines = [line for line in lines if not _NUMBERED.fullmatch(line)]
    if any(line.startswith("+") for line in lines):
        return [line or "+" for line in lines]
    return [f"+{line}" for line in lines]


COMMAND_TOOL = "shell_command"
ARGV_TOOL = "shell"
RESTART = "echo 'Every command runs in a new shell; there is nothing to restart.'"
QUERIES = ("query", "goal", "q", "search")
LIMITS = ("limit", "max_results", "top_k")
MAX_SEARCH_RESULTS = 50
_EXIT = re.compile(r"ExitCode:(-?\d+)")


def call_specs(call: ModelCall, known: Known) -> list[CallSpec]:
    """The calls to run for a model's call: one per command of a shell call, else one; none for invalid arguments."""
    if call.arguments_error is not None:
        return []
    if call.type in BUILT_IN:
        return BUILT_IN[call.type](call.arguments or {})
    offer = known(call.name)
    if call.name == "bash" and _is_restart(call.arguments or {}) and not _has_restart(offer):
        return [CallSpec(tool=COMMAND_TOOL, arguments={"command": RESTART})]
    tool = call.name if offer is None else offer.name
    if call.type == "function":
        return [CallSpec(tool=tool, arguments=call.arguments or {})]
    if offer is not None and offer.takes == "arguments":
        return [CallSpec(tool=tool, arguments={"input": call.input or ""})]
    return [CallSpec(tool=tool, input=call.input or "")]


def command_end(result: dict[str, Any] | None, error: dict[str, Any] | None) -> CommandEnd:
    """How a command ended, from the stored result and error of its call."""
    structured = (result or {}).get("structured")
    fields: dict[str, Any] = structured if isinstance(structured, dict) else {}
    stdout, stderr = fields.get("stdout", (result or {}).get("output") or ""), fields.get("stderr", "")
    code = (fields.get("outcome") or {}).get("exit_code")
    if error is None:
        return CommandEnd(stdout=stdout, stderr=stderr, exit_code=_exit_code(result, code))
    if ended := _EXIT.fullmatch(error["code"]):
        return CommandEnd(stdout=stdout, stderr=stderr, exit_code=int(ended[1]))
    if error["code"] == "Timeout":
        return CommandEnd(stdout=stdout, stderr=stderr)
    failed = f"[ERROR:{error['code']}] {error['message']}"
    separator = "\n" if stderr and not stderr.endswith("\n") else ""
    return CommandEnd(stdout=stdout, stderr=f"{stderr}{separator}{failed}", exit_code=code or 1)


def limit_output(end: CommandEnd, max_length: int | None) -> CommandEnd:
    """Both outputs cut to `max_length` characters together. The shorter one stays whole if possible."""
    if max_length is None or len(end.stdout) + len(end.stderr) <= max_length:
        return end
    stderr_length = min(len(end.stderr), max(max(max_length, 0) // 2, max_length - len(end.stdout)))
    return replace(
        end,
        stdout=cut_middle(end.stdout, max_length - stderr_length),
        stderr=cut_middle(end.stderr, stderr_length),
    )


def _shell(action: dict[str, Any]) -> list[CallSpec]:
    return [CallSpec(tool=COMMAND_TOOL, arguments={"command": line} | _timeout(action)) for line in action["commands"]]


def _local_shell(action: dict[str, Any]) -> list[CallSpec]:
    variables = [f"{name}={value}" for name, value in (action.get("env") or {}).items()]
    arguments = {"command": (["env", *variables] if variables else []) + action["command"]} | _timeout(action)
    if action.get("working_directory"):
        arguments["workdir"] = action["working_directory"]
    return [CallSpec(tool=ARGV_TOOL, arguments=arguments)]


def _tool_search(arguments: dict[str, Any]) -> list[CallSpec]:
    """The query goes by several names; without a known one, our tool reports what it takes."""
    query = next((arguments[name] for name in QUERIES if isinstance(arguments.get(name), str)), None)
    if query is None:
        return [CallSpec(tool="tool_search", arguments=arguments)]
    limits = [value for name in LIMITS if _is_number(value := arguments.get(name))]
    limit = {"limit": int(min(max(limits[0], 1), MAX_SEARCH_RESULTS))} if limits else {}
    return [CallSpec(tool="tool_search", arguments={"query": query} | limit)]


BUILT_IN: dict[str, Callable[[dict[str, Any]], list[CallSpec]]] = {
    "apply_patch": lambda operation: [CallSpec(tool="apply_patch", input=to_patch(operation))],
    "shell": _shell,
    "local_shell": _local_shell,
    "computer": lambda actions: [CallSpec(tool="computer", arguments=actions)],
    "tool_search": _tool_search,
}


def _timeout(action: dict[str, Any]) -> dict[str, Any]:
    timeout = action.get("timeout_ms")
    return {"timeout_ms": timeout} if _is_number(timeout) and timeout > 0 else {}


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _has_restart(offer: ToolOffer | None) -> bool:
    return offer is not None and "restart" in offer.schema.get("properties", {})


def _is_restart(arguments: dict[str, Any]) -> bool:
    return arguments.get("restart") is True and not arguments.get("command")


def _exit_code(result: dict[str, Any] | None, structured: int | None) -> int:
    if structured is not None:
        return structured
    code = ((result or {}).get("metadata") or {}).get("exit_code")
    return code if isinstance(code, int) else 0
