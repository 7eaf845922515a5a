"""The registry: tools by name, everybody's and one's own, and a hint for those who miss one."""

from dataclasses import replace
from typing import Any

import pytest

from app.core.errors import UnknownTool
from app.core.tools import Alias, Origin, Tool
from app.dispatch.tools.registry import NameTaken, Registry
from tests.support.services import Crib
from tests.support.toy_tools import Toys


def named(toys: Toys, name: str, **more: Any) -> Tool:
    return replace(toys.tools[0], name=name, **more)


def names(registry: Registry, principal: str | None = None) -> list[str]:
    return [tool.name for tool in registry.all(principal)]


async def test_a_tool_is_found_by_its_name(toys: Toys) -> None:
    registry = Registry(toys.tools)

    assert registry.find("echo", "ann") is registry.get("echo", None)
    assert registry.get("nothing", "ann") is None
    assert names(registry) == sorted(tool.name for tool in toys.tools)


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
        Registry(toys.tools).find(name, None)

    assert missed.value.message == message


async def test_a_wide_miss_is_told_what_there_is(toys: Toys) -> None:
    registry = Registry([named(toys, "note"), named(toys, "echo")])

    with pytest.raises(UnknownTool) as missed:
        registry.find("qqqqq", None)

    assert missed.value.message == "There is no tool named qqqqq. Available: echo, note."


async def test_nobody_hears_of_tools_that_are_not_theirs(toys: Toys) -> None:
    registry = Registry([named(toys, "echo")])
    registry.add(named(toys, "mailer", owner="ann"))

    assert registry.find("mailer", "ann").owner == "ann"
    assert (names(registry, "ann"), names(registry, "bob")) == (["echo", "mailer"], ["echo"])
    for who in ("bob", None):
        with pytest.raises(UnknownTool) as missed:
            registry.find("mailer", who)
        assert missed.value.message == "There is no tool named mailer. Available: echo."


async def test_two_principals_can_have_tools_of_one_name(toys: Toys) -> None:
    registry = Registry([])
    registry.add(named(toys, "mailer", owner="ann", title="Ann's"))
    registry.add(named(toys, "mailer", owner="bob", title="Bob's"))

    registry.remove("mailer", "bob")

    assert registry.find("mailer", "ann").title == "Ann's"
    assert registry.get("mailer", "bob") is None


async def test_an_alias_finds_the_tool_with_its_own_argument_names_and_is_not_listed(toys: Toys) -> None:
    adapt = Alias("say_again", lambda raw: {"text": raw["words"]})
    registry = Registry([named(toys, "echo", aliases=(adapt, Alias("say")))])

    found = registry.find("say_again", None)

    assert found.name == "echo"
    assert found.parse({"words": "hello"}).text == "hello"
    assert registry.find("say", None).parse({"text": "hello"}).text == "hello"
    assert names(registry) == ["echo"]


@pytest.mark.parametrize("owner", ["ann", None])
async def test_a_taken_name_is_refused_whoever_wants_it(toys: Toys, owner: str | None) -> None:
    registry = Registry([named(toys, "echo", aliases=(Alias("say"),))])

    with pytest.raises(NameTaken, match="echo is the name of a tool already"):
        registry.add(named(toys, "echo", owner=owner))
    for alias in ("echo", "say"):
        with pytest.raises(NameTaken, match=f"{alias} is the name of a tool already"):
            registry.add(named(toys, "other", owner=owner, aliases=(Alias(alias),)))

    assert names(registry, "ann") == ["echo"]


async def test_an_alias_gives_way_to_a_tool_of_that_name_as_long_as_it_is_there(toys: Toys) -> None:
    registry = Registry([named(toys, "echo", aliases=(Alias("say"),))])

    registry.add(named(toys, "say", owner="ann"))

    assert names(registry, "ann") == ["echo", "say"]
    assert registry.find("say", "ann").owner == "ann"
    assert registry.find("say", "bob").name == "echo"
    registry.remove("say", "ann")
    assert registry.find("say", "ann").name == "echo"


