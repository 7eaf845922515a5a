"""Items of a response: the calls that the client runs, and the text.

Calls that the provider runs itself, and calls with an output among the items, are skipped.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from app.core.runs import CallType, ModelCall, Unreadable
from app.providers.call_arguments import Arguments, incomplete, parse
from app.providers.dialects import Wire

Problem = Callable[[dict[str, Any]], str | None]
"""What is wrong with a call's arguments, or None."""
OPERATIONS = ("create_file", "update_file", "delete_file")
FOREIGN = ("tool_use", "function", "custom")
"""Types of calls in other dialects."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def require_items(values: Sequence[Any]) -> list[Wire]:
    """The values as items. Raises `Unreadable`."""
    for place, item in enumerate(values):
        if not isinstance(item, dict):
            raise Unreadable(f"Item {place} of the response is not an object.")
        if "type" not in item and "role" not in item:
            raise Unreadable(f"Item {place} of the response has neither a type nor a role.")
        blocks = item.get("content") if isinstance(item.get("content"), list) else []
        if "tool_calls" in item or any(_is_foreign(block) for block in [item, *(blocks or [])]):
            raise Unreadable(f"Item {place} of the response has calls of another dialect.")
    return list(values)


def calls_in(items: Sequence[Wire], *, is_cut: bool = False) -> list[ModelCall]:
    """The calls to run, in their order. The last one of a cut response may be incomplete."""
    answered = {_answered_call(item) for item in items}
    calls = []
    for place, item in enumerate(items):
        call_id = _text(item, "call_id")
        if call_id is not None and call_id in answered:
            continue
        is_last = is_cut and place == len(items) - 1 and item.get("status") != "completed"
        call = _call(item, place, is_cut=is_last or item.get("status") == "incomplete")
        if call is not None:
            calls.append(call)
    return calls


def text_of(items: Sequence[Wire]) -> str:
    """The text of the model, refusals included."""
    texts = [_item_text(item) for item in items if item.get("role") == "assistant"]
    return "\n".join(text for text in texts if text)


def _call(item: Wire, place: int, *, is_cut: bool) -> ModelCall | None:
    match item.get("type"):
        case "function_call":
            given = item.get("arguments")
            return _named(item, place, "function", incomplete(_raw(given)) if is_cut else parse(given))
        case "custom_tool_call":
            return _custom(item, place, is_cut)
        case "apply_patch_call":
            return _built_in(item, "apply_patch", item.get("operation"), is_cut, _wrong_operation)
        case "shell_call" if not _is_hosted(item):
            return _built_in(item, "shell", item.get("action"), is_cut, _wrong_commands)
        case "local_shell_call":
            return _built_in(item, "local_shell", item.get("action"), is_cut, _wrong_command)
        case "computer_call":
            return _built_in(item, "computer", _actions(item), is_cut, _wrong_actions)
        case "tool_search_call" if item.get("execution") == "client":
            return _built_in(item, "tool_search", item.get("arguments"), is_cut, lambda given: None)
    return None


def _custom(item: Wire, place: int, is_cut: bool) -> ModelCall:
    text = item.get("input")
    if is_cut:
        return _named(item, place, "custom", incomplete(_raw(text)))
    if not isinstance(text, str):
        return _named(
            item, place, "custom", {"arguments_error": "The input is not a string.", "raw_arguments": _raw(text)}
        )
    return _named(item, place, "custom", {}, text)


def _named(item: Wire, place: int, kind: CallType, fields: Arguments, text: str | None = None) -> ModelCall:
    name = _text(item, "name")
    if not name:
        raise Unreadable(f"Item {place} of the response is a call that names no tool.")
    return ModelCall(
        id=_text(item, "call_id"),
        name=name,
        type=kind,
        input=text,
        namespace=_text(item, "namespace"),
        caller=_caller(item),
        **fields,
    )


def _built_in(item: Wire, kind: CallType, given: Any, is_cut: bool, problem: Problem) -> ModelCall:
    fields = incomplete(_raw(given)) if is_cut else parse(given)
    if "arguments" in fields and (wrong := problem(fields["arguments"])) is not None:
        fields = {"arguments_error": wrong, "raw_arguments": _raw(given)}
    return ModelCall(id=_text(item, "call_id"), name=kind, type=kind, caller=_caller(item), **fields)


def _wrong_operation(operation: dict[str, Any]) -> str | None:
    kind, path = operation.get("type"), operation.get("path")
    if kind not in OPERATIONS:
        return f"The operation is none of {', '.join(OPERATIONS)}."
    if not isinstance(path, str) or not path.strip() or "\n" in path or "\r" in path:
        return "The operation names no path, or one with a line break in it."
    if kind != "delete_file" and not isinstance(operation.get("diff"), str):
        return f"The operation {kind} has no diff."
    return None


def _wrong_commands(action: dict[str, Any]) -> str | None:
    return None if _is_string_list(action.get("commands")) else "The action has no list of commands."


def _wrong_command(action: dict[str, Any]) -> str | None:
    if not _is_string_list(action.get("command")):
        return "The action has no command, which is a list of words."
    env = action.get("env") or {}
    if not isinstance(env, dict) or not all(
        _VARIABLE.fullmatch(name) and isinstance(value, str) for name, value in env.items()
    ):
        return "The `env` of the action is no object of names and texts."
    return None


def _wrong_actions(given: dict[str, Any]) -> str | None:
    has_action = isinstance(given.get("action"), dict) or isinstance(given.get("actions"), list)
    return None if has_action else "The call has no action."


def _actions(item: Wire) -> dict[str, Any]:
    """The actions, with the safety checks that a person must acknowledge."""
    actions = {name: item[name] for name in ("action", "actions") if item.get(name) is not None}
    checks = item.get("pending_safety_checks")
    return actions | {"pending_safety_checks": checks} if checks else actions


def _is_string_list(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(isinstance(text, str) for text in given)


def _is_hosted(item: Wire) -> bool:
    """Whether the provider runs these commands in its own container."""
    environment = item.get("environment")
    return isinstance(environment, dict) and environment.get("type") not in ("local", None)


def _is_foreign(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in FOREIGN


def _answered_call(item: Wire) -> str | None:
    """The id of the call that an item is the output of."""
    kind = _text(item, "type") or ""
    if not kind.endswith("_output"):
        return None
    return _text(item, "call_id") or (_text(item, "id") if kind == "local_shell_call_output" else None)


def _item_text(item: Wire) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text", block.get("refusal")) for block in blocks if isinstance(block, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _text(item: Wire, name: str) -> str | None:
    value = item.get(name)
    return value if isinstance(value, str) else None


def _caller(item: Wire) -> dict[str, Any] | None:
    caller = item.get("caller")
    return caller if isinstance(caller, dict) else None


def _raw(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
