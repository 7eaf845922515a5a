"""What a server lists is read page by page and tool by tool; what is wrong with one costs only that one."""

import asyncio
from typing import Any

import pytest

from app.core.util.json_codec import Raw
from app.mcp.client import catalog
from app.mcp.client.catalog import Catalog, Invalid, fingerprint, pack, read_catalog, unpack
from app.mcp.client.interfaces import ConnectionLost, JsonRpcError, ServerInfo
from tests.support.fake_mcp_connections import HELLO, FakeLink, http, listing, stdio
from tests.support.services import HANG

ANYTHING = {"type": "object"}
NO_SCHEMA = "Its inputSchema is missing or not an object."
NO_TOOLS = ServerInfo(version="2025-11-25", capabilities={}, info={})


async def listed(*tools: Any) -> Catalog:
    return await read_catalog(FakeLink({"tools/list": {"tools": list(tools)}}), stdio())


def names(catalogue: Catalog) -> list[str]:
    return [tool["name"] for tool in catalogue.tools]


async def test_tools_are_kept_as_they_came_with_all_they_say() -> None:
    tool = {"name": "a b", "inputSchema": {"type": "object", "x-y": 1}, "icons": [{"src": "x"}], "vendor": {"deep": []}}

    catalogue = await listed(tool)

    assert catalogue.tools == (tool,)
    assert catalogue.invalid == ()
    assert catalogue.server_info is HELLO


async def test_a_tool_that_cannot_be_one_costs_only_itself_and_is_told(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str, str]] = [
        (None, "#1", "It is not an object."),
        ("echo", "#1", "It is not an object."),
        ({"inputSchema": ANYTHING}, "#1", "It has no name."),
        ({"name": "", "inputSchema": ANYTHING}, "#1", "It has no name."),
        ({"name": 7, "inputSchema": ANYTHING}, "#1", "It has no name."),
        ({"name": "x" * 1025, "inputSchema": ANYTHING}, "x" * 1024, "Its name has more than 1,024 characters."),
        ({"name": "half\ud800", "inputSchema": ANYTHING}, "half?", "Its name is not valid Unicode."),
        ({"name": "a", "description": 5, "inputSchema": ANYTHING}, "a", "Its description is not a string."),
        ({"name": "a"}, "a", NO_SCHEMA),
        (
            {"name": "a", "inputSchema": []},
            "a",
            NO_SCHEMA,
        ),
        (
            {"name": "a", "inputSchema": {"type": "array"}},
            "a",
            'Its inputSchema has the type "array" instead of object.',
        ),
    ]
    for tool, name, reason in cases:
        with subtests.test(tool=tool, name=name, reason=reason):
            catalogue = await listed(tool, {"name": "good", "inputSchema": ANYTHING})

            assert names(catalogue) == ["good"]
            assert catalogue.invalid == (Invalid(name, reason),)


@pytest.mark.parametrize("schema", [{}, {"properties": {}}, {"type": ["object", "null"]}, {"type": "object"}])
async def test_arguments_are_an_object_also_where_a_schema_does_not_say_so(schema: Raw) -> None:
    catalogue = await listed({"name": "a", "inputSchema": schema})

    assert catalogue.tools[0]["inputSchema"] == schema | {"type": "object"}
    assert catalogue.invalid == ()


async def test_of_tools_with_one_name_the_first_is_kept() -> None:
    catalogue = await listed(*({"name": "a", "description": word, "inputSchema": ANYTHING} for word in ("1", "2", "3")))

    assert [tool["description"] for tool in catalogue.tools] == ["1"]
    assert [one.name for one in catalogue.invalid] == ["a", "a"]


async def test_pages_follow_each_other() -> None:
    pages = {None: listing("a") | {"nextCursor": "two"}, "two": listing("b") | {"nextCursor": ""}}
    link = FakeLink({"tools/list": lambda params: pages[params.get("cursor")]})

    catalogue = await read_catalog(link, stdio())

    assert names(catalogue) == ["a", "b"]
    assert [params for _, params in link.asked] == [{}, {"cursor": "two"}]


async def test_a_cursor_that_comes_twice_is_not_followed_twice() -> None:
    link = FakeLink({"tools/list": lambda params: listing(f"t{len(link.asked)}") | {"nextCursor": "again"}})

    catalogue = await read_catalog(link, stdio())

    assert names(catalogue) == ["t1", "t2"]
    assert "same cursor twice" in catalogue.invalid[0].reason


