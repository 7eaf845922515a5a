"""How large a strict schema may be. Levels are counted as OpenAI's own client does: each step into a property, an item
or an arm is one, and references are not followed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.providers.schema.document import Schema, escape

MOST_PROPERTIES = 5_000
MOST_LEVELS = 10
MOST_VALUES = 1_000
MOST_CHARACTERS = 120_000
LONG_ENUM = 250
MOST_ENUM_CHARACTERS = 15_000


@dataclass(slots=True)
class _Count:
    properties: int = 0
    levels: int = 0
    values: int = 0
    characters: int = 0
    longest: int = 0

    def add(self, schema: Schema, level: int) -> None:
        properties, values = schema.get("properties", {}), schema.get("enum", [])
        self.levels = max(self.levels, level)
        self.properties += len(properties)
        self.values += len(values)
        texts = [*properties, *values, *([schema["const"]] if "const" in schema else [])]
        self.characters += sum(_length(text) for text in texts)
        if len(values) > LONG_ENUM:
            self.longest = max(self.longest, sum(len(value) for value in values if isinstance(value, str)))


def excess(schema: Schema) -> str | None:
    """In which way a schema is larger than a strict one may be; None when it is not."""
    count = _Count(characters=sum(len(name) for name in schema.get("$defs", {})))
    for part, level in _parts(schema):
        count.add(part, level)
    limits = (
        (count.properties, MOST_PROPERTIES, "properties"),
        (count.levels, MOST_LEVELS, "levels"),
        (count.values, MOST_VALUES, "values to choose from"),
        (count.characters, MOST_CHARACTERS, "characters in names and values"),
        (count.longest, MOST_ENUM_CHARACTERS, "characters in the values of one `enum`"),
    )
    over = next(((found, most, what) for found, most, what in limits if found > most), None)
    return None if over is None else f"the schema has {over[0]:,} {over[2]}, more than {over[1]:,}"


def circle(schema: Schema) -> str | None:
    """A definition that leads back to itself with no property or item between, so that it describes nothing."""
    leads = {f"#/$defs/{escape(name)}": set(_references(part)) for name, part in schema.get("$defs", {}).items()}
    comes_from: dict[str, list[str]] = {name: [] for name in leads}
    for name, targets in leads.items():
        for target in targets & leads.keys():
            comes_from[target].append(name)
    open_ends = {name: len(targets & leads.keys()) for name, targets in leads.items()}
    settled = [name for name, number in open_ends.items() if not number]
    for name in settled:
        for before in comes_from[name]:
            open_ends[before] -= 1
            if not open_ends[before]:
                settled.append(before)
    return next((name for name, number in open_ends.items() if number), None)


def _parts(schema: Schema) -> Iterator[tuple[Schema, int]]:
    left = [(schema, 0), *((part, 1) for part in schema.get("$defs", {}).values())]
    while left:
        part, level = left.pop()
        yield part, level
        inner = [*part.get("properties", {}).values(), *part.get("anyOf", ())]
        left += [(one, level + 1) for one in [*inner, *([part["items"]] if "items" in part else [])]]


def _references(part: Schema) -> Iterator[str]:
    left = [part]
    while left:
        one = left.pop()
        if "$ref" in one:
            yield one["$ref"]
        left += one.get("anyOf", ())


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(str(value))
