"""Schemas in fewer words, for grammars that know few: no lists of types, no `allOf`, references only to `$defs`.

What cannot be said without losing or narrowing something is given up.
"""

from typing import Any

from app.providers.schema.document import NotExpressible, look_up, split_by_type

MOST_NODES = 5_000
MOST_DEEP = 60
SILENT = frozenset({"$schema", "$id", "$anchor", "$comment", "$defs", "definitions"})
"""What says nothing about the values themselves."""
TYPED = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
UNIONS = frozenset({"anyOf", "oneOf"})
OBJECT_WORDS = frozenset({"properties", "required", "additionalProperties", "patternProperties"})
ABOUT = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
_OWN_PLACES = ("#/$defs/", "#/definitions/")


def simplify(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in fewer words; the one given is left as it is. Raises `NotExpressible`."""
    work = _Simplifying(schema)
    made = work.schema(schema, ())
    return made | {"$defs": work.defs} if work.defs else made


class _Simplifying:
    """One walk. `above` are the references that lead to where it stands."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.defs: dict[str, Any] = {}
        self._root = root
        self._kept: dict[str, str] = {}
        self._nodes = 0
        self._depth = 0

    def schema(self, given: Any, above: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise NotExpressible("a place in it takes anything")
        self._nodes += 1
        self._depth += 1
        if self._nodes > MOST_NODES or self._depth > MOST_DEEP:
            raise NotExpressible("it is too large")
        made = self._simpler({word: value for word, value in given.items() if word not in SILENT}, above)
        self._depth -= 1
        return made

    def _simpler(self, given: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
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
        made = dict(given)
        if given.get("type") == "object":
            properties = _demand_closed(given)
            made["properties"] = {name: self.schema(inner, above) for name, inner in properties.items()}
        if given.get("type") == "array" and "items" in given:
            made["items"] = self.schema(given["items"], above)
        return made

    def _spread(self, given: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        """A list of types as alternatives. Values that are counted up need no type besides."""
        types = given["type"]
        if not types or not all(isinstance(kind, str) for kind in types):
            raise NotExpressible("its types cannot be read")
        if given.keys() & {"enum", "const"}:
            return {word: value for word, value in given.items() if word != "type"}
        if len(types) == 1:
            return self._plain(given | {"type": types[0]}, above)
        outer, arms = split_by_type(given, types)
        return outer | {"anyOf": [self.schema(arm, above) for arm in arms]}

    def _union(self, given: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        kind, arms = given.get("type"), given.get("anyOf", given.get("oneOf"))
        if given.keys() >= UNIONS or kind == "object" or given.keys() & OBJECT_WORDS:
            raise NotExpressible("it asks for several things of one value")
        if not isinstance(arms, list) or not arms:
            raise NotExpressible("its alternatives cannot be read")
        typed = [_typed(arm, kind) for arm in arms]
        rest = {word: value for word, value in given.items() if word not in UNIONS | {"type"}}
        return rest | {"anyOf": [self.schema(arm, above) for arm in typed]}

    def _merge(self, given: dict[str, Any], parts: Any, above: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], dict):
            raise NotExpressible("it asks for several things of one value")
        rest = {word: value for word, value in given.items() if word != "allOf"}
        return self.schema(_merged(parts[0], rest), above)

    def _follow(self, given: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        """A reference that stands alone stays one; others are replaced by what they name."""
        reference = given["$ref"]
        if reference in above:
            raise NotExpressible("it holds itself")
        try:
            target = look_up(self._root, reference)
        except LookupError as error:
            raise NotExpressible(str(error)) from None
        rest = {word: value for word, value in given.items() if word != "$ref"}
        name = self._place(reference)
        if rest or name is None:
            return self.schema(_merged(target, rest), (*above, reference))
        if name not in self.defs:
            self.defs[name] = self.schema(target, (*above, reference))
        self._kept[name] = reference
        return {"$ref": f"#/$defs/{name}"}

    def _place(self, reference: str) -> str | None:
        """The name it has among the `$defs`; None when it belongs elsewhere, or the name is another's."""
        place = next((place for place in _OWN_PLACES if reference.startswith(place)), None)
        name = reference.removeprefix(place or "")
        is_own = place is not None and name.isidentifier() and self._kept.get(name, reference) == reference
        return name if is_own else None


def _demand_closed(given: dict[str, Any]) -> dict[str, Any]:
    """The properties of an object that takes no others, as far as it says."""
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
    """An alternative that leaves its type to what stands around it gets that type."""
    if isinstance(arm, dict) and isinstance(kind, str) and not arm.keys() & TYPED:
        return {"type": kind} | arm
    return arm


def _merged(inner: dict[str, Any], outer: dict[str, Any]) -> dict[str, Any]:
    """Two that hold both. What is said about them may differ, and the outer one knows better."""
    if any(word in inner and inner[word] != value for word, value in outer.items() if word not in ABOUT):
        raise NotExpressible("it asks for several things of one value")
    return inner | outer
