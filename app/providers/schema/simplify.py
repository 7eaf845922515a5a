"""Schemas with fewer keywords, for limited grammars: no type lists, no `allOf`, references only to `$defs`.

A schema that cannot be simplified without changing what it allows is refused.
"""

from typing import Any

from app.providers.schema.document import NotExpressible, look_up, split_by_type

MAX_NODES = 5_000
MAX_DEPTH = 60
SILENT = frozenset({"$schema", "$id", "$anchor", "$comment", "$defs", "definitions"})
"""Keywords that do not constrain values."""
TYPED = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
UNIONS = frozenset({"anyOf", "oneOf"})
OBJECT_WORDS = frozenset({"properties", "required", "additionalProperties", "patternProperties"})
ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
_DEFINITION_PREFIXES = ("#/$defs/", "#/definitions/")


def simplify(schema: dict[str, Any]) -> dict[str, Any]:
    """A simplified copy. Raises `NotExpressible`."""
    simplifier = _Simplifier(schema)
    simplified = simplifier.simplify(schema, ())
    return simplified | {"$defs": simplifier.defs} if simplifier.defs else simplified


class _Simplifier:
    """Simplifies one schema. `above` are the references being inlined."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.defs: dict[str, Any] = {}
        self._root = root
        self._references: dict[str, str] = {}
        self._nodes = 0
        self._depth = 0

    def simplify(self, given: Any, above: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise NotExpressible("a place in it takes anything")
        self._nodes += 1
        self._depth += 1
        if self._nodes > MAX_NODES or self._depth > MAX_DEPTH:
            raise NotExpressible("it is too large")
        simplified = self._simplify_node({word: value for word, value in given.items() if word not in SILENT}, above)
        self._depth -= 1
        return simplified

    def _simplify_node(self, given: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        if "$ref" in given:
            return self._follow(given, above)
        if "allOf" in given:
            return self._merge(given, given["allOf"], above)
        if given.keys() & UNIONS:
            return self._union(given, above)
        if isinstance(given.get("type"), list):
            return self._spread(given, above)
        return self._plain(given, above)

    def _plain(self, given: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        simplified = dict(given)
        if given.get("type") == "object":
            properties = _closed_properties(given)
            simplified["properties"] = {name: self.simplify(inner, above) for name, inner in properties.items()}
        if given.get("type") == "array" and "items" in given:
            simplified["items"] = self.simplify(given["items"], above)
        return simplified

    def _spread(self, given: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        """A type list as alternatives. An `enum` or `const` needs no type."""
        types = given["type"]
        if not types or not all(isinstance(kind, str) for kind in types):
            raise NotExpressible("its types cannot be read")
        if given.keys() & {"enum", "const"}:
            return {word: value for word, value in given.items() if word != "type"}
        if len(types) == 1:
            return self._plain(given | {"type": types[0]}, above)
        outer, arms = split_by_type(given, types)
        return outer | {"anyOf": [self.simplify(arm, above) for arm in arms]}

    def _union(self, given: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        kind, arms = given.get("type"), given.get("anyOf", given.get("oneOf"))
        if given.keys() >= UNIONS or kind == "object" or given.keys() & OBJECT_WORDS:
            raise NotExpressible("it asks for several things of one value")
        if not isinstance(arms, list) or not arms:
            raise NotExpressible("its alternatives cannot be read")
        typed = [_typed(arm, kind) for arm in arms]
        rest = {word: value for word, value in given.items() if word not in UNIONS | {"type"}}
        return rest | {"anyOf": [self.simplify(arm, above) for arm in typed]}

    def _merge(self, given: dict[str, Any], parts: Any, above: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], dict):
            raise NotExpressible("it asks for several things of one value")
        rest = {word: value for word, value in given.items() if word != "allOf"}
        return self.simplify(_merged(parts[0], rest), above)

    def _follow(self, given: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        """A reference without siblings stays; others are inlined."""
        reference = given["$ref"]
        if reference in above:
            raise NotExpressible("it holds itself")
        try:
            target = look_up(self._root, reference)
        except LookupError as error:
            raise NotExpressible(str(error)) from None
        rest = {word: value for word, value in given.items() if word != "$ref"}
        name = self._definition_name(reference)
        if rest or name is None:
            return self.simplify(_merged(target, rest), (*above, reference))
        if name not in self.defs:
            self.defs[name] = self.simplify(target, (*above, reference))
        self._references[name] = reference
        return {"$ref": f"#/$defs/{name}"}

    def _definition_name(self, reference: str) -> str | None:
        """Its name in `$defs`; None when it is not a definition, or the name is in use."""
        prefix = next((prefix for prefix in _DEFINITION_PREFIXES if reference.startswith(prefix)), None)
        name = reference.removeprefix(prefix or "")
        is_own = prefix is not None and name.isidentifier() and self._references.get(name, reference) == reference
        return name if is_own else None


def _closed_properties(given: dict[str, Any]) -> dict[str, Any]:
    """The properties of an object without additional ones. Raises `NotExpressible`."""
    properties = given.get("properties", {})
    required = given.get("required", [])
    others = given.get("additionalProperties", None if "properties" in given else True)
    if (others is not None and others is not False) or given.get("patternProperties"):
        raise NotExpressible("an object in it takes properties of any name")
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise NotExpressible("its properties cannot be read")
    if not set(map(str, required)) <= properties.keys():
        raise NotExpressible("an object in it requires a property that it does not describe")
    return properties


def _typed(arm: Any, kind: Any) -> Any:
    """An alternative without a type inherits it."""
    if isinstance(arm, dict) and isinstance(kind, str) and not arm.keys() & TYPED:
        return {"type": kind} | arm
    return arm


def _merged(inner: dict[str, Any], outer: dict[str, Any]) -> dict[str, Any]:
    """Two schemas that hold at the same time. For annotations the outer one wins."""
    if any(word in inner and inner[word] != value for word, value in outer.items() if word not in ANNOTATIONS):
        raise NotExpressible("it asks for several things of one value")
    return inner | outer