async def test_a_tool_cannot_have_one_name_twice(toys: Toys) -> None:
    with pytest.raises(NameTaken, match="echo is the name of a tool already"):
        Registry([named(toys, "echo", aliases=(Alias("echo"),))])
    with pytest.raises(NameTaken, match="echo is the name of a tool already"):
        Registry([toys.tools[0], toys.tools[0]])


async def test_what_is_built_in_is_neither_replaced_nor_removed(toys: Toys) -> None:
    registry = Registry([named(toys, "echo")])

    with pytest.raises(NameTaken, match="echo is built in and stays"):
        registry.replace(named(toys, "echo"))
    with pytest.raises(NameTaken, match="echo is built in and stays"):
        registry.remove("echo", None)
    with pytest.raises(NameTaken, match="echo is built in and stays"):
        registry.check(named(toys, "echo"), instead=True)


async def test_a_replaced_tool_is_gone_with_all_its_names(toys: Toys) -> None:
    registry = Registry([])
    old = named(toys, "mailer", aliases=(Alias("mail"), Alias("send")))
    registry.add(old)

    was = registry.replace(named(toys, "mailer", aliases=(Alias("post"), Alias("send"))))

    assert was is old
    assert [name for name in ("mailer", "mail", "send", "post") if registry.get(name, None)] == [
        "mailer",
        "send",
        "post",
    ]
    assert registry.remove("mail", None) is None
    assert registry.remove("send", None) is None, "an alias is not the tool"
    assert registry.remove("mailer", None) is not None
    assert [name for name in ("mailer", "mail", "send", "post") if registry.get(name, None)] == []


async def test_everybodys_tool_that_comes_later_hides_somebodys_own_until_it_goes(toys: Toys) -> None:
    registry = Registry([])
    registry.add(named(toys, "mailer", owner="ann"))
    registry.add(named(toys, "mailer"))

    assert registry.find("mailer", "ann").owner is None
    assert len(registry.all("ann")) == 1
    with pytest.raises(NameTaken):
        registry.check(named(toys, "mailer", owner="ann"), instead=True)
    registry.replace(named(toys, "mailer", owner="ann", title="New"))
    registry.remove("mailer", None)

    assert registry.find("mailer", "ann").title == "New"


async def test_a_call_by_an_alias_keeps_its_name_and_counts_for_the_tool(crib: Crib, toys: Toys) -> None:
    await crib.open()
    adapt = Alias("say_again", lambda raw: {"text": raw["words"]})
    crib.services.dispatcher.registry.add(named(toys, "answer", aliases=(adapt,)))

    call = await crib.run("say_again", {"words": "hello"})

    assert (call["tool"], call["arguments"]) == ("say_again", {"words": "hello"})
    assert call["result"]["output"] == "hello"
    assert dict(crib.services.call_stats.ends) == {("answer", "completed", ""): 1}


async def test_tools_of_principals_are_counted_as_one(crib: Crib, toys: Toys) -> None:
    await crib.open()
    for name in ("first_own", "second_own"):
        crib.services.dispatcher.registry.add(named(toys, name, owner="admin"))
        await crib.run(name, {"text": "x"})

    assert dict(crib.services.call_stats.ends) == {("own", "completed", ""): 2}


async def test_a_tool_that_is_removed_while_it_runs_goes_on_and_its_output_is_kept(crib: Crib, toys: Toys) -> None:
    await crib.open()
    registry = crib.services.dispatcher.registry
    [wait] = [tool for tool in toys.tools if tool.name == "wait_free"]
    registry.add(replace(wait, name="passing"))
    finishing = crib.submit("passing", {"name": "finishing", "say": "as far as this"})
    stopping = crib.submit("passing", {"name": "stopping", "say": "as far as this"})
    await crib.started("finishing")
    await crib.started("stopping")

    registry.remove("passing", None)
    crib.toys.go["finishing"].set()
    await crib.cancel(stopping)
    finished, stopped = await crib.ended(finishing), await crib.ended(stopping)

    assert (finished["status"], finished["result"]["output"]) == ("completed", "finishing")
    assert (stopped["error"]["code"], stopped["result"]["output"]) == ("Canceled", "as far as this")


