"""A tool that the caller's client runs is a tool like any other, but for who runs it."""

import pytest

from app.core.custom_tools import ClientDefinition
from app.core.errors import InvalidArgs, ToolUnavailable
from app.core.tools import Effect, Lane
from app.custom import client_tools
from tests.support.client_tools import SCHEMA, client_tool


def test_it_says_what_its_definition_says() -> None:
    tool = client_tools.make(
        ClientDefinition(
            kind="client",
            name="pick_file",
            title="Pick a file",
            description="Let the person pick a file.",
            parameters=SCHEMA,
            effect="read",
            timeout=60,
        ),
        "ann",
    )

    assert tool.view() == {
        "name": "pick_file",
        "title": "Pick a file",
        "description": "Let the person pick a file.",
        "parameters": SCHEMA,
        "output_schema": None,
        "takes": "arguments",
        "grammar": None,
        "effect": "read",
        "lane": "none",
        "timeout": 60.0,
        "source": "client",
        "server": None,
        "aliases": [],
        "annotations": {},
    }
    assert (tool.owner, tool.is_client_run, tool.permission) == ("ann", True, None)


def test_what_is_not_said_is_careful() -> None:
    tool = client_tools.make(ClientDefinition(kind="client", name="open_page", description="Open a page."), None)

    assert (tool.title, tool.effect, tool.lane, tool.timeout, tool.owner) == (
        "Open page",
        Effect.WRITE,
        Lane.NONE,
        300.0,
        None,
    )


def test_its_arguments_are_checked_and_its_name_is_its_permission() -> None:
    tool = client_tool()

    assert tool.parse({"city": "Oslo"}) == {"city": "Oslo"}
    assert tool.needs({"city": "Oslo"}, None) == []  # type: ignore[arg-type]
    with pytest.raises(InvalidArgs, match="get_weather"):
        tool.parse({"city": 7})


async def test_it_is_never_run_by_the_service() -> None:
    with pytest.raises(ToolUnavailable, match="get_weather is run by the client that called it"):
        await client_tool().run({"city": "Oslo"}, None)  # type: ignore[arg-type]
