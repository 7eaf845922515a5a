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
from app.providers.tool_limits import fit_count, fit_description, fit_name, wire_name

ConvertSchema = Callable[[dict[str, Any]], dict[str, Any]]
NO_STRICT = "This provider has no strict mode; strict was left out."
MODE_NAMES: Mapping[Mode, str] = {"auto": "auto", "none": "none", "required": "required"}
HOW_TO = "Put the text into `input` unchanged, without quotes or a code fence."


def export(offers: Sequence[ToolOffer], options: ExportOptions, convert: ConvertSchema = deepcopy) -> Exported:
    """All tools, each as a function or a custom tool. `convert` adapts schemas to the provider."""
    exported = Exported(warnings=_unsupported_options(offers, options))
    for offer in fit_count(offers, options.quirks.max_tools, exported.warnings):
        try:
            exported.tools.append(_tool(offer, options, exported.warnings, convert))
        except RecursionError:
            exported.warnings.append(f"{offer.name}: left out, because its schema is nested too deep.")
    return exported


def _tool(offer: ToolOffer, options: ExportOptions, warnings: list[str], convert: ConvertSchema) -> Wire:
    name = {"name": fit_name(offer, options.quirks, warnings)}
    if offer.takes == "input" and options.quirks.takes_freeform and takes_freeform(options.model):
        fields = _description(offer, offer.description, options.quirks, warnings)
        format: Wire = {"type": "text"}
        if offer.grammar is not None:
            format = {"type": "grammar", "grammar": {"syntax": "lark", "definition": offer.grammar}}
        return {"type": "custom", "custom": name | fields | {"format": format}}
    return {"type": "function", "function": name | _function(offer, options, warnings, convert)}


def _unsupported_options(offers: Sequence[ToolOffer], options: ExportOptions) -> list[str]:
    is_deferred = options.defers is not None and any(options.defers(offer.name) for offer in offers)
    unsupported = {
        NO_STRICT: options.strict == "on" and options.quirks.strict == "never",
        "This dialect has no cache marker on tools.": options.cache is not None,
        "This dialect has no deferred tools; all are exported.": is_deferred,
        "This dialect has no namespaces; the tools are exported without one.": options.namespace is not None,
        "This dialect has no built-in tools; all are exported as functions.": options.is_native,
    }
    return [sentence for sentence, is_used in unsupported.items() if is_used]


def _function(offer: ToolOffer, options: ExportOptions, warnings: list[str], convert: ConvertSchema) -> Wire:
    if offer.takes == "input":
        description, schema = f"{offer.description}\n\n{HOW_TO}".strip(), _input_schema(offer)
    else:
        description, schema = offer.description, convert(offer.schema)
    fields = _description(offer, description, options.quirks, warnings)
    return fields | _parameters(offer.name, {"type": "object", "properties": {}} | schema, options, warnings)


def _description(offer: ToolOffer, description: str, quirks: Quirks, warnings: list[str]) -> Wire:
    """A tool without a description has no such field."""
    description = fit_description(offer, description, quirks, warnings)
    return {"description": description} if description.strip() else {}


def _input_schema(offer: ToolOffer) -> dict[str, Any]:
    """The schema of a free-form tool. It has the grammar, as the tool's description may be limited."""
    description = (
        "The whole text." if offer.grammar is None else f"A text that follows this Lark grammar:\n{offer.grammar}"
    )
    return {
        "type": "object",
        "properties": {"input": {"type": "string", "description": description}},
        "required": ["input"],
        "additionalProperties": False,
    }


def _parameters(name: str, schema: dict[str, Any], options: ExportOptions, warnings: list[str]) -> Wire:
    """The schema, and `strict` where the provider has it. A schema without a strict form is exported with a warning."""
    level = options.quirks.strict
    loose = schema if options.quirks.allows_closed else without_closed_objects(schema)
    if level != "never" and (options.strict == "on" or (options.strict == "auto" and level == "full")):
        try:
            return {"strict": True, "parameters": rewrite(schema)}
        except NotExpressible as reason:
            warnings.append(f"{name}: not strict: {reason}")
            return {"strict": False, "parameters": loose}
    return {"strict": False, "parameters": loose} if level == "false" else {"parameters": loose}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedChoice:
    """A choice that the provider supports, with wire names."""

    tools: list[Wire]
    mode: Mode | None = None
    name: str | None = None
    allowed: Sequence[str] = ()


