"""What the tools of servers are called: legal, never the same for two, whoever came first."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.mcp.client import tool_names
from app.mcp.client.tool_names import Identity, aliases, assign, plain

LEGAL = re.compile(r"^[a-zA-Z][a-zA-Z0-9_]{2,63}\Z")

SERVERS = st.from_regex(r"\A[a-b](?:[a.-]?[a-b]){0,2}\Z")
TOOLS = st.text("ab.-_ é日", min_size=1, max_size=4) | st.text("ab._", min_size=55, max_size=70) | st.text(min_size=1)
IDENTITIES = st.lists(st.builds(Identity, SERVERS, TOOLS), max_size=12)
LONG = "extremely_lengthy_function_name_that_absolutely_surpasses_all_reasonable_limits"


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("server1", "tool1", "mcp__server1__tool1"),
        ("server.one", "tool.two", "mcp__server_one__tool_two"),
        ("my-srv", "foo.bar", "mcp__my_srv__foo_bar"),
        ("jp", "日本", "mcp__jp____"),
        ("my_server", LONG, "mcp__my_server__extremel119a2b97664e41363932dc84de21e2ff1b93b3e9"),
        ("my_server", f"yet_another_{LONG}", "mcp__my_server__yet_anot419a82a89325c1b477274a41f8c65ea5f3a7f341"),
    ],
)
def test_a_tool_is_called_after_its_server_and_itself(server: str, tool: str, name: str) -> None:
    assert assign([Identity(server, tool)]) == {Identity(server, tool): name}


def test_a_name_of_just_64_characters_stays_as_it_is() -> None:
    whole = Identity("s", "x" * (64 - len("mcp__s__")))

    assert assign([whole])[whole] == f"mcp__s__{whole.tool}"


def test_all_who_want_one_name_get_a_mark_of_their_own() -> None:
    tools = [Identity("my-srv", "foo"), Identity("my_srv", "foo"), Identity("my_srv", "bar")]

    named = assign(tools)

    assert named[tools[2]] == "mcp__my_srv__bar"
    assert {re.sub(r"[0-9a-f]{12}\Z", "#", named[tool]) for tool in tools[:2]} == {"mcp__my_srv__foo_#"}
    assert len(set(named.values())) == 3


def test_what_another_tool_is_called_is_wanted_by_two() -> None:
    tool = Identity("a", "b")

    named = assign([tool], taken={"mcp__a__b"})

    assert re.fullmatch(r"mcp__a__b_[0-9a-f]{12}", named[tool])


def test_a_mark_that_leads_to_a_name_in_use_is_made_anew() -> None:
    pair = [Identity("a", "b.c"), Identity("a", "b_c")]
    marked = assign(pair)[pair[0]]
    rival = Identity("a", marked.removeprefix("mcp__a__"))

    named = assign([*pair, rival])

    assert named[rival] == marked
    assert named[pair[0]] not in (marked, "mcp__a__b_c")
    assert LEGAL.match(named[pair[0]])
    assert assign(pair, taken={marked})[pair[0]] == named[pair[0]]


@given(IDENTITIES, st.sets(st.sampled_from(["mcp__a__a", "mcp__a__b", "mcp__a_a__a", "mcp__b___"])))
def test_no_two_tools_have_one_name_and_every_name_is_legal(tools: list[Identity], taken: set[str]) -> None:
    named = assign(tools, taken)

    assert named.keys() == set(tools)
    assert len(set(named.values())) == len(named)
    assert not taken & set(named.values())
    assert all(LEGAL.match(name) for name in named.values())


@given(IDENTITIES.flatmap(lambda tools: st.tuples(st.just(tools), st.permutations(tools))))
def test_the_order_does_not_matter(orders: tuple[list[Identity], list[Identity]]) -> None:
    first, second = orders

    assert assign(first) == assign(second)
    assert aliases(assign(first)) == aliases(assign(second))


@given(IDENTITIES, st.builds(Identity, SERVERS, TOOLS))
def test_a_tool_that_wants_a_name_of_its_own_changes_no_other(tools: list[Identity], other: Identity) -> None:
    before = assign(tools)
    if plain(other) in {*map(plain, tools), *before.values()}:
        return

    after = assign([*tools, other])

    assert {tool: name for tool, name in after.items() if tool != other} == before
    assert after[other] == plain(other)


@given(IDENTITIES, st.sets(st.sampled_from(["a__a", "a__b", "b__a"])))
def test_an_alias_means_one_tool_and_nothing_else(tools: list[Identity], taken: set[str]) -> None:
    named = assign(tools)

    known = aliases(named, taken)

    assert len(set(known.values())) == len(known)
    assert not set(known.values()) & (taken | set(named.values()))
    assert all(re.fullmatch(r"[a-zA-Z0-9_]{3,64}", alias) for alias in known.values())


def test_the_short_form_is_an_alias_where_it_is_clear() -> None:
    tools = [Identity("time", "now"), Identity("my-srv", "foo"), Identity("my_srv", "foo"), Identity("x", "y" * 80)]

    assert aliases(assign(tools)) == {tools[0]: "time__now"}
    assert aliases(assign(tools), taken={"time__now"}) == {}


def test_a_name_that_is_no_proper_text_still_gets_one() -> None:
    broken = Identity("s", "\ud800" * 60)

    assert LEGAL.match(assign([broken])[broken])
    assert tool_names.plain(broken) == assign([broken])[broken]
