"""Schemas as the strict tools of Anthropic and Bedrock take them: objects closed, what is optional stays so, and what
their grammar does not know is said in the description.

All strict tools of a request become one grammar, which has limits of its own.
"""

from collections.abc import Iterator
from typing import Any

from app.providers.dialects import ExportOptions
from app.providers.schema.document import NotExpressible
from app.providers.schema.simplify import simplify
from app.providers.tool_limits import UNSUPPORTED, FittedTool

FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
MOST = {"strict tools": 20, "optional parameters": 24, "parameters with alternatives": 16}


class GrammarBudget:
    """What all strict tools of one request may have together."""

    def __init__(self) -> None:
        self._left = dict(MOST)

    def close(self, tool: FittedTool, warnings: list[str]) -> dict[str, Any] | None:
        """The tool's schema, closed; None, with a warning, when it cannot be strict."""
        try:
            schema = close(tool.schema)
            self._spend(schema)
        except NotExpressible as reason:
            warnings.append(f"{tool.name} is not strict: {reason}.")
            return None
        return schema

    def _spend(self, schema: dict[str, Any]) -> None:
        costs = dict(zip(MOST, (1, *_counted(schema)), strict=True))
        for what, cost in costs.items():
            if cost > self._left[what]:
                raise NotExpressible(f"the strict tools of one request have at most {MOST[what]} {what}")
        for what, cost in costs.items():
            self._left[what] -= cost


def grammar_budget(options: ExportOptions, warnings: list[str]) -> GrammarBudget | None:
    """What strict tools may have; None when there shall be none, or the provider knows none."""
    if options.strict != "on":
        return None
    if options.quirks.strict == "never":
        warnings.append(UNSUPPORTED["strict"])
        return None
    return GrammarBudget()


def close(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema for a strict tool. Raises `NotExpressible` when that would narrow it, or cannot be said."""
    made = _closed(simplify(schema))
    if made.get("type") != "object":
        raise NotExpressible("it is not that of an object")
    return made


def _closed(given: dict[str, Any]) -> dict[str, Any]:
    rest = dict(given)
    made: dict[str, Any] = {}
    if "$defs" in rest:
        made["$defs"] = {name: _closed(inner) for name, inner in rest.pop("$defs").items()}
    if "$ref" in rest:
        return made | {"$ref": rest["$ref"]}
    kind = rest.pop("type", None)
    literals = _literals(rest)
    made |= literals
    if "anyOf" in rest:
        made["anyOf"] = [_closed(arm) for arm in rest.pop("anyOf")]
    elif not literals:
        if kind not in TYPES:
            raise NotExpressible("a place in it takes anything")
        made["type"] = kind
    made |= {word: rest.pop(word) for word in ("description", "title") if rest.get(word) is not None}
    if not literals:
        made |= _contents(kind, rest)
    return _explained(made, rest)


def _literals(rest: dict[str, Any]) -> dict[str, Any]:
    """The values that are counted up, if they are simple ones; taken out of the rest."""
    found: dict[str, Any] = {}
    values = rest.get("enum")
    if isinstance(values, list) and values and all(map(_is_simple, values)):
        found["enum"] = rest.pop("enum")
    if "const" in rest and _is_simple(rest["const"]):
        found["const"] = rest.pop("const")
    return found


def _contents(kind: Any, rest: dict[str, Any]) -> dict[str, Any]:
    """What is known of each type; taken out of the rest."""
    match kind:
        case "object":
            rest.pop("additionalProperties", None)
            properties = {name: _closed(inner) for name, inner in rest.pop("properties", {}).items()}
            made = {"properties": properties, "additionalProperties": False}
            return made | {word: rest.pop(word) for word in ("required",) if word in rest}
        case "array":
            made = {"items": _closed(rest.pop("items"))} if "items" in rest else {}
            return made | _kept(rest, "minItems", (0, 1))
        case "string":
            return _kept(rest, "format", FORMATS)
    return {}


def _kept(rest: dict[str, Any], word: str, known: tuple[Any, ...]) -> dict[str, Any]:
    """A keyword with a value that is known; with another one it is the last of what is explained."""
    value = rest.pop(word, None)
    if value in known:
        return {word: value}
    if value is not None:
        rest[word] = value
    return {}


def _explained(made: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """With what is left as text, so that the model may heed it still."""
    if not rest:
        return made
    said = "{" + ", ".join(f"{word}: {value}" for word, value in rest.items()) + "}"
    before = f"{made['description']}\n\n" if "description" in made else ""
    return made | {"description": before + said}


def _counted(schema: dict[str, Any]) -> tuple[int, int]:
    """How many properties are optional, and how many places have alternatives."""
    nodes = list(_nodes(schema))
    optional = sum(len(node.get("properties", {})) - len(set(node.get("required", []))) for node in nodes)
    return optional, sum("anyOf" in node for node in nodes)


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", [])]
    for one in [*inner, *([schema["items"]] if "items" in schema else [])]:
        yield from _nodes(one)


def _is_simple(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)
