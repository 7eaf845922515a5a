"""Offers fitted to what a provider takes: names, counts and lengths within its limits, free text as one argument.

Names of tools as a provider takes them. A name that must change keeps the hash of what it was, so that it is found
again without a table and does not depend on the other tools.
"""

import copy
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.core.runs import ToolOffer
from app.providers.dialects import Choice, ExportOptions, Mode, NameRule, Quirks

HASHED = 8
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_]")


def wire_name(name: str, rule: NameRule) -> str:
    """The name itself where it is legal; else made so, with a suffix of its own."""
    if len(name) <= rule.longest and rule.pattern.fullmatch(name):
        return name
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()[:HASHED]
    stem = _ILLEGAL.sub("_", name)
    if not stem[:1].isalpha():
        stem = f"t_{stem}"
    return f"{stem[: min(rule.longest, 64) - HASHED - 1]}_{digest}"


FREE_FORM: dict[str, Any] = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
ELLIPSIS = "…"
OWN_SEARCH = "tool_search"

Wish = Literal["strict", "cache", "defer", "namespace", "native"]
NOT_KNOWN: dict[Wish, str] = {
    "strict": "There are no strict tools in this dialect; the schemas are offered as they are.",
    "cache": "There is no mark on tools for caching in this dialect; none was set.",
    "defer": "There are no deferred tools in this dialect; all tools are offered at once.",
    "namespace": "There are no namespaces in this dialect; the tools are offered one by one.",
    "native": "There are no built-in tools in this dialect that a client runs; all tools are offered as functions.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTool:
    """An offer as it goes over the wire. The schema is a copy, free to be changed."""

    offer: ToolOffer
    name: str
    description: str
    schema: dict[str, Any]


def fit(offers: Sequence[ToolOffer], quirks: Quirks, warnings: list[str]) -> list[FittedTool]:
    """The offers that can be made, in their order; what cannot be is said."""
    return [_fitted(offer, quirks, warnings) for offer in within(offers, quirks.most_tools, warnings)]


def within(offers: Sequence[ToolOffer], most: int | None, warnings: list[str]) -> Sequence[ToolOffer]:
    """As many as the provider takes."""
    if most is None or len(offers) <= most:
        return offers
    left_out = ", ".join(offer.name for offer in offers[most:])
    warnings.append(f"At most {most} tools can be offered, so these were left out: {left_out}.")
    return offers[:most]


def with_their_search(offers: Sequence[ToolOffer], options: ExportOptions, warnings: list[str]) -> Sequence[ToolOffer]:
    """Where the provider searches what is deferred itself, our own search would be the second of its kind."""
    defers, others = options.defers, [offer for offer in offers if offer.name != OWN_SEARCH]
    if defers is None or len(others) == len(offers) or not any(defers(offer.name) for offer in others):
        return offers
    warnings.append(f"{OWN_SEARCH}: is not offered, because the provider's own search finds what is deferred.")
    return others


def named(offer: ToolOffer, quirks: Quirks, warnings: list[str]) -> str:
    """The name as the provider takes it."""
    name = wire_name(offer.name, quirks.names)
    if name != offer.name:
        warnings.append(f"{offer.name}: is called {name} here, because the provider does not take the name.")
    return name


def shortened(offer: ToolOffer, description: str, quirks: Quirks, warnings: list[str]) -> str:
    """The description, as much of it as the provider takes."""
    most = quirks.longest_description
    if most is None or len(description) <= most:
        return description
    warnings.append(f"{offer.name}: the description was cut to {most} characters, the most this provider takes.")
    return description[: most - 1] + ELLIPSIS


def refuse(options: ExportOptions, offers: Sequence[ToolOffer], wishes: Sequence[Wish], warnings: list[str]) -> None:
    """Says which of these wishes were made and cannot be met."""
    made: dict[Wish, bool] = {
        "strict": options.strict == "on",
        "cache": options.cache is not None,
        "defer": options.defers is not None and any(options.defers(offer.name) for offer in offers),
        "namespace": options.namespace is not None,
        "native": options.is_native,
    }
    warnings += [NOT_KNOWN[wish] for wish in wishes if made[wish]]


def mode_of(choice: Choice, quirks: Quirks, warnings: list[str]) -> Mode | None:
    """The mode that can be asked for; what cannot be said about the choice becomes a warning."""
    if choice.parallel is False and not quirks.says_parallel:
        warnings.append("Several calls at once cannot be forbidden in this dialect.")
    if choice.mode is None or choice.mode in quirks.modes:
        return choice.mode
    warnings.append(f"The choice {choice.mode!r} cannot be made in this dialect; it is left out.")
    return None


def _fitted(offer: ToolOffer, quirks: Quirks, warnings: list[str]) -> FittedTool:
    return FittedTool(
        offer=offer,
        name=named(offer, quirks, warnings),
        description=shortened(offer, _described(offer), quirks, warnings),
        schema=_schema_of(offer),
    )


def _described(offer: ToolOffer) -> str:
    """A model that cannot write free text must know what the one argument is."""
    if offer.takes != "input":
        return offer.description
    said = [offer.description] if offer.description else []
    said.append("The whole text goes into the argument `input`, as it is.")
    if offer.grammar:
        said.append(f"It follows this Lark grammar:\n\n{offer.grammar}")
    return "\n\n".join(said)


def _schema_of(offer: ToolOffer) -> dict[str, Any]:
    """Always of an object: some providers refuse a schema that does not say so."""
    schema = offer.schema
    properties = schema.get("properties")
    if offer.takes == "input" and (not isinstance(properties, dict) or properties.keys() != {"input"}):
        schema = FREE_FORM
    if "type" not in schema:
        schema = {"type": "object"} | (schema or {"properties": {}})
    return copy.deepcopy(schema)
