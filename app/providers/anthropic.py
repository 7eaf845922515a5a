"""anthropic: the Messages API. Calls are `tool_use` blocks, and all results of a turn go back in one user message."""

from collections.abc import Sequence

from app.core.runs import ToolOffer
from app.providers.anthropic_calls import read_calls
from app.providers.anthropic_results import write_results
from app.providers.closed import Allowance, allowance_for
from app.providers.dialects import COMMON, Choice, Dialect, Exported, ExportOptions, Quirks, Supports, Wire
from app.providers.fittings import Fitted, fit, mode_of, refuse, with_their_search
from app.providers.names import wire_name

SHELLS = ("shell_command", "shell", "exec_command")
FILES = ("read_file", "write_file", "edit_file")
BASH: Wire = {"type": "bash_20250124", "name": "bash"}
EDITOR: Wire = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
SEARCH: Wire = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
BUILT_IN = {name: BASH for name in SHELLS} | {name: EDITOR for name in FILES}
"""Our tools, and what the model was taught that does the same."""
CHOICES = {"auto": "auto", "required": "any", "tool": "tool", "none": "none"}


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported()
    refuse(options, offers, ("namespace",), exported.warnings)
    offers = with_their_search(offers, options, exported.warnings)
    allowance = allowance_for(options, exported.warnings)
    builtins = _builtins(offers, exported.warnings) if options.is_native else {}
    for tool in fit(offers, options.quirks, exported.warnings):
        replaced = builtins.get(tool.offer.name)
        if replaced is None:
            exported.tools.append(_definition(tool, options, allowance, exported.warnings))
        elif replaced not in exported.tools:
            exported.tools.append(dict(replaced))
    if any("defer_loading" in tool for tool in exported.tools):
        exported.tools.insert(0, dict(SEARCH))
    if options.cache is not None:
        _mark(exported.tools, {"type": "ephemeral"} | ({"ttl": "1h"} if options.cache == "1h" else {}))
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    mode = mode_of(choice, quirks, warnings)
    if choice.allowed:
        warnings.append("Anthropic has no list of allowed tools; the others are left out of the request.")
        tools = _narrowed(tools, choice.allowed, quirks)
    filled: Wire = {"tools": tools}
    is_single = choice.parallel is False and quirks.says_parallel and mode != "none"
    if not tools or (mode is None and not is_single):
        return filled
    said: Wire = {"type": CHOICES[mode or "auto"]}
    if mode == "tool":
        said["name"] = _called(choice.name or "", tools, quirks)
    if is_single:
        said["disable_parallel_tool_use"] = True
    return filled | {"tool_choice": said}


def _builtins(offers: Sequence[ToolOffer], warnings: list[str]) -> dict[str, Wire]:
    """Which of the offers the model knows as a tool of its own. A name can be there only once."""
    names = {offer.name for offer in offers}
    taken = {tool["name"] for tool in (BASH, EDITOR) if tool["name"] in names}
    warnings += [f"The built-in tool {name} is not offered: another tool has its name." for name in sorted(taken)]
    return {name: tool for name, tool in BUILT_IN.items() if tool["name"] not in taken}


def _definition(tool: Fitted, options: ExportOptions, allowance: Allowance | None, warnings: list[str]) -> Wire:
    made: Wire = {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
    if not tool.description:
        del made["description"]
    if allowance is not None and (closed := allowance.close(tool, warnings)) is not None:
        made |= {"input_schema": closed, "strict": True}
    if options.defers is not None and options.defers(tool.offer.name):
        made["defer_loading"] = True
    return made


def _mark(tools: list[Wire], mark: Wire) -> None:
    """The mark on the last tool caches all; one that is deferred may not carry it."""
    last = next((tool for tool in reversed(tools) if "defer_loading" not in tool), None)
    if last is not None:
        last["cache_control"] = mark


def _narrowed(tools: list[Wire], allowed: Sequence[str], quirks: Quirks) -> list[Wire]:
    names = {_called(name, tools, quirks) for name in allowed}
    kept = [dict(tool) for tool in tools if tool["name"] in names]
    if any("defer_loading" in tool for tool in kept):
        kept.insert(0, dict(SEARCH))
    mark = next((tool["cache_control"] for tool in tools if "cache_control" in tool), None)
    if mark is not None:
        for tool in kept:
            tool.pop("cache_control", None)
        _mark(kept, mark)
    return kept


def _called(name: str, tools: list[Wire], quirks: Quirks) -> str:
    """What a tool of ours is called among these."""
    built_in = BUILT_IN.get(name)
    if built_in is not None and any(tool.get("type") == built_in["type"] for tool in tools):
        return str(built_in["name"])
    return wire_name(name, quirks.names)


dialect = Dialect(
    name="anthropic",
    title="Anthropic Messages",
    export_tools=export_tools,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(strict=True, images=True, files=True, builtins=(BASH["type"], EDITOR["type"])),
    quirks=Quirks(strict="on_request", names=COMMON),
)
