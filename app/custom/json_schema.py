"""JSON Schemas of strangers: checked once at registration, compiled once per tool.

Glances: most tools take an object with a few members of simple types, and arguments that fit such a schema can be
seen to do so at a glance. Whatever cannot be seen like that is left to the validator, which has the last word.

Regular expressions of strangers: how long a text may be so that matching it cannot hold up the service.

Python's engine backtracks. What it does at worst is estimated from the text of
the pattern: each loop in a row is one more place to try, and a loop in a loop
doubles the work with every character.
"""

import copy
import math
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import comb
from typing import Any
from urllib.parse import unquote

from app.core.errors import InvalidArgs
from app.core.util.json_codec import dumps
from app.custom.validation_errors import refuse, tell

Glance = Callable[[Any], bool]
"""True: the arguments fit. False: look closer."""

SAYS_NOTHING = frozenset({"$schema", "$comment", "title", "description", "default", "examples", "deprecated"})
OF_THE_WHOLE = SAYS_NOTHING | {"type", "properties", "required", "additionalProperties"}
OF_A_MEMBER = SAYS_NOTHING | {"type"}
TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float)}
NO_MEMBER: tuple[type, ...] = ()


def glance(schema: dict[str, Any]) -> Glance | None:
    """What looks at arguments; None for a schema that is not plain enough."""
    members, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if schema.keys() - OF_THE_WHOLE or schema.get("type") != "object" or not isinstance(others, bool):
        return None
    if not all(_is_plain(member) for member in members.values()):
        return None
    return _looker({name: TYPES[member["type"]] for name, member in members.items()}, schema.get("required"), others)


def _is_plain(member: Any) -> bool:
    return isinstance(member, dict) and not member.keys() - OF_A_MEMBER and _type(member) in TYPES


def _type(member: dict[str, Any]) -> str | None:
    found = member.get("type")
    return found if isinstance(found, str) else None


def _looker(types: dict[str, tuple[type, ...]], required: list[str] | None, takes_others: bool) -> Glance:
    must = frozenset(required or ())

    def fits(raw: Any) -> bool:
        if type(raw) is not dict or not must <= raw.keys():
            return False
        for name, value in raw.items():
            if type(value) not in types.get(name, NO_MEMBER) and (name in types or not takes_others):
                return False
        return True

    return fits


WORK = 4_000_000
LONGEST = 1_000_000
NESTED = 16
"""Characters for a pattern with a loop in a loop: 2 ** 16 ways at most."""

