"""Arguments checked by JSON Schema: a schema is checked at registration and compiled once per tool.

Schemas come from clients and MCP servers, so the work of a check is bounded: depth and size of the schema, references
followed, and the length of texts that a regular expression is matched with.
"""

import copy
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import Any

from app.core.errors import InvalidArgs
from app.core.util.json_codec import dumps
from app.core.util.json_schema import Schema, resolve, subschemas

MAX_SCHEMA_BYTES = 256 * 1024
MAX_DEPTH = 48
MAX_ERRORS = 1000
MAX_NAME_LENGTH = 128
"""Characters of a member's name, where names are matched with patterns."""
MAX_REFERENCES = 20_000
"""Followed in one check: references can multiply the work, all else only adds to it."""

DIALECTS = {
    "https://json-schema.org/draft/2020-12/schema": "Draft202012Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
}
LATEST = "https://json-schema.org/draft/2020-12/schema"
UNSUPPORTED = ("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary")

FindErrors = Callable[[Any], list[Any]]
"""The library's errors of a value; raises `_CheckTooLong`."""

_references_left: ContextVar[int] = ContextVar("references_left")


class _CheckTooLong(Exception):
    """A check that exceeds its bounds."""


def make_parser(name: str, schema: Schema) -> Callable[[Any], Any]:
    """A function that checks the arguments of a call; raises `ValueError` for a schema that cannot be used."""
    check_schema(schema)
    find_errors = _compile(schema)
    parameters = list(schema.get("properties", {}))
    fits_fast = fast_check(schema)

    def parse(raw: Any) -> Any:
        if fits_fast is not None and fits_fast(raw):
            return raw
        try:
            args, errors = _validate_with_coercion(find_errors, raw)
        except (_CheckTooLong, RecursionError):
            raise InvalidArgs(f"{name} cannot take these arguments: they are too long or too deep to check.") from None
        if errors:
            mistakes = _mistakes(errors)
            known = ", ".join(parameters) or "nothing"
            raise InvalidArgs(
                f"{name} cannot take these arguments: {_join(mistakes)}. It takes: {known}.",
                details={"fields": list(dict.fromkeys(field for field, _ in mistakes))},
            )
        return args

    return parse


def make_checker(schema: Schema) -> Callable[[Any], str | None]:
    """A function that says what is wrong with a value of any type, or None; raises `ValueError` for a schema that
    cannot be used."""
    _check_any_schema(schema)
    find_errors = _compile(schema)

    def check(value: Any) -> str | None:
        try:
            mistakes = _mistakes(find_errors(value))
        except (_CheckTooLong, RecursionError):
            return "it is too long or too deep to check"
        return _join(mistakes) if mistakes else None

    return check


def load_validator() -> None:
    """Import the library now; else the first tool with a schema waits for it."""
    _bounded_validator(DIALECTS[LATEST])


def check_schema(schema: Schema) -> None:
    """Raises `ValueError` with a sentence when a schema cannot describe arguments."""
    if schema.get("type") != "object":
        raise ValueError('parameters: arguments are an object, so the schema must say "type": "object".')
    _check_any_schema(schema)


def _check_any_schema(schema: Schema) -> None:
    if _is_too_deep(schema):
        raise ValueError(f"parameters: the schema is nested more than {MAX_DEPTH} levels deep.")
    if len(dumps(schema)) > MAX_SCHEMA_BYTES:
        raise ValueError(f"parameters: the schema takes more than {MAX_SCHEMA_BYTES // 1024} KiB.")
    _check_by_metaschema(schema)
    nodes = list(subschemas(schema))
    node_ids = {id(node) for node in nodes}
    for node in nodes:
        _check_patterns(node)
        _check_reference(node, schema, node_ids)
    checked: set[int] = set()
    for node in nodes:
        _check_cycles(node, schema, set(), checked)


def _check_by_metaschema(schema: Schema) -> None:
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]

    try:
        _validator_class(schema).check_schema(schema)
    except SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        raise ValueError(f"parameters: not a JSON Schema{where and f' at {where}'}: {error.message[:200]}.") from None
    except RecursionError:
        raise ValueError("parameters: the schema is nested too deep.") from None


