"""The registry: tools by name, and a hint for those who miss one."""

import pytest

from app.core.errors import UnknownTool
from app.dispatch.registry import Registry
from tests.toys import Toys


async def test_a_tool_is_found_by_its_name(toys: Toys) -> None:
    registry = Registry(toys.tools)

    assert registry.find("echo") is registry.get("echo")
    assert registry.get("nothing") is None
    assert [tool.name for tool in registry.all()] == sorted(tool.name for tool in toys.tools)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ecko", "There is no tool named ecko. Did you mean echo?"),
        ("Note", "There is no tool named Note. Did you mean note or tell?"),
        ("shouts", "There is no tool named shouts. Did you mean shout?"),
    ],
)
async def test_a_near_miss_is_told_what_was_meant(toys: Toys, name: str, message: str) -> None:
    with pytest.raises(UnknownTool) as missed:
        Registry(toys.tools).find(name)

    assert missed.value.message == message


async def test_a_wide_miss_is_told_what_there_is(toys: Toys) -> None:
    echo, note = (tool for tool in toys.tools if tool.name in ("echo", "note"))

    with pytest.raises(UnknownTool) as missed:
        Registry([note, echo]).find("qqqqq")

    assert missed.value.message == "There is no tool named qqqqq. Available: echo, note."


async def test_two_tools_cannot_have_one_name(toys: Toys) -> None:
    with pytest.raises(ValueError, match="two tools are named echo"):
        Registry([toys.tools[0], toys.tools[0]])
