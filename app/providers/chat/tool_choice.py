"""Which tools a model shall use, in the shape of Chat Completions. What cannot be said is offered instead: to make a
model use one tool, most providers take that one tool and the word that some tool must be used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.providers.dialects import Choice, Mode, Quirks, Wire
from app.providers.tool_limits import wire_name

WORDS: Mapping[Mode, str] = {"auto": "auto", "none": "none", "required": "required"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A choice that can be sent, with names as they are on the wire."""

    tools: list[Wire]
    mode: Mode | None = None
    name: str | None = None
    allowed: Sequence[str] = ()


def fill(
    tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str], *, words: Mapping[Mode, str] = WORDS
) -> Wire:
    """The fields of a request. Without tools there are none: an empty list is refused, and a choice from it too."""
    settled = settle(tools, choice, quirks, warnings)
    if not settled.tools:
        return {}
    request: Wire = {"tools": settled.tools}
    said = _said(settled, words)
    if said is not None:
        request["tool_choice"] = said
    if choice.parallel is not None and quirks.says_parallel:
        request["parallel_tool_calls"] = choice.parallel
    elif choice.parallel is False:
        warnings.append("This provider cannot be told to make one call at a time.")
    return request


def settle(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Settled:
    """The choice as this provider can take it."""
    if choice.mode == "tool":
        return _settle_one(tools, choice.name, quirks, warnings)
    if not tools and choice.mode == "required":
        warnings.append("There are no tools that the model could be made to use.")
    if choice.mode == "none":
        return _settle_none(tools, quirks, warnings)
    if choice.mode == "required" and "required" not in quirks.modes:
        warnings.append("This provider cannot be told that a tool must be used, so the model decides.")
    settled = Settled(tools=tools, mode=choice.mode if choice.mode in quirks.modes else None)
    return _narrow(settled, choice.allowed, quirks, warnings) if choice.allowed else settled


def _settle_none(tools: list[Wire], quirks: Quirks, warnings: list[str]) -> Settled:
    if "none" in quirks.modes:
        return Settled(tools=tools, mode="none")
    if tools:
        warnings.append("This provider cannot be told to use no tool, so none is offered.")
    return Settled(tools=[])


def _settle_one(tools: list[Wire], name: str | None, quirks: Quirks, warnings: list[str]) -> Settled:
    wire = None if name is None else wire_name(name, quirks.names)
    chosen = [tool for tool in tools if name_of(tool) == wire]
    if wire is None or not chosen:
        warnings.append(f"{name or 'The tool to use'} is not among the tools, so the model decides which it uses.")
        return Settled(tools=tools)
    if "tool" in quirks.modes:
        return Settled(tools=tools, mode="tool", name=wire)
    if "required" in quirks.modes:
        return Settled(tools=chosen, mode="required")
    warnings.append(f"This provider cannot be told to use {name}; it is the only tool offered.")
    return Settled(tools=chosen)


def _narrow(settled: Settled, names: Sequence[str], quirks: Quirks, warnings: list[str]) -> Settled:
    """Where it cannot be said which tools are allowed, the others are not offered."""
    wires = {wire_name(name, quirks.names): name for name in names}
    allowed = [tool for tool in settled.tools if name_of(tool) in wires]
    if missing := wires.keys() - {name_of(tool) for tool in allowed}:
        shown = ", ".join(name for wire, name in wires.items() if wire in missing)
        warnings.append(f"These are allowed, but not among the tools: {shown}.")
    if quirks.says_allowed and allowed:
        return replace(settled, allowed=[name_of(tool) for tool in allowed])
    return replace(settled, tools=allowed)


def name_of(tool: Wire) -> str:
    return str(tool[tool["type"]]["name"])


def _said(settled: Settled, words: Mapping[Mode, str]) -> Any:
    named = {name_of(tool): {"type": tool["type"], tool["type"]: {"name": name_of(tool)}} for tool in settled.tools}
    if settled.name is not None:
        return named[settled.name]
    if settled.allowed:
        mode = "required" if settled.mode == "required" else "auto"
        tools = [named[name] for name in settled.allowed]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    return None if settled.mode is None else words[settled.mode]
