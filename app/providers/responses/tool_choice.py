"""Which tools the model shall use, as the Responses dialect says it."""

from app.providers.dialects import Choice, Quirks, Wire
from app.providers.responses.tools import PATCHING, SHELLS
from app.providers.tool_limits import wire_name

NOT_CHOSEN = ("local_shell",)
"""What can be offered and not be asked for."""


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    request: Wire = {"tools": tools}
    chosen = _chosen(tools, choice, quirks, warnings)
    if chosen is not None:
        request["tool_choice"] = chosen
    if choice.parallel is not None and quirks.says_parallel:
        request["parallel_tool_calls"] = choice.parallel
    elif choice.parallel is not None:
        warnings.append("Whether several tools may be called at once cannot be said here.")
    return request


def _chosen(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> str | Wire | None:
    if choice.mode is not None and choice.mode not in quirks.modes:
        warnings.append(f"The tool choice {choice.mode} cannot be said here, so none is.")
        return None
    if choice.mode == "tool":
        return _one(tools, choice.name, quirks, warnings)
    if choice.allowed and choice.mode != "none":
        allowed = [_reference(tools, name, quirks, warnings) for name in choice.allowed]
        once = [tool for place, tool in enumerate(allowed) if tool not in allowed[:place]]
        return {"type": "allowed_tools", "mode": choice.mode or "auto", "tools": once}
    return choice.mode


def _one(tools: list[Wire], name: str | None, quirks: Quirks, warnings: list[str]) -> str | Wire | None:
    if not name:
        warnings.append("The tool choice names no tool, so nothing is said about it.")
        return None
    chosen = _reference(tools, name, quirks, warnings)
    if chosen["type"] not in NOT_CHOSEN:
        return chosen
    warnings.append(f"{name} cannot be asked for by itself here, so any of the tools is.")
    return "required"


def _reference(tools: list[Wire], name: str, quirks: Quirks, warnings: list[str]) -> Wire:
    """A tool as a choice names it: by what it is offered as."""
    wire = wire_name(name, quirks.names)
    offered = [inner for tool in tools for inner in (tool["tools"] if tool["type"] == "namespace" else [tool])]
    kind = next((tool["type"] for tool in offered if tool.get("name") == wire), None)
    if kind is not None:
        return {"type": kind, "name": wire}
    native = next((tool["type"] for tool in offered if tool["type"] in _native_kinds(name)), None)
    if native is not None:
        return {"type": native}
    warnings.append(f"{name} is not among the tools that are offered, and the provider may refuse to be asked for it.")
    return {"type": "function", "name": wire}


def _native_kinds(name: str) -> tuple[str, ...]:
    if name in SHELLS:
        return ("shell", "local_shell")
    return ("apply_patch",) if name == PATCHING else ()
