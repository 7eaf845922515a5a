from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import app.tools
from app.core.tools import Tool
from app.tools import BUILTINS

FOLDER = Path(app.tools.__file__).parent

by_name = pytest.mark.parametrize("tool", BUILTINS, ids=lambda tool: tool.name)


def parameters(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every parameter of a schema, those of nested objects too."""
    for owner, part in [("", schema), *schema.get("$defs", {}).items()]:
        for name, parameter in part.get("properties", {}).items():
            yield f"{owner}.{name}", parameter


def test_a_tool_is_named_after_its_file_and_listed() -> None:
    files = sorted(path.stem for path in FOLDER.rglob("[!_]*.py"))

    assert [tool.name for tool in BUILTINS] == files


@by_name
def test_the_tool_and_each_of_its_parameters_are_described(tool: Tool) -> None:
    undescribed = [name for name, parameter in parameters(tool.schema) if not parameter.get("description")]

    assert tool.description
    assert undescribed == []


@by_name
def test_unknown_parameters_are_refused_everywhere(tool: Tool) -> None:
    objects = [tool.schema, *tool.schema.get("$defs", {}).values()]

    assert [part.get("additionalProperties") for part in objects] == [False] * len(objects)


@by_name
def test_the_tool_file_has_the_four_names_in_their_order(tool: Tool) -> None:
    """A factory of `_shared` brings what a file leaves out."""
    [file] = FOLDER.rglob(f"{tool.name}.py")
    source = file.read_text()
    words: tuple[str, ...] = ("class Args(", "def needs(", "async def run(", "tool = typed(")
    if "tool = reset_tool(" in source:
        words = ("tool = reset_tool(",)
    elif "tool = route_tool(" in source:
        words = ("class Args(", "async def run(", "tool = route_tool(")

    places = [source.index(f"\n{word}") for word in words]

    assert places == sorted(places)
