"""Schemas for strict tools of Anthropic and Bedrock: objects are closed, optional properties stay optional, and
keywords that their grammar does not support go into the description.

All strict tools of a request are compiled into one grammar, which has limits.
"""

from collections.abc import Iterator
from typing import Any

from app.providers.dialects import ExportOptions
from app.providers.schema.document import NotExpressible
from app.providers.schema.simplify import simplify
from app.providers.tool_limits import UNSUPPORTED, FittedTool

FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
MAX_PER_REQUEST = {"strict tools": 20, "optional parameters": 24, "parameters with alternatives": 16}


class GrammarBudget:
    """The grammar limits that the strict tools of one request share."""

    def __init__(self) -> None:
        self._left = dict(MAX_PER_REQUEST)

    def close(self, tool: FittedTool, warnings: list[str]) -> dict[str, Any] | None:
        """The tool's strict schema; None, with a warning, when there is none."""
        try:
            schema = close(tool.schema)
            self._spend(schema)
        except NotExpressible as reason:
            warnings.append(f"{tool.name} is not strict: {reason}.")
            return None
        return schema

    def _spend(self, schema: dict[str, Any]) -> None:
        nodes = list(_nodes(schema))
        optional = sum(len(node.get("properties", {})) - len(set(node.get("required", []))) for node in nodes)
        unions = sum("anyOf" in node for node in nodes)
        costs = dict(zip(MAX_PER_REQUEST, (1, optional, unions), strict=True))
        for what, cost in costs.items():
            if cost > self._left[what]:
                raise NotExpressible(f"the strict tools of one request have at most {MAX_PER_REQUEST[what]} {what}")
        for what, cost in costs.items():
            self._left[what] -= cost


def grammar_budget(options: ExportOptions, warnings: list[str]) -> GrammarBudget | None:
    """A budget for strict tools; None when they are not requested or not supported."""
    if options.strict != "on":
        return None
    if options.quirks.strict == "never":
        warnings.append(UNSUPPORTED["strict"])
        return None
    return GrammarBudget()


def close(schema: dict[str, Any]) -> dict[str, Any]:
    """The strict schema; raises `NotExpressible` when it would exclude valid arguments."""
    strict = _close(simplify(schema))
    if strict.get("type") != "object":
        raise NotExpressible("it is not that of an object")
    return strict


def _close(given: dict[str, Any]) -> dict[str, Any]:
    rest = dict(given)
    strict: dict[str, Any] = {}
    if "$defs" in rest:
        strict["$defs"] = {name: _close(inner) for name, inner in rest.pop("$defs").items()}
    if "$ref" in rest:
        return strict | {"$ref": rest["$ref"]}
    kind = rest.pop("type", None)
    literals = _literals(rest)
    strict |= literals
    if "anyOf" in rest:
        strict["anyOf"] = [_close(arm) for arm in rest.pop("anyOf")]
    elif not literals:
        if kind not in TYPES:
            raise NotExpressible("a place in it takes anything")
        strict["type"] = kind
    strict |= {word: rest.pop(word) for word in ("description", "title") if rest.get(word) is not None}
    if not literals:
        strict |= _contents(kind, rest)
    return _describe_rest(strict, rest)


def _literals(rest: dict[str, Any]) -> dict[str, Any]:
    """Scalar `enum` and `const`, removed from the rest."""
    found: dict[str, Any] = {}
    values = rest.get("enum")
    if isinstance(values, list) and values and all(map(_is_simple, values)):
        found["enum"] = rest.pop("enum")
    if "const" in rest and _is_simple(rest["const"]):
        found["const"] = rest.pop("const")
    return found


def _contents(kind: Any, rest: dict[str, Any]) -> dict[str, Any]:
    """The supported keywords of a type, removed from the rest."""
    match kind:
        case "object":
            rest.pop("additionalProperties", None)
            properties = {name: _close(inner) for name, inner in rest.pop("properties", {}).items()}
            strict = {"properties": properties, "additionalProperties": False}
            return strict | {word: rest.pop(word) for word in ("required",) if word in rest}
        case "array":
            strict = {"items": _close(rest.pop("items"))} if "items" in rest else {}
            return strict | _supported(rest, "minItems", (0, 1))
        case "string":
            return _supported(rest, "format", FORMATS)
    return {}


def _supported(rest: dict[str, Any], word: str, known: tuple[Any, ...]) -> dict[str, Any]:
    """A keyword with a supported value; any other value moves to the end of the rest."""
    value = rest.pop(word, None)
    if value in known:
        return {word: value}
    if value is not None:
        rest[word] = value
    return {}


def _describe_rest(strict: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Other keywords are appended to the description."""
    if not rest:
        return strict
    text = "{" + ", ".join(f"{word}: {value}" for word, value in rest.items()) + "}"
    before = f"{strict['description']}\n\n" if "description" in strict else ""
    return strict | {"description": before + text}


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", [])]
    for one in [*inner, *([schema["items"]] if "items" in schema else [])]:
        yield from _nodes(one)


def _is_simple(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)
