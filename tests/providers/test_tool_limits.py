from typing import Any

import pytest

from app.core.runs import ToolOffer
from app.providers.dialects import Quirks
from app.providers.schema.document import look_up
from app.providers.tool_limits import FREE_FORM, fit
from tests.providers.neutral import WEATHER


def offer(name: str = "t", description: str = "Does it.", **more: Any) -> ToolOffer:
    return ToolOffer(**{"name": name, "description": description, "schema": WEATHER} | more)


def test_a_description_that_is_too_long_is_cut_with_a_warning() -> None:
    warnings: list[str] = []
    long, short = fit([offer("long", "x" * 30), offer("short", "x" * 20)], Quirks(max_description=20), warnings)
    assert (long.description, short.description) == ("x" * 19 + "…", "x" * 20)
    assert warnings == ["long: the description was cut to 20 characters, this provider's limit."]


def test_tools_beyond_the_limit_are_left_out_by_name() -> None:
    warnings: list[str] = []
    offers = [offer(name) for name in ("a", "b", "c")]
    assert [tool.name for tool in fit(offers, Quirks(max_tools=1), warnings)] == ["a"]
    assert warnings == ["At most 1 tools are supported, so these were left out: b, c."]
    assert len(fit(offers, Quirks(max_tools=3), [])) == 3


def test_a_schema_is_a_copy_that_says_it_is_of_an_object() -> None:
    (tool,) = fit([offer()], Quirks(), [])
    tool.schema["properties"]["location"]["type"] = "integer"
    assert WEATHER["properties"]["location"]["type"] == "string"
    untyped = {"$ref": "#/$defs/X", "$defs": {"X": {"type": "object"}}}
    schemas = [tool.schema for tool in fit([offer(schema={}), offer(schema=untyped)], Quirks(), [])]
    assert schemas == [{"type": "object", "properties": {}}, {"type": "object"} | untyped]


def test_a_tool_that_takes_text_keeps_what_it_says_of_it() -> None:
    own = {"type": "object", "properties": {"input": {"type": "string", "description": "A patch."}}}
    tools = fit([offer(takes="input", schema=own), offer(takes="input"), offer("u", "", takes="input")], Quirks(), [])
    assert [tool.schema for tool in tools] == [own, FREE_FORM, FREE_FORM]
    explained = "The whole text goes into the argument `input`, as it is."
    assert [tool.description for tool in tools] == [f"Does it.\n\n{explained}", f"Does it.\n\n{explained}", explained]


@pytest.mark.parametrize(
    ("reference", "found"),
    [("#", 0), ("#/$defs/a~1b", 1), ("#/$defs/a%20b", 2), ("#/anyOf/0", 3)],
)
def test_a_reference_is_followed_through_objects_and_lists(reference: str, found: int) -> None:
    root: dict[str, Any] = {"$defs": {"a/b": {"n": 1}, "a b": {"n": 2}}, "anyOf": [{"n": 3}], "n": 0}
    assert look_up(root, reference)["n"] == found


@pytest.mark.parametrize("reference", ["#/anyOf/1", "#/anyOf/" + "9" * 5000, "#/n", "#/n/n", "#/anyOf", "#/$defs/-"])
def test_a_reference_to_nothing_is_a_lookup_error(reference: str) -> None:
    with pytest.raises(LookupError, match="leads nowhere"):
        look_up({"anyOf": [{}], "n": 0, "$defs": {}}, reference)
