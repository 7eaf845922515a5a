"""Tools in the shape of Chat Completions, which most providers take with few changes of their own."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from app.core.llm_models import takes_freeform
from app.core.runs import ToolOffer
from app.providers.dialects import Exported, ExportOptions, Quirks, Wire
from app.providers.schema.document import NotExpressible
from app.providers.schema.inline import opened
from app.providers.schema.openai_strict import rewrite
from app.providers.tool_limits import named, shortened, within

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
    loose = schema if options.quirks.closes else opened(schema)
    if level != "never" and (options.strict == "on" or (options.strict == "auto" and level == "full")):
        try:
            return {"strict": True, "parameters": rewrite(schema)}
        except NotExpressible as reason:
            warnings.append(f"{name}: strict was given up: {reason}")
            return {"strict": False, "parameters": loose}
    return {"strict": False, "parameters": loose} if level == "false" else {"parameters": loose}
