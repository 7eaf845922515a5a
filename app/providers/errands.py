"""Errands: which of our tools carry out what a model asked for, and how the commands of a shell ended.

Providers have tools of their own that are run by whoever called the model. Ours do the same under other names.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeGuard

from app.core.runs import CommandEnd, Errand, Known, ModelCall, ToolOffer
from app.providers.operations import patch_of

LINES = "shell_command"
WORDS = "shell"
RESTART = "echo 'Every command runs in a new shell, so there is none to restart; this one works.'"
QUERIES = ("query", "goal", "q", "search")
LIMITS = ("limit", "max_results", "top_k")
MOST_FOUND = 50
_EXIT = re.compile(r"ExitCode:(-?\d+)")


def errands(call: ModelCall, known: Known) -> list[Errand]:
    """What is to be run for a call; for one whose arguments cannot be read, nothing.

    A shell call is one errand for each of its commands, in their order; any other is one.
    """
    if call.arguments_error is not None:
        return []
    if call.type in BUILT_IN:
        return BUILT_IN[call.type](call.arguments or {})
    offer = known(call.name)
    if call.name == "bash" and _only_restarts(call.arguments) and not _knows(offer, "restart"):
        return [Errand(tool=LINES, arguments={"command": RESTART})]
    tool = call.name if offer is None else offer.name
    if call.type == "function":
        return [Errand(tool=tool, arguments=call.arguments or {})]
    if offer is not None and offer.takes == "arguments":
        return [Errand(tool=tool, arguments={"input": call.input or ""})]
    return [Errand(tool=tool, input=call.input or "")]


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


def _apply_patch(operation: dict[str, Any]) -> list[Errand]:
    return [Errand(tool="apply_patch", input=patch_of(operation))]


def _shell(action: dict[str, Any]) -> list[Errand]:
    return [Errand(tool=LINES, arguments={"command": line} | _time(action)) for line in action["commands"]]


def _local_shell(action: dict[str, Any]) -> list[Errand]:
    variables = [f"{name}={value}" for name, value in (action.get("env") or {}).items()]
    arguments = {"command": (["env", *variables] if variables else []) + action["command"]} | _time(action)
    if action.get("working_directory"):
        arguments["workdir"] = action["working_directory"]
    return [Errand(tool=WORDS, arguments=arguments)]


def _computer(actions: dict[str, Any]) -> list[Errand]:
    return [Errand(tool="computer", arguments=actions)]


def _tool_search(arguments: dict[str, Any]) -> list[Errand]:
    """What is searched for is named in many ways; where none is known, our tool says what it takes."""
    query = next((arguments[name] for name in QUERIES if isinstance(arguments.get(name), str)), None)
    if query is None:
        return [Errand(tool="tool_search", arguments=arguments)]
    limits = [given for name in LIMITS if _is_number(given := arguments.get(name))]
    wanted = {"limit": int(min(max(limits[0], 1), MOST_FOUND))} if limits else {}
    return [Errand(tool="tool_search", arguments={"query": query} | wanted)]


BUILT_IN: dict[str, Callable[[dict[str, Any]], list[Errand]]] = {
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