def _check_patterns(node: Schema) -> None:
    patterns = node.get("patternProperties", {})
    for pattern in [*patterns, *([node["pattern"]] if "pattern" in node else [])]:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            raise ValueError(f"parameters: {pattern[:80]!r} is not a Python regular expression.") from None
    if slow := next((pattern for pattern in patterns if max_matched_length(pattern) < MAX_NAME_LENGTH), None):
        raise ValueError(f"parameters: matching names with {slow[:80]!r} could take forever; use a simpler pattern.")


def _check_reference(node: Schema, root: Schema, node_ids: set[int]) -> None:
    if keyword := next((keyword for keyword in UNSUPPORTED if keyword in node), None):
        raise ValueError(f"parameters: {keyword} is not supported; use $ref and $defs.")
    if node is not root and "$id" in node:
        raise ValueError("parameters: only the schema itself can have an $id, no part of it.")
    reference = node.get("$ref")
    if reference is None:
        return
    if not reference.startswith("#"):
        raise ValueError(f"parameters: $ref {reference[:80]!r} leads out of the schema; put it under $defs.")
    _, target = resolve(root, reference) or ((), None)
    if not isinstance(target, bool) and id(target) not in node_ids:
        raise ValueError(f"parameters: $ref {reference[:80]!r} leads to no schema; put it under $defs.")


def _check_cycles(node: Schema, root: Schema, above: set[int], checked: set[int]) -> None:
    """A reference may lead back to itself only through a member or an item."""
    if id(node) in checked:
        return
    if id(node) in above or len(above) > MAX_DEPTH:
        raise ValueError("parameters: the references of the schema lead in circles, or too far.")
    target = resolve(root, node["$ref"]) if "$ref" in node else None
    applied = [target[1]] if target else []
    for keyword in ("allOf", "anyOf", "oneOf"):
        applied += node.get(keyword, [])
    applied += [node[keyword] for keyword in ("not", "if", "then", "else") if keyword in node]
    for subschema in applied:
        if isinstance(subschema, dict):
            _check_cycles(subschema, root, above | {id(node)}, checked)
    checked.add(id(node))


def _is_too_deep(schema: Any) -> bool:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return True
        inner = [node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list)]
        level = [value for group in inner for value in group if isinstance(value, dict | list)]
    return False


def _compile(schema: Schema) -> FindErrors:
    from referencing import Registry

    # An empty registry: nothing outside the schema is fetched.
    validator = _validator_class(schema)(schema, registry=Registry())
    matches_names = any("patternProperties" in node for node in subschemas(schema))

    def find_errors(value: Any) -> list[Any]:
        if matches_names and _has_long_name(value):
            raise _CheckTooLong
        _references_left.set(MAX_REFERENCES)
        return list(islice(validator.iter_errors(value), MAX_ERRORS))

    return find_errors


def _validator_class(schema: Schema) -> Any:
    dialect = str(schema.get("$schema", LATEST)).removesuffix("#")
    if dialect not in DIALECTS:
        raise ValueError(f"parameters: $schema {dialect[:80]!r} is not known; 2020-12 and draft-07 are.")
    return _bounded_validator(DIALECTS[dialect])


@lru_cache
def _bounded_validator(name: str) -> Any:
    """The library's validator with bounds on patterns and references. Imported by the first tool that needs it."""
    import jsonschema  # type: ignore[import-untyped]

    base = getattr(jsonschema, name)

    def pattern(validator: Any, regex: str, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, str) and len(instance) <= max_matched_length(regex):
            yield from base.VALIDATORS["pattern"](validator, regex, instance, schema)

    def ref(validator: Any, reference: str, instance: Any, schema: Any) -> Iterator[Any]:
        _references_left.set(_references_left.get() - 1)
        if _references_left.get() < 0:
            raise _CheckTooLong
        yield from base.VALIDATORS["$ref"](validator, reference, instance, schema)

    return jsonschema.validators.extend(base, {"pattern": pattern, "$ref": ref})


def _has_long_name(value: Any) -> bool:
    if isinstance(value, dict):
        return any(len(name) > MAX_NAME_LENGTH or _has_long_name(inner) for name, inner in value.items())
    return isinstance(value, list) and any(_has_long_name(inner) for inner in value)