def fill(
    tools: list[Wire],
    choice: Choice,
    quirks: Quirks,
    warnings: list[str],
    *,
    mode_names: Mapping[Mode, str] = MODE_NAMES,
) -> Wire:
    """The fields of a request. Without tools there are none: providers reject an empty list."""
    resolved = resolve_choice(tools, choice, quirks, warnings)
    if not resolved.tools:
        return {}
    request: Wire = {"tools": resolved.tools}
    tool_choice = _tool_choice(resolved, mode_names)
    if tool_choice is not None:
        request["tool_choice"] = tool_choice
    if choice.parallel is not None and quirks.has_parallel_choice:
        request["parallel_tool_calls"] = choice.parallel
    elif choice.parallel is False:
        warnings.append("This provider cannot disable parallel calls.")
    return request


def resolve_choice(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> ResolvedChoice:
    """The choice as this provider supports it. Without `tool`, only that tool is exported and required."""
    if choice.mode == "tool":
        return _resolve_one(tools, choice.name, quirks, warnings)
    if not tools and choice.mode == "required":
        warnings.append("There are no tools that the model could be required to use.")
    if choice.mode == "none":
        if "none" in quirks.modes:
            return ResolvedChoice(tools=tools, mode="none")
        if tools:
            warnings.append("This provider cannot forbid tool calls, so no tool is exported.")
        return ResolvedChoice(tools=[])
    if choice.mode == "required" and "required" not in quirks.modes:
        warnings.append("This provider cannot require a tool call; the model decides.")
    resolved = ResolvedChoice(tools=tools, mode=choice.mode if choice.mode in quirks.modes else None)
    return _narrow(resolved, choice.allowed, quirks, warnings) if choice.allowed else resolved


def _resolve_one(tools: list[Wire], name: str | None, quirks: Quirks, warnings: list[str]) -> ResolvedChoice:
    wire = None if name is None else wire_name(name, quirks.names)
    chosen = [tool for tool in tools if name_of(tool) == wire]
    if wire is None or not chosen:
        warnings.append(f"{name or 'The tool to use'} is not among the tools; the model decides which it uses.")
        return ResolvedChoice(tools=tools)
    if "tool" in quirks.modes:
        return ResolvedChoice(tools=tools, mode="tool", name=wire)
    if "required" in quirks.modes:
        return ResolvedChoice(tools=chosen, mode="required")
    warnings.append(f"This provider cannot require {name}; it is the only tool exported.")
    return ResolvedChoice(tools=chosen)


def _narrow(resolved: ResolvedChoice, names: Sequence[str], quirks: Quirks, warnings: list[str]) -> ResolvedChoice:
    """Without a list of allowed tools, the others are not exported."""
    wires = {wire_name(name, quirks.names): name for name in names}
    allowed = [tool for tool in resolved.tools if name_of(tool) in wires]
    if missing := wires.keys() - {name_of(tool) for tool in allowed}:
        names_left = ", ".join(name for wire, name in wires.items() if wire in missing)
        warnings.append(f"These are allowed, but not among the tools: {names_left}.")
    if quirks.has_allowed_list and allowed:
        return replace(resolved, allowed=[name_of(tool) for tool in allowed])
    return replace(resolved, tools=allowed)


def name_of(tool: Wire) -> str:
    return str(tool[tool["type"]]["name"])


def _tool_choice(resolved: ResolvedChoice, mode_names: Mapping[Mode, str]) -> Any:
    references = {
        name_of(tool): {"type": tool["type"], tool["type"]: {"name": name_of(tool)}} for tool in resolved.tools
    }
    if resolved.name is not None:
        return references[resolved.name]
    if resolved.allowed:
        mode = "required" if resolved.mode == "required" else "auto"
        tools = [references[name] for name in resolved.allowed]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    return None if resolved.mode is None else mode_names[resolved.mode]
