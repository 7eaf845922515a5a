"""Tools and `tool_choice` in the format of Chat Completions, shared by every provider that speaks it."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from app.core.llm_models import takes_freeform
from app.core.runs import ToolOffer
from app.providers.dialects import Choice, Exported, ExportOptions, Mode, Quirks, Wire
from app.providers.schema.document import NotExpressible, without_closed_objects
from app.providers.schema.openai_strict import rewrite
from app.providers.tool_limits import named, shortened, wire_name, within

Shape = Callable[[dict[str, Any]], dict[str, Any]]
NO_STRICT = "This provider has no strict mode, so strict was left out."
HOW_TO = "The text goes into `input` as it is, with no quotes and no fence around it."


def export(offers: Sequence[ToolOffer], options: ExportOptions, shape: Shape = deepcopy) -> Exported:
    """All tools, each as a function or as one that takes free text. `shape` is what the provider wants of schemas."""
    exported = Exported(warnings=_unsaid(offers, options))
    for offer in within(offers, options.quirks.most_tools, exported.warnings):
        try:
            exported.tools.append(_tool(offer, options, exported.warnings, shape))
        except RecursionError:
            exported.warnings.append(f"{offer.name}: was left out, because its schema is nested too deeply.")
    return exported


def _tool(offer: ToolOffer, options: ExportOptions, warnings: list[str], shape: Shape) -> Wire:
    name = {"name": named(offer, options.quirks, warnings)}
    if offer.takes == "input" and options.quirks.takes_freeform and takes_freeform(options.model):
        return {"type": "custom", "custom": name | _custom(offer, options.quirks, warnings)}
    return {"type": "function", "function": name | _function(offer, options, warnings, shape)}


def _unsaid(offers: Sequence[ToolOffer], options: ExportOptions) -> list[str]:
    """What was asked for and has no place in this shape."""
    is_deferred = options.defers is not None and any(options.defers(offer.name) for offer in offers)
    unsaid = {
        NO_STRICT: options.strict == "on" and options.quirks.strict == "never",
        "Tools cannot be marked for the cache in this dialect.": options.cache is not None,
        "Tools cannot be deferred in this dialect, so all are offered at once.": is_deferred,
        "This dialect has no namespaces, so the tools are offered side by side.": options.namespace is not None,
        "This dialect has no built-in tools, so all are offered as they are.": options.is_native,
    }
    return [sentence for sentence, is_asked in unsaid.items() if is_asked]


def _custom(offer: ToolOffer, quirks: Quirks, warnings: list[str]) -> Wire:
    about = _description(offer, offer.description, quirks, warnings)
    if offer.grammar is None:
        return about | {"format": {"type": "text"}}
    grammar = {"syntax": "lark", "definition": offer.grammar}
    return about | {"format": {"type": "grammar", "grammar": grammar}}


def _function(offer: ToolOffer, options: ExportOptions, warnings: list[str], shape: Shape) -> Wire:
    if offer.takes == "input":
        told, schema = f"{offer.description}\n\n{HOW_TO}".strip(), _free_text(offer)
    else:
        told, schema = offer.description, shape(offer.schema)
    about = _description(offer, told, options.quirks, warnings)
    return about | _parameters(offer.name, {"type": "object", "properties": {}} | schema, options, warnings)


def _description(offer: ToolOffer, told: str, quirks: Quirks, warnings: list[str]) -> Wire:
    """A tool without a description has no key for it."""
    description = shortened(offer, told, quirks, warnings)
    return {"description": description} if description.strip() else {}


def _free_text(offer: ToolOffer) -> dict[str, Any]:
    """A text as the one argument. The grammar stands at the argument: the tool's description may have a limit."""
    about = "The whole text." if offer.grammar is None else f"A text that follows this Lark grammar:\n{offer.grammar}"
    return {
        "type": "object",
        "properties": {"input": {"type": "string", "description": about}},
        "required": ["input"],
        "additionalProperties": False,
    }


def _parameters(name: str, schema: dict[str, Any], options: ExportOptions, warnings: list[str]) -> Wire:
    """The schema and whether it is strict. Given up is said outright: the caller has counted on it."""
    level = options.quirks.strict
    loose = schema if options.quirks.closes else without_closed_objects(schema)
    if level != "never" and (options.strict == "on" or (options.strict == "auto" and level == "full")):
        try:
            return {"strict": True, "parameters": rewrite(schema)}
        except NotExpressible as reason:
            warnings.append(f"{name}: strict was given up: {reason}")
            return {"strict": False, "parameters": loose}
    return {"strict": False, "parameters": loose} if level == "false" else {"parameters": loose}


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
