"""tool_search: through the real line, over what this caller may use."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.principals import Bounds, Key, Scope, digest
from app.core.sessions import Session
from app.core.tools import Audience, Ready, Tool
from app.tools import BUILTINS, tool_search
from tests.support.services import Crib
from tests.support.toy_tools import Toys


class Filled(Toys):
    """The built-in tools and toys that call."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (*super().tools, *BUILTINS)


@pytest.fixture
async def crib(data_dir: Path) -> AsyncIterator[Crib]:
    crib = await Crib(data_dir, Filled()).open()
    yield crib
    await crib.close()


def own(name: str, description: str, **more: Any) -> Tool:
    return replace(tool_search.tool, name=name, description=description, aliases=(), **more)


async def search(crib: Crib, query: str, **more: Any) -> list[str]:
    call = await crib.run("tool_search", {"query": query} | more)
    assert call["status"] == "completed", call["error"]
    found: list[str] = [line.partition(":")[0] for line in call["result"]["output"].splitlines()]
    return found


async def test_it_names_the_best_first_and_gives_their_definitions(crib: Crib) -> None:
    call = await crib.run("tool_search", {"query": "read a text file", "limit": 1})

    read_file = next(tool for tool in BUILTINS if tool.name == "read_file")
    sentence, _, rest = read_file.description.partition(". ")
    assert rest
    assert call["result"]["output"] == f"read_file: {sentence}."
    assert call["result"]["structured"] == {"tools": [read_file.view()]}
    assert call["result"]["metadata"]["tools"] == ["read_file"]


async def test_it_is_known_by_its_older_name(crib: Crib) -> None:
    call = await crib.run("search_tool_bm25", {"query": "plan", "limit": 1})

    assert (call["tool"], call["result"]["metadata"]["tools"]) == ("search_tool_bm25", ["update_plan"])


async def test_eight_are_named_unless_said_otherwise(crib: Crib) -> None:
    assert len(await search(crib, "toy")) == 8
    assert len(await search(crib, "toy", limit=50)) == 23


@pytest.mark.parametrize("arguments", [{"query": "x", "limit": 0}, {"query": "x", "limit": 51}, {"query": ""}, {}])
async def test_what_cannot_be_searched_is_the_models_mistake(crib: Crib, arguments: dict[str, Any]) -> None:
    assert (await crib.run("tool_search", arguments))["error"]["code"] == "InvalidArgs"


async def test_nothing_found_is_an_answer(crib: Crib) -> None:
    call = await crib.run("tool_search", {"query": "quantum"})

    assert call["result"]["output"] == "No tool fits 'quantum'; try other words."
    assert call["result"]["structured"] == {"tools": []}


async def test_only_what_the_caller_may_use_is_found(crib: Crib) -> None:
    registry = crib.services.dispatcher.registry
    registry.add(own("zebra_mine", "About zebras.", owner="admin"))
    registry.add(own("zebra_foreign", "About zebras.", owner="ann"))
    registry.add(own("zebra_unfit", "About zebras.", suits=lambda audience: audience.model == "other"))
    registry.add(own("zebra_of_model", "About zebras.", suits=lambda audience: audience.model is None))

    assert sorted(await search(crib, "zebra")) == ["zebra_mine", "zebra_of_model"]


async def test_what_cannot_be_used_is_not_found(crib: Crib) -> None:
    async def off(audience: Audience) -> Ready:
        return Ready(reason="Off.")

    zebra = own("zebra_broken", "About zebras.", init=off)
    crib.services.dispatcher.registry.add(zebra)

    before = await search(crib, "zebra")
    await crib.services.dispatcher.registry.availability.ask(zebra)

    assert before == ["zebra_broken"], "not known to be off yet"
    assert (await crib.run("tool_search", {"query": "zebra"}))["result"]["structured"] == {"tools": []}


async def test_a_bound_key_finds_no_more_than_it_sees_also_in_calls_that_a_tool_makes(crib: Crib) -> None:
    bounds = Bounds(tools=("relay", "tool_search", "read_*"))
    key = Key("key_1", "admin", "", frozenset({Scope.CALLS_RUN}), digest("tk"), 1, bounds=bounds)
    session = Session("admin", "default")
    asked = {"query": "file toy directory", "limit": 50}
    around = {"tool": "tool_search", "arguments": asked}

    direct = crib.services.dispatcher.submit(crib.request("tool_search", asked), session, key=key)
    inside = crib.services.dispatcher.submit(crib.request("relay", around), session, key=key)

    found = (await crib.ended(direct))["result"]
    assert sorted(found["metadata"]["tools"]) == ["read_file", "relay"]
    assert (await crib.ended(inside))["result"]["output"] == found["output"]
