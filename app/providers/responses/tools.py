"""Tools and `tool_choice` of the Responses API: functions, custom tools, and OpenAI's tools that the client runs."""

import copy
from collections.abc import Sequence
from typing import Any

from app.core.llm_models import takes_freeform
from app.core.runs import ToolOffer
from app.providers.dialects import Choice, Exported, ExportOptions, Quirks, Wire
from app.providers.schema import openai_strict
from app.providers.schema.document import NotExpressible
from app.providers.tool_limits import FREE_FORM, fit_count, fit_description, fit_name, wire_name, without_own_search

QUIRKS = Quirks(strict="full", max_tools=128, takes_freeform=True)
PATCHING = "apply_patch"
SHELLS = ("shell", "shell_command")
NATIVE_KINDS = dict.fromkeys(SHELLS, ("shell", "local_shell")) | {PATCHING: ("apply_patch",)}
OLD_SHELL_MODELS = "codex-mini"
"""Models with the older `local_shell` tool only."""
SEARCH: Wire = {"type": "tool_search"}


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported()
    if options.strict == "on" and not _wants_strict(options):
        exported.warnings.append("Strict tools are not supported; no tool is strict.")
    entries = group = exported.tools
    offers = without_own_search(offers, options, exported.warnings)
    for offer in _fit_offers(offers, options, exported.warnings):
        native = _native(offer, options)
        if native is not None:
            entries += [] if native in entries else [native]
            continue
        if options.namespace is not None and group is entries:
            name, description = options.namespace
            named = wire_name(name, options.quirks.names)
            group = []
            entries.append({"type": "namespace", "name": named, "description": description, "tools": group})
        group.append(define(offer, options, exported.warnings))
    if any(tool.get("defer_loading") for tool in [*entries, *group]):
        entries.append(dict(SEARCH))
    return exported


def define(offer: ToolOffer, options: ExportOptions, warnings: list[str]) -> Wire:
    """One tool: a function, or a custom tool where the model supports them."""
    name = fit_name(offer, options.quirks, warnings)
    if offer.takes == "input" and options.quirks.takes_freeform and takes_freeform(options.model):
        description = fit_description(offer, offer.description, options.quirks, warnings)
        wire: Wire = {"type": "custom", "name": name, "description": description, "format": _format(offer.grammar)}
    else:
        description = fit_description(offer, _described(offer), options.quirks, warnings)
        parameters, is_strict = _parameters(offer, options, warnings)
        wire = {"type": "function", "name": name, "description": description, "parameters": parameters}
        wire["strict"] = is_strict  # the default is true
    is_deferred = options.defers is not None and options.defers(offer.name)
    return wire | {"defer_loading": True} if is_deferred else wire


def _fit_offers(offers: Sequence[ToolOffer], options: ExportOptions, warnings: list[str]) -> Sequence[ToolOffer]:
    """As many as the provider takes; the search for deferred tools counts as one."""
    limit = options.quirks.max_tools
    if limit is None or len(offers) < limit:
        return offers
    is_searched = options.defers is not None and any(options.defers(offer.name) for offer in offers)
    return fit_count(offers, limit - 1 if is_searched else limit, warnings)


def _native(offer: ToolOffer, options: ExportOptions) -> Wire | None:
    """OpenAI's own tool that does the same."""
    if not options.is_native:
        return None
    if offer.name == PATCHING:
        return {"type": "apply_patch"}
    if offer.name not in SHELLS:
        return None
    model = (options.model or "").lower().rpartition("/")[2]
    if model.startswith(OLD_SHELL_MODELS):
        return {"type": "local_shell"}
    return {"type": "shell", "environment": {"type": "local"}}


def _format(grammar: str | None) -> Wire:
    if grammar is None:
        return {"type": "text"}
    return {"type": "grammar", "syntax": "lark", "definition": grammar}


def _described(offer: ToolOffer) -> str:
    """The description of a function; for free-form input, with the grammar."""
    if offer.takes == "arguments":
        return offer.description
    said = f"{offer.description}\n\nGive the whole text as the string `input`."
    return said if offer.grammar is None else f"{said} It follows this grammar (Lark):\n{offer.grammar}"


def _parameters(offer: ToolOffer, options: ExportOptions, warnings: list[str]) -> tuple[dict[str, Any], bool]:
    """The schema, and whether it is strict."""
    is_text = offer.takes == "input" and list(offer.schema.get("properties", ())) != ["input"]
    schema = FREE_FORM if is_text else offer.schema
    if _wants_strict(options):
        try:
            return openai_strict.rewrite(schema), True
        except NotExpressible as reason:
            warnings.append(f"{offer.name}: not strict: {reason}")
    return copy.deepcopy(schema), False


def _wants_strict(options: ExportOptions) -> bool:
    can = options.quirks.strict
    return can == "full" if options.strict == "auto" else options.strict == "on" and can in ("full", "on_request")


NOT_CHOOSABLE = ("local_shell",)
"""Tools that `tool_choice` cannot name."""


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    request: Wire = {"tools": tools}
    tool_choice = _tool_choice(tools, choice, quirks, warnings)
    if tool_choice is not None:
        request["tool_choice"] = tool_choice
    if choice.parallel is not None and quirks.has_parallel_choice:
        request["parallel_tool_calls"] = choice.parallel
    elif choice.parallel is not None:
        warnings.append("Parallel calls cannot be enabled or disabled here.")
    return request


def _tool_choice(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> str | Wire | None:
    if choice.mode is not None and choice.mode not in quirks.modes:
        warnings.append(f"The tool choice {choice.mode} is not supported here; it is left out.")
        return None
    if choice.mode == "tool":
        if not choice.name:
            warnings.append("The tool choice names no tool; it is left out.")
            return None
        chosen = _reference(tools, choice.name, quirks, warnings)
        if chosen["type"] not in NOT_CHOOSABLE:
            return chosen
        warnings.append(f"{choice.name} cannot be required by itself here; any tool is required.")
        return "required"
    if choice.allowed and choice.mode != "none":
        allowed = [_reference(tools, name, quirks, warnings) for name in choice.allowed]
        once = [tool for place, tool in enumerate(allowed) if tool not in allowed[:place]]
        return {"type": "allowed_tools", "mode": choice.mode or "auto", "tools": once}
    return choice.mode


def _reference(tools: list[Wire], name: str, quirks: Quirks, warnings: list[str]) -> Wire:
    """A tool as `tool_choice` names it."""
    wire = wire_name(name, quirks.names)
    offered = [inner for tool in tools for inner in (tool["tools"] if tool["type"] == "namespace" else [tool])]
    kind = next((tool["type"] for tool in offered if tool.get("name") == wire), None)
    if kind is not None:
        return {"type": kind, "name": wire}
    native = next((tool["type"] for tool in offered if tool["type"] in NATIVE_KINDS.get(name, ())), None)
    if native is not None:
        return {"type": native}
    warnings.append(f"{name} is not among the exported tools; the provider may reject the choice.")
    return {"type": "function", "name": wire}