_TIMES = re.compile(r"\*|\+|\?|\{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


@dataclass(slots=True)
class _Scan:
    """What a pattern holds: loops in a row, and whether one stands in another."""

    loops: int = 0
    is_nested: bool = False


@lru_cache(maxsize=4096)
def reach(pattern: str) -> int:
    """The longest text this pattern is matched with; of a longer one nothing is said here."""
    scan = _scan(pattern)
    if scan.is_nested:
        return NESTED
    # A pattern that is not tied to the start is tried at every character.
    loops = scan.loops + (not pattern.startswith("^"))
    low, high = 1, LONGEST
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if comb(middle + loops, loops) <= WORK else (low, middle - 1)
    return low


def _scan(pattern: str) -> _Scan:
    scan = _Scan()
    varies = [False]  # for each open group, whether it can match in more than one way
    inner = False  # whether what stands before can
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if (times := _TIMES.match(pattern, at)) and at > 0:
            at = times.end()
            if pattern[at : at + 1] in ("?", "+"):
                at += 1
            low, high = _bounds(times)
            scan.is_nested |= inner and high > 1
            scan.loops += low != high
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
        elif char == "[" and (found := _CLASS.match(pattern, at)):
            at = found.end()
        else:
            varies[-1] |= char == "|"
            at += 2 if char == "\\" else 1
    return scan


def _bounds(times: re.Match[str]) -> tuple[int, int]:
    match times[0]:
        case "*":
            return 0, LONGEST
        case "+":
            return 1, LONGEST
        case "?":
            return 0, 1
    low = int(times["low"] or 0)
    if not times["comma"]:
        return low, low
    return low, int(times["high"]) if times["high"] else LONGEST


Schema = dict[str, Any]

MAX_BYTES = 256 * 1024
MAX_DEPTH = 48
MAX_ERRORS = 1000
MAX_NAME = 128
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
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLES = (
    *("items", "additionalItems", "unevaluatedItems", "contains", "not", "if", "then", "else"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"),
)
UNKNOWN = ("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary")

_left: ContextVar[int] = ContextVar("references left")


class _TooMuch(Exception):
    """A check that would go on for too long."""


def parser(name: str, schema: Schema) -> Callable[[Any], Any]:
    """What turns a call's arguments into checked ones. Raises `ValueError` for a schema that cannot be used."""
    check(schema)
    validator = _compile(schema)
    takes = list(schema.get("properties", {}))
    matches_names = any("patternProperties" in node for node in subschemas(schema))
    fits = glance(schema)

    def parse(raw: Any) -> Any:
        if fits is not None and fits(raw):
            return raw
        try:
            if matches_names and _has_long_name(raw):
                raise _TooMuch
            args, errors = _fit(validator, raw)
        except (_TooMuch, RecursionError):
            raise InvalidArgs(f"{name} cannot take these arguments: they are too long or too deep to check.") from None
        if errors:
            raise refuse(name, errors, takes)
        return args

    return parse


def load() -> None:
    """Load what checks, which takes a while; else the first tool that is checked does it."""
    _bounded(DIALECTS[LATEST])


def checker(schema: Schema) -> Callable[[Any], str | None]:
    """What says in which way a value of any type is not as the schema wants it; None when it is.

    Raises `ValueError` for a schema that cannot be used.
    """
    _check(schema)
    validator = _compile(schema)
    matches_names = any("patternProperties" in node for node in subschemas(schema))

    def wrong(value: Any) -> str | None:
        try:
            if matches_names and _has_long_name(value):
                raise _TooMuch
            return tell(_errors(validator, value))
        except (_TooMuch, RecursionError):
            return "it is too long or too deep to check"

    return wrong


def check(schema: Schema) -> None:
    """Raises `ValueError` with a sentence when a schema cannot describe arguments."""
    if schema.get("type") != "object":
        raise ValueError('parameters: arguments are an object, so the schema must say "type": "object".')
    _check(schema)


def _check(schema: Schema) -> None:
    if _is_deep(schema):
        raise ValueError(f"parameters: the schema is nested more than {MAX_DEPTH} levels deep.")
    if len(dumps(schema)) > MAX_BYTES:
        raise ValueError(f"parameters: the schema takes more than {MAX_BYTES // 1024} KiB.")
    _check_by_metaschema(schema)
    nodes = list(subschemas(schema))
    known = {id(node) for node in nodes}
    for node in nodes:
        _check_patterns(node)
        _check_references(node, schema, known)
    done: set[int] = set()
    for node in nodes:
        _check_circles(node, schema, set(), done)


def subschemas(schema: Any) -> Iterator[Schema]:
    """A schema and every schema inside it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in MAPS:
        if isinstance(inner := schema.get(keyword), dict):
            for one in inner.values():
                yield from subschemas(one)
    for keyword in LISTS:
        if isinstance(inner := schema.get(keyword), list):
            for one in inner:
                yield from subschemas(one)
    for keyword in SINGLES:
        yield from subschemas(schema.get(keyword))


def _check_by_metaschema(schema: Schema) -> None:
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]

    try:
        _class_of(schema).check_schema(schema)
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
            raise ValueError(f"parameters: {pattern[:80]!r} is not a regular expression of Python's.") from None
    if slow := next((pattern for pattern in patterns if reach(pattern) < MAX_NAME), None):
        raise ValueError(f"parameters: matching names with {slow[:80]!r} could take forever; use a simpler pattern.")


def _check_references(node: Schema, root: Schema, known: set[int]) -> None:
    if found := next((keyword for keyword in UNKNOWN if keyword in node), None):
        raise ValueError(f"parameters: {found} is not supported; use $ref and $defs.")
    if node is not root and "$id" in node:
        raise ValueError("parameters: only the schema itself can have an $id, no part of it.")
    target = node.get("$ref")
    if target is None:
        return
    if not target.startswith("#"):
        raise ValueError(f"parameters: $ref {target[:80]!r} leads out of the schema; put it under $defs.")
    found = look_up(root, target)
    if not isinstance(found, bool) and id(found) not in known:
        raise ValueError(f"parameters: $ref {target[:80]!r} leads to no schema; put it under $defs.")


def look_up(document: Any, reference: str) -> Any:
    """What a local reference points to; None when there is nothing."""
    if reference == "#":
        return document
    found = document
    for part in reference.removeprefix("#/").split("/"):
        name = _unescape(part)
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def _unescape(part: str) -> str:
    return unquote(part).replace("~1", "/").replace("~0", "~")


def _check_circles(node: Schema, root: Schema, above: set[int], done: set[int]) -> None:
    """A reference may lead back to where it came from only by way of a member or an item."""
    if id(node) in done:
        return
    if id(node) in above or len(above) > MAX_DEPTH:
        raise ValueError("parameters: the references of the schema lead in circles, or too far.")
    beside = [look_up(root, node["$ref"])] if "$ref" in node else []
    for keyword in ("allOf", "anyOf", "oneOf"):
        beside += node.get(keyword, [])
    beside += [node[keyword] for keyword in ("not", "if", "then", "else") if keyword in node]
    for one in beside:
        if isinstance(one, dict):
            _check_circles(one, root, above | {id(node)}, done)
    done.add(id(node))


def _is_deep(schema: Any) -> bool:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return True
        inner = [node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list)]
        level = [one for group in inner for one in group if isinstance(one, dict | list)]
    return False


def _has_long_name(value: Any) -> bool:
    if isinstance(value, dict):
        return any(len(name) > MAX_NAME or _has_long_name(inner) for name, inner in value.items())
    return isinstance(value, list) and any(_has_long_name(inner) for inner in value)


def _compile(schema: Schema) -> Any:
    from referencing import Registry

    # An empty registry: what is not in the schema is not fetched from anywhere.
    return _class_of(schema)(schema, registry=Registry())


def _class_of(schema: Schema) -> Any:
    named = str(schema.get("$schema", LATEST)).removesuffix("#")
    if named not in DIALECTS:
        raise ValueError(f"parameters: $schema {named[:80]!r} is not known; 2020-12 and draft-07 are.")
    return _bounded(DIALECTS[named])


@lru_cache
def _bounded(name: str) -> Any:
    """A validator of the library's that keeps within bounds. Loaded by the first tool that needs it."""
    import jsonschema  # type: ignore[import-untyped]

    plain = getattr(jsonschema, name)

    def pattern(validator: Any, wanted: str, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, str) and len(instance) <= reach(wanted):
            yield from plain.VALIDATORS["pattern"](validator, wanted, instance, schema)

    def ref(validator: Any, target: str, instance: Any, schema: Any) -> Iterator[Any]:
        _left.set(_left.get() - 1)
        if _left.get() < 0:
            raise _TooMuch
        yield from plain.VALIDATORS["$ref"](validator, target, instance, schema)

    return jsonschema.validators.extend(plain, {"pattern": pattern, "$ref": ref})


def _errors(validator: Any, value: Any) -> list[Any]:
    _left.set(MAX_REFERENCES)
    return list(islice(validator.iter_errors(value), MAX_ERRORS))


def _fit(validator: Any, raw: Any) -> tuple[Any, list[Any]]:
    """The arguments, with what was sent as text read as what it should be where that makes them right."""
    errors = _errors(validator, raw)
    found = {path: value for error in errors for path, value in _readings(error)}
    if not found:
        return raw, errors
    read = copy.deepcopy(raw)
    for path, value in found.items():
        holder = read
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] = value
    left = _errors(validator, read)
    return (read, left) if len(left) <= len(errors) else (raw, errors)


def _readings(error: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Texts that stand where a number or a boolean should, with what they say."""
    for one in error.context:
        yield from _readings(one)
    path = tuple(error.absolute_path)
    if error.validator != "type" or not isinstance(error.instance, str) or not path:
        return
    wanted = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    for type in wanted:
        if (value := _read(error.instance, type)) is not None:
            yield path, value
            return


def _read(text: str, type: str) -> Any:
    if type == "boolean":
        return {"true": True, "false": False}.get(text.strip().lower())
    if type not in ("integer", "number"):
        return None
    if re.fullmatch(r"\s*[+-]?[0-9]{1,1000}\s*", text):
        return int(text)
    if type == "number" and re.fullmatch(r"\s*[+-]?[0-9]{1,400}(\.[0-9]{0,400})?([eE][+-]?[0-9]{1,3})?\s*", text):
        return value if math.isfinite(value := float(text)) else None
    return None