def served(toys: Toys, name: str, raw: str, *aliases: str, owner: str | None = None) -> Tool:
    """A tool of an MCP server."""
    origin = Origin("server", {"name": raw})
    return named(toys, name, owner=owner, origin=origin, aliases=tuple(map(Alias, aliases)))


def test_the_tools_of_servers_come_and_go_as_a_whole(toys: Toys) -> None:
    registry = Registry([named(toys, "mailer")])
    registry.replace_server_tools([served(toys, "mcp__a__x", "x"), served(toys, "mcp__a__y", "y", "a__y")], None)
    registry.replace_server_tools([served(toys, "mcp__b__x", "x", "b__x", owner="ann")], "ann")

    assert [tool.name for tool in registry.all("ann")] == ["mailer", "mcp__a__x", "mcp__a__y", "mcp__b__x"]
    assert [tool.name for tool in registry.all("bob")] == ["mailer", "mcp__a__x", "mcp__a__y"]
    assert registry.find("b__x", "ann").name == "mcp__b__x"
    assert registry.get("b__x", "bob") is None
    registry.replace_server_tools([served(toys, "mcp__a__z", "z")], None)
    registry.replace_server_tools([], "ann")

    assert [tool.name for tool in registry.all("ann")] == ["mailer", "mcp__a__z"]
    assert registry.get("a__y", None) is registry.get("b__x", "ann") is None


def test_a_tool_of_a_server_finds_no_room_where_another_tool_is(toys: Toys) -> None:
    registry = Registry([named(toys, "mcp__a__x")])

    late = registry.replace_server_tools([served(toys, "mcp__a__x", "x", "a__x"), served(toys, "mcp__a__y", "y")], None)

    assert late == ["mcp__a__x"]
    assert registry.find("mcp__a__x", None).origin is None
    assert registry.get("a__x", None) is None
    assert registry.names_in_use(None) == {"mcp__a__x"}


def test_an_alias_of_a_servers_tool_gives_way_to_everything_else(toys: Toys) -> None:
    registry = Registry([])
    registry.replace_server_tools(
        [served(toys, "mcp__a__x", "x", "a__x"), served(toys, "mcp__a__y", "y", "a__y")], None
    )

    registry.add(named(toys, "a__x"))
    registry.add(named(toys, "other", aliases=(Alias("a__y"),)))

    assert registry.find("a__x", None).name == "a__x"
    assert registry.find("a__y", None).name == "other"
    assert registry.names_in_use(None) == {"a__x", "other", "a__y"}


def test_nobody_takes_the_place_of_a_servers_tool(toys: Toys) -> None:
    registry = Registry([])
    registry.replace_server_tools([served(toys, "mcp__a__x", "x", owner="ann")], "ann")

    with pytest.raises(NameTaken, match="server"):
        registry.replace(named(toys, "mcp__a__x", owner="ann"))
    with pytest.raises(NameTaken):
        registry.add(named(toys, "mcp__a__x", owner="ann"))

    assert registry.find("mcp__a__x", "ann").origin is not None


def test_who_wants_to_know_hears_which_names_come_and_go(toys: Toys) -> None:
    registry, heard = Registry([]), list[str]()
    registry.on_change = heard.append

    registry.add(named(toys, "mailer"))
    registry.replace_server_tools([served(toys, "mcp__a__x", "x")], None)
    registry.remove("mailer", None)

    assert heard == ["mailer", "mailer"]
