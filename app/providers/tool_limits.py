"""Tools fitted to a provider's limits: names, number, lengths of descriptions; free-form input as one argument.

A changed name contains a hash of the original, so that it does not depend on the other tools.
"""

import copy
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.core.runs import ToolOffer
from app.providers.dialects import Choice, ExportOptions, Mode, NameRule, Quirks

HASH_LENGTH = 8
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_]")


def wire_name(name: str, rule: NameRule) -> str:
    """The name if the rule allows it, else a valid one with a hash."""
    if len(name) <= rule.max_length and rule.pattern.fullmatch(name):
        return name
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()[:HASH_LENGTH]
    stem = _ILLEGAL.sub("_", name)
    if not stem[:1].isalpha():
        stem = f"t_{stem}"
    return f"{stem[: min(rule.max_length, 64) - HASH_LENGTH - 1]}_{digest}"


FREE_FORM: dict[str, Any] = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
ELLIPSIS = "…"
OWN_SEARCH = "tool_search"

Option = Literal["strict", "cache", "defer", "namespace", "native"]
UNSUPPORTED: dict[Option, str] = {
    "strict": "This dialect has no strict tools; the schemas are unchanged.",
    "cache": "This dialect has no cache marker on tools; none was set.",
    "defer": "This dialect has no deferred tools; all tools are exported.",
    "namespace": "This dialect has no namespaces; the tools are exported without one.",
    "native": "This dialect has no built-in tools that a client runs; all tools are exported as functions.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTool:
    """A tool within the provider's limits. The schema is a copy."""

    offer: ToolOffer
    name: str
    description: str
    schema: dict[str, Any]


def fit(offers: Sequence[ToolOffer], quirks: Quirks, warnings: list[str]) -> list[FittedTool]:
    """The tools that fit, in their order, with warnings for the others."""
    return [_fit_tool(offer, quirks, warnings) for offer in fit_count(offers, quirks.max_tools, warnings)]


def fit_count(offers: Sequence[ToolOffer], limit: int | None, warnings: list[str]) -> Sequence[ToolOffer]:
    if limit is None or len(offers) <= limit:
        return offers
    left_out = ", ".join(offer.name for offer in offers[limit:])
    warnings.append(f"At most {limit} tools are supported, so these were left out: {left_out}.")
    return offers[:limit]


def without_own_search(offers: Sequence[ToolOffer], options: ExportOptions, warnings: list[str]) -> Sequence[ToolOffer]:
    """Without `tool_search` where the provider searches deferred tools itself."""
    defers, others = options.defers, [offer for offer in offers if offer.name != OWN_SEARCH]
    if defers is None or len(others) == len(offers) or not any(defers(offer.name) for offer in others):
        return offers
    warnings.append(f"{OWN_SEARCH}: not exported, because the provider searches deferred tools itself.")
    return others


def fit_name(offer: ToolOffer, quirks: Quirks, warnings: list[str]) -> str:
    name = wire_name(offer.name, quirks.names)
    if name != offer.name:
        warnings.append(f"{offer.name}: renamed to {name}, because the provider does not accept the name.")
    return name


def fit_description(offer: ToolOffer, description: str, quirks: Quirks, warnings: list[str]) -> str:
    limit = quirks.max_description
    if limit is None or len(description) <= limit:
        return description
    warnings.append(f"{offer.name}: the description was cut to {limit} characters, this provider's limit.")
    return description[: limit - 1] + ELLIPSIS


def warn_unsupported(
    options: ExportOptions, offers: Sequence[ToolOffer], unsupported: Sequence[Option], warnings: list[str]
) -> None:
    """Warn about options in use that this dialect does not support."""
    used: dict[Option, bool] = {
        "strict": options.strict == "on",
        "cache": options.cache is not None,
        "defer": options.defers is not None and any(options.defers(offer.name) for offer in offers),
        "namespace": options.namespace is not None,
        "native": options.is_native,
    }
    warnings += [UNSUPPORTED[option] for option in unsupported if used[option]]


def supported_mode(choice: Choice, quirks: Quirks, warnings: list[str]) -> Mode | None:
    """The mode if the provider supports it, with warnings for what it does not."""
    if choice.parallel is False and not quirks.has_parallel_choice:
        warnings.append("Parallel calls cannot be disabled in this dialect.")
    if choice.mode is None or choice.mode in quirks.modes:
        return choice.mode
    warnings.append(f"The tool choice {choice.mode!r} is not supported in this dialect; it is left out.")
    return None


def _fit_tool(offer: ToolOffer, quirks: Quirks, warnings: list[str]) -> FittedTool:
    return FittedTool(
        offer=offer,
        name=fit_name(offer, quirks, warnings),
        description=fit_description(offer, _described(offer), quirks, warnings),
        schema=_schema_of(offer),
    )


def _described(offer: ToolOffer) -> str:
    """Explains the argument `input` of a free-form tool."""
    if offer.takes != "input":
        return offer.description
    paragraphs = [offer.description] if offer.description else []
    paragraphs.append("The whole text goes into the argument `input`, as it is.")
    if offer.grammar:
        paragraphs.append(f"It follows this Lark grammar:\n\n{offer.grammar}")
    return "\n\n".join(paragraphs)


def _schema_of(offer: ToolOffer) -> dict[str, Any]:
    """Always with a type: some providers reject a schema without one."""
    schema = offer.schema
    properties = schema.get("properties")
    if offer.takes == "input" and (not isinstance(properties, dict) or properties.keys() != {"input"}):
        schema = FREE_FORM
    if "type" not in schema:
        schema = {"type": "object"} | (schema or {"properties": {}})
    return copy.deepcopy(schema)