def _validate_with_coercion(find_errors: FindErrors, raw: Any) -> tuple[Any, list[Any]]:
    """The arguments and their errors, with strings read as numbers or booleans where that removes errors."""
    errors = find_errors(raw)
    coercions = {path: value for error in errors for path, value in _coercions(error)}
    if not coercions:
        return raw, errors
    coerced = copy.deepcopy(raw)
    for path, value in coercions.items():
        parent = coerced
        for part in path[:-1]:
            parent = parent[part]
        parent[path[-1]] = value
    remaining = find_errors(coerced)
    return (coerced, remaining) if len(remaining) <= len(errors) else (raw, errors)


def _coercions(error: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Strings where a number or a boolean is expected: their paths and values."""
    for inner in error.context:
        yield from _coercions(inner)
    path = tuple(error.absolute_path)
    if error.validator != "type" or not isinstance(error.instance, str) or not path:
        return
    types = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    for type in types:
        if (value := _parse_scalar(error.instance, type)) is not None:
            yield path, value
            return


def _parse_scalar(text: str, type: str) -> Any:
    if type == "boolean":
        return {"true": True, "false": False}.get(text.strip().lower())
    if type not in ("integer", "number"):
        return None
    if re.fullmatch(r"\s*[+-]?[0-9]{1,1000}\s*", text):
        return int(text)
    if type == "number" and re.fullmatch(r"\s*[+-]?[0-9]{1,400}(\.[0-9]{0,400})?([eE][+-]?[0-9]{1,3})?\s*", text):
        return value if math.isfinite(value := float(text)) else None
    return None


ANNOTATIONS = frozenset({"$schema", "$comment", "title", "description", "default", "examples", "deprecated"})
SIMPLE_OBJECT = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
SIMPLE_MEMBER = ANNOTATIONS | {"type"}
TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float)}


def fast_check(schema: Schema) -> Callable[[Any], bool] | None:
    """A quick check for schemas of flat objects with members of simple types; None for any other schema.

    True means that the arguments are valid, False that the validator has to decide.
    """
    members, allows_others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if schema.keys() - SIMPLE_OBJECT or schema.get("type") != "object" or not isinstance(allows_others, bool):
        return None
    if not all(_is_simple(member) for member in members.values()):
        return None
    types = {name: TYPES[member["type"]] for name, member in members.items()}
    required = frozenset(schema.get("required") or ())

    def is_valid(raw: Any) -> bool:
        if type(raw) is not dict or not required <= raw.keys():
            return False
        for name, value in raw.items():
            if type(value) not in types.get(name, ()) and (name in types or not allows_others):
                return False
        return True

    return is_valid


def _is_simple(member: Any) -> bool:
    if not isinstance(member, dict) or member.keys() - SIMPLE_MEMBER:
        return False
    return isinstance(member.get("type"), str) and member["type"] in TYPES


MAX_STEPS = 4_000_000
MAX_LENGTH = 1_000_000
MAX_NESTED_LENGTH = 16
"""Characters for a pattern with a loop in a loop: at most 2 ** 16 ways to match."""

_QUANTIFIER = re.compile(r"\*|\+|\?|\{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


@lru_cache(maxsize=4096)
def max_matched_length(pattern: str) -> int:
    """The longest text this pattern is matched with, so that matching cannot block the service; longer texts pass.

    Python's engine backtracks. Its worst case is estimated from the pattern: each loop in a row is one more position
    to try, and a loop in a loop doubles the work with every character.
    """
    loops = _count_loops(pattern)
    if loops is None:
        return MAX_NESTED_LENGTH
    loops += not pattern.startswith("^")  # a pattern without an anchor is tried at every character
    low, high = 1, MAX_LENGTH
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if math.comb(middle + loops, loops) <= MAX_STEPS else (low, middle - 1)
    return low


def _count_loops(pattern: str) -> int | None:
    """How many loops stand in a row; None when one stands in another."""
    loops = 0
    varies = [False]  # for each open group, whether it can match in more than one way
    inner = False  # whether the group just closed can
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if (quantifier := _QUANTIFIER.match(pattern, at)) and at > 0:
            at = quantifier.end()
            if pattern[at : at + 1] in ("?", "+"):
                at += 1
            low, high = _bounds(quantifier)
            if inner and high > 1:
                return None
            loops += low != high
            varies[-1] |= low != high
            inner = False
            continue
        inner = False
        if char == "(":
            varies.append(False)
            at += 2 if pattern[at + 1 : at + 2] == "?" else 1
        elif char == ")" and len(varies) > 1:
            inner = varies.pop()
            varies[-1] |= inner
            at += 1
        elif char == "[" and (char_class := _CLASS.match(pattern, at)):
            at = char_class.end()
        else:
            varies[-1] |= char == "|"
            at += 2 if char == "\\" else 1
    return loops


def _bounds(quantifier: re.Match[str]) -> tuple[int, int]:
    match quantifier[0]:
        case "*":
            return 0, MAX_LENGTH
        case "+":
            return 1, MAX_LENGTH
        case "?":
            return 0, 1
    low = int(quantifier["low"] or 0)
    if not quantifier["comma"]:
        return low, low
    return low, int(quantifier["high"]) if quantifier["high"] else MAX_LENGTH


MAX_MISTAKES = 5
MAX_VALUE_LENGTH = 80
MAX_OPTIONS = 30
RULES = {
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be more than {}",
    "exclusiveMaximum": "must be less than {}",
    "multipleOf": "must be a multiple of {}",
    "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters",
    "minItems": "must have at least {} items",
    "maxItems": "must have at most {} items",
    "minProperties": "must have at least {} members",
    "maxProperties": "must have at most {} members",
    "pattern": "must match the pattern {}",
    "const": "must be {}",
    "uniqueItems": "must not hold the same item twice",
}
Mistake = tuple[str, str]
"""The field, and a sentence for the model."""


def _mistakes(errors: Iterable[Any]) -> list[Mistake]:
    return list(dict.fromkeys(mistake for error in errors for mistake in _mistakes_of(error)))


def _join(mistakes: list[Mistake]) -> str:
    rest = f"; and {len(mistakes) - MAX_MISTAKES} more" if len(mistakes) > MAX_MISTAKES else ""
    return "; ".join(text for _, text in mistakes[:MAX_MISTAKES]) + rest


def _mistakes_of(error: Any) -> Iterator[Mistake]:
    path = [str(part) for part in error.absolute_path]
    where = ".".join(path) or "arguments"
    match error.validator:
        case "required":
            for name in error.validator_value:
                if name not in error.instance:
                    field = ".".join([*path, name])
                    yield field, f"`{field}` is required"
        case "additionalProperties" | "unevaluatedProperties" if error.validator_value is False:
            for name in _extra(error):
                field = ".".join([*path, name])
                yield field, f"`{field}` is not a parameter of this tool, leave it out"
        case "anyOf" | "oneOf" if error.context:
            yield from _alternatives(error, where)
        case "type":
            yield where, f"`{where}`: expected {_types(error.validator_value)} (got {_show(error.instance)})"
        case "enum":
            options = [_show(option) for option in error.validator_value]
            listed = ", ".join(options[:MAX_OPTIONS]) + (", ..." if len(options) > MAX_OPTIONS else "")
            yield where, f"`{where}`: must be one of {listed} (got {_show(error.instance)})"
        case keyword if keyword in RULES:
            rule = RULES[keyword].format(_show(error.validator_value))
            yield where, f"`{where}`: {rule} (got {_show(error.instance)})"
        case keyword:
            yield where, f"`{where}`: does not fit `{keyword or 'false'}` of its schema (got {_show(error.instance)})"


def _alternatives(error: Any, where: str) -> Iterator[Mistake]:
    """The mistakes of the alternative that fits best; when none fits at all, the expected types."""
    deepest = max(error.context, key=lambda inner: len(inner.absolute_path))
    if len(deepest.absolute_path) > len(error.absolute_path) or isinstance(error.instance, dict):
        branch = deepest.relative_schema_path[0]
        for inner in error.context:
            if inner.relative_schema_path[0] == branch:
                yield from _mistakes_of(inner)
        return
    kinds = [_types(inner.validator_value) for inner in error.context if inner.validator == "type"]
    if len(kinds) == len(error.context):
        yield where, f"`{where}`: expected {' or '.join(dict.fromkeys(kinds))} (got {_show(error.instance)})"
        return
    yield from _mistakes_of(next(inner for inner in error.context if inner.validator != "type"))


def _extra(error: Any) -> list[str]:
    known, patterns = error.schema.get("properties", {}), error.schema.get("patternProperties", {})
    return [
        str(name)
        for name in error.instance
        if name not in known and not any(re.search(pattern, name) for pattern in patterns)
    ]


def _types(types: Any) -> str:
    return " or ".join(types) if isinstance(types, list) else str(types)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "..."
