"""The tools take what their peers' published schemas say: every property, its type, and what must be given."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.tools import BUILTINS

SEEDS: dict[str, Any] = json.loads((Path(__file__).parent.parent / "scenarios" / "seed_schemas.json").read_text())

DEVIATIONS = {
    "list_dir: dir_path is not required": "without it the workspace itself is listed",
}
"""Where ours differ on purpose, and why. One that does not differ any more has to go."""


FREEFORM = ("js_repl",)
"""Tools that are published without a schema: they take a text, and a grammar says which."""


@pytest.mark.parametrize("name", SEEDS)
def test_a_tool_takes_what_its_published_schema_says(name: str) -> None:
    ours = {tool.name: tool.schema for tool in BUILTINS}
    assert name in ours

    found = [f"{name}: {difference}" for difference in differences(SEEDS[name], ours[name])]

    assert found == [known for known in DEVIATIONS if known.startswith(f"{name}: ")]


@pytest.mark.parametrize("name", FREEFORM)
def test_a_freeform_tool_takes_a_text_that_a_grammar_describes(name: str) -> None:
    [tool] = [tool for tool in BUILTINS if tool.name == name]

    assert tool.takes == "input"
    assert tool.grammar


def test_every_deviation_is_of_a_published_tool() -> None:
    assert {known.partition(": ")[0] for known in DEVIATIONS} <= set(SEEDS)


def test_the_check_bites() -> None:
    seed = {
        "type": "object",
        "properties": {
            "gone": {"type": "string"},
            "other": {"type": "number"},
            "optional": {"type": "string"},
            "rows": {"type": "array", "items": {"type": "object", "properties": {"cell": {"type": "boolean"}}}},
        },
        "required": ["optional"],
    }
    ours = {
        "type": "object",
        "properties": {
            "other": {"type": "string"},
            "optional": {"type": "string"},
            "rows": {"type": "array", "items": {"$ref": "#/$defs/Row"}},
        },
        "$defs": {"Row": {"type": "object", "properties": {"cell": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}},
    }

    assert list(differences(seed, ours)) == [
        "gone is missing",
        "other is string, not number",
        "optional is not required",
        "rows[].cell is string, not boolean",
    ]
    assert list(differences(seed, seed)) == []


def differences(seed: Any, ours: Any) -> Iterator[str]:
    """What the seed says and ours does not, property by property."""
    return _compare(seed, ours, ours.get("$defs", {}), "")


def _compare(seed: Any, ours: Any, shared: dict[str, Any], place: str) -> Iterator[str]:
    ours = _resolved(ours, shared)
    wanted, given = seed.get("type"), ours.get("type")
    if wanted != given and (wanted, given) != ("number", "integer"):
        yield f"{place} is {given}, not {wanted}"
        return
    if seed.get("additionalProperties") is False and ours.get("additionalProperties") is not False:
        yield f"{place or 'it'} takes more properties"
    for name, property in seed.get("properties", {}).items():
        there = f"{place}.{name}" if place else name
        if name not in ours.get("properties", {}):
            yield f"{there} is missing"
            continue
        yield from _compare(property, ours["properties"][name], shared, there)
        if name in seed.get("required", []) and name not in ours.get("required", []):
            yield f"{there} is not required"
    if "items" in seed:
        yield from _compare(seed["items"], ours.get("items", {}), shared, f"{place}[]")


def _resolved(schema: Any, shared: dict[str, Any]) -> Any:
    """A schema where it is written, and without the choice of null."""
    if "$ref" in schema:
        return _resolved(shared[schema["$ref"].rpartition("/")[2]], shared)
    choices = [choice for choice in schema.get("anyOf", []) if choice.get("type") != "null"]
    return _resolved(choices[0], shared) if len(choices) == 1 else schema