async def test_pages_without_end_are_left_at_some_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MAX_PAGES", 5)
    link = FakeLink({"tools/list": lambda params: {"tools": [], "nextCursor": str(len(link.asked))}})

    catalogue = await read_catalog(link, stdio())

    assert len(link.asked) == 5
    assert "more than 5 pages" in catalogue.invalid[0].reason


async def test_a_list_that_is_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = await listed(*({"name": f"t{n}", "inputSchema": ANYTHING} for n in range(2500)))

    assert len(catalogue.tools) == 2000
    assert [one.name for one in catalogue.invalid] == ["*"]
    monkeypatch.setattr(catalog, "MAX_BYTES", 1000)
    short = await listed(*({"name": f"t{n}", "description": "x" * 300, "inputSchema": ANYTHING} for n in range(9)))
    assert names(short) == ["t0", "t1"]


async def test_only_so_much_is_told_of_what_is_wrong() -> None:
    catalogue = await listed(*[None] * 500)

    assert len(catalogue.invalid) == 100


async def test_what_is_nested_too_deep_costs_only_itself() -> None:
    deep: Raw = {}
    for _ in range(100_000):
        deep = {"properties": deep}

    catalogue = await listed({"name": "deep", "inputSchema": deep}, {"name": "good", "inputSchema": ANYTHING})

    assert names(catalogue) == ["good"]
    assert catalogue.invalid == (Invalid("#1", "It is nested too deep."),)


@pytest.mark.parametrize("answer", [{}, {"tools": None}, {"tools": {}}])
async def test_a_list_that_is_none_is_told(answer: Raw) -> None:
    catalogue = await read_catalog(FakeLink({"tools/list": answer}), stdio())

    assert (catalogue.tools, [one.name for one in catalogue.invalid]) == ((), ["*"])


async def test_a_server_that_never_said_it_has_tools_may_have_none() -> None:
    answers: dict[str, Any] = {"tools/list": JsonRpcError(-32601, "what?")}

    assert (await read_catalog(FakeLink(answers, NO_TOOLS), stdio())).tools == ()
    with pytest.raises(JsonRpcError):
        await read_catalog(FakeLink(answers), stdio())


async def test_a_server_that_forgot_to_say_that_it_has_tools_has_them() -> None:
    assert names(await read_catalog(FakeLink({"tools/list": listing("a")}, NO_TOOLS), stdio())) == ["a"]


async def test_it_does_not_take_longer_than_a_start_may_take() -> None:
    link = FakeLink({"tools/list": listing("a")})
    link.held.clear()

    async with asyncio.timeout(HANG):
        with pytest.raises(TimeoutError):
            await read_catalog(link, stdio(startup_timeout=0.01))
    link.lose()
    link.held.set()
    with pytest.raises(ConnectionLost):
        await read_catalog(link, stdio())


async def test_the_operator_chooses_by_the_servers_own_names() -> None:
    catalogue = await listed(*listing("a", "b", "a.b")["tools"])

    assert [tool["name"] for tool in catalogue.allowed_tools(stdio(allowed_tools=["a", "a.b", "other"]))] == [
        "a",
        "a.b",
    ]
    assert [tool["name"] for tool in catalogue.allowed_tools(stdio(denied_tools=["a"]))] == ["b", "a.b"]
    assert [tool["name"] for tool in catalogue.allowed_tools(stdio(allowed_tools=["a"], denied_tools=["a"]))] == []


async def test_what_is_kept_comes_back_as_it_was() -> None:
    catalogue = await listed({"name": "ä", "inputSchema": ANYTHING, "big": 10**30}, None)

    assert unpack(pack(catalogue)) == catalogue


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"of": 1}', '{"of":"","hello":{},"tools":[],"invalid":[]}'])
def test_what_is_no_catalogue_is_refused(body: str) -> None:
    with pytest.raises(ValueError, match="not a catalog"):
        unpack(body)


def test_a_server_is_the_same_as_long_as_its_program_or_address_is() -> None:
    same = [stdio(), stdio(call_timeout=5), stdio(env={"A": "b"}), stdio("other")]
    others = [
        stdio(command="x"),
        stdio(args=["x"]),
        stdio(cwd="/x"),
        http(),
        http(url="https://x.example"),
        http(kind="sse"),
    ]

    assert len({fingerprint(one) for one in same}) == 1
    assert len({fingerprint(one) for one in [same[0], *others]}) == 7
