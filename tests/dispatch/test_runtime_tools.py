"""Tools that are registered at run time: kept, told of, and seen by their owner only."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from app import service
from app.core.custom_tools import ClientDefinition, HttpDefinition, OpenApiImport, Skipped
from app.core.results import Result
from app.core.sessions import Session
from app.core.tools import Context, Tool
from app.dispatch.tools import runtime_tools as books
from app.dispatch.tools.registry import NameTaken
from app.dispatch.tools.runtime_tools import InvalidDefinition, RuntimeTools
from tests.support.services import HANG, Crib
from tests.support.toy_tools import Toys


def toy_maker(definition: HttpDefinition, owner: str | None) -> Tool:
    """Makes a tool that says where it would go."""
    if "refused" in definition.url:
        raise ValueError("That address is not one for tools.")

    async def run(args: Any, ctx: Context) -> Result:
        return Result(output=f"{definition.method} {definition.url}")

    echo = Toys().tools[0]
    return replace(echo, name=definition.name, description=definition.description, run=run, source="http", owner=owner)


def defined(name: str = "get_weather", **more: Any) -> HttpDefinition:
    given = {"name": name, "description": "Tell the weather.", "kind": "http", "url": "https://a.example/x"}
    return HttpDefinition(**given | more)


@pytest.fixture
async def crib(crib: Crib, monkeypatch: pytest.MonkeyPatch) -> Crib:
    monkeypatch.setitem(service.MAKERS, "http", toy_maker)
    await crib.open()
    return crib


@pytest.fixture
def book(crib: Crib) -> RuntimeTools:
    return crib.services.runtime_tools


def told(crib: Crib) -> list[tuple[str, dict[str, list[str]]]]:
    events = [event for event in crib.events() if event["type"] == "tools.changed"]
    return [(event["principal"], {k: v for k, v in json.loads(event["data"]).items() if v}) for event in events]


async def said(crib: Crib, tool: str, principal: str = "admin") -> str:
    live = crib.services.dispatcher.submit(crib.request(tool), Session(principal, "default"))
    call = await crib.ended(live)
    return str(call["result"]["output"] if call["result"] else call["error"]["code"])


async def test_a_registered_tool_can_be_called_and_is_still_there_after_a_restart(
    crib: Crib, book: RuntimeTools
) -> None:
    tool, is_new = await book.register(defined(), "admin", replace=False)

    assert (tool.name, is_new) == ("get_weather", True)
    assert await said(crib, "get_weather") == "GET https://a.example/x"
    await crib.close()
    await crib.open()
    assert await said(crib, "get_weather") == "GET https://a.example/x"
    assert told(crib) == [("admin", {"added": ["get_weather"]})]


async def test_two_principals_with_one_name_do_not_see_each_other(crib: Crib, book: RuntimeTools) -> None:
    await book.register(defined(url="https://a.example/ann"), "ann", replace=False)
    await book.register(defined(url="https://a.example/bob"), "bob", replace=False)
    await crib.close()
    await crib.open()

    assert await said(crib, "get_weather", "ann") == "GET https://a.example/ann"
    assert await said(crib, "get_weather", "bob") == "GET https://a.example/bob"
    assert await said(crib, "get_weather", "eve") == "UnknownTool"
    assert await crib.services.runtime_tools.remove("get_weather", "ann")
    assert await said(crib, "get_weather", "ann") == "UnknownTool"
    assert await said(crib, "get_weather", "bob") == "GET https://a.example/bob"
    assert told(crib) == [
        ("ann", {"added": ["get_weather"]}),
        ("bob", {"added": ["get_weather"]}),
        ("ann", {"removed": ["get_weather"]}),
    ]


async def test_a_taken_name_needs_replace_and_replaces_only_what_was_registered(crib: Crib, book: RuntimeTools) -> None:
    await book.register(defined(), "ann", replace=False)
    with pytest.raises(NameTaken, match="get_weather is the name of a tool already"):
        await book.register(defined(), "ann", replace=False)

    _, is_new = await book.register(defined(url="https://a.example/new"), "ann", replace=True)

    assert not is_new
    assert await said(crib, "get_weather", "ann") == "GET https://a.example/new"
    for owner in ("ann", None):
        with pytest.raises(NameTaken, match="echo is the name of a tool already"):
            await book.register(defined("echo"), owner, replace=True)
    assert [row["definition"].count("/new") for row in crib.rows("SELECT * FROM tools")] == [1]
    assert told(crib)[-1] == ("ann", {"changed": ["get_weather"]})


async def test_everybodys_tool_is_everybodys_and_everybody_is_told(crib: Crib, book: RuntimeTools) -> None:
    keyring = crib.services.keyring
    key = keyring.find(crib.settings["api_key"])
    assert key is not None
    keyring.put(replace(key, id="key_ann", principal="ann", digest="f" * 64))

    await book.register(defined(), None, replace=False)

    assert await said(crib, "get_weather", "eve") == "GET https://a.example/x"
    assert told(crib) == [("admin", {"added": ["get_weather"]}), ("ann", {"added": ["get_weather"]})]
    with pytest.raises(NameTaken):
        await book.register(defined(), "ann", replace=True)
    await crib.close()
    await crib.open()
    assert await said(crib, "get_weather", "eve") == "GET https://a.example/x"


async def test_of_those_who_want_one_name_at_once_one_gets_it(crib: Crib, book: RuntimeTools) -> None:
    async with asyncio.timeout(HANG):
        wanting = (book.register(defined(url=f"https://a.example/{n}"), "ann", replace=False) for n in range(5))
        outcomes = await asyncio.gather(*wanting, return_exceptions=True)

    [(tool, is_new)] = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert is_new
    assert sum(isinstance(outcome, NameTaken) for outcome in outcomes) == 4
    assert crib.services.dispatcher.registry.get("get_weather", "ann") is tool
    assert told(crib) == [("ann", {"added": ["get_weather"]})]


async def test_what_nobody_waits_for_any_more_happens_all_the_same(crib: Crib, book: RuntimeTools) -> None:
    asking = asyncio.create_task(book.register(defined(), "ann", replace=False))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await crib.services.writer.submit(lambda batch: None)

    assert [row["name"] for row in crib.rows("SELECT * FROM tools")] == ["get_weather"]
    assert await said(crib, "get_weather", "ann") == "GET https://a.example/x"


async def test_what_the_store_refuses_did_not_happen(crib: Crib, book: RuntimeTools) -> None:
    crib.change("CREATE TRIGGER refuse BEFORE INSERT ON tools BEGIN SELECT RAISE(ABORT, 'disk I/O error'); END")

    with pytest.raises(Exception, match="disk I/O error"):
        await book.register(defined(), "ann", replace=False)

    assert crib.services.dispatcher.registry.get("get_weather", "ann") is None
    assert not book.holds("get_weather", "ann")
    assert told(crib) == []


async def test_what_is_removed_is_forgotten_and_what_was_not_there_is_not_told(crib: Crib, book: RuntimeTools) -> None:
    await book.register(defined(), "ann", replace=False)

    assert [await book.remove("get_weather", owner) for owner in ("bob", None, "ann", "ann")] == [
        False,
        False,
        True,
        False,
    ]
    assert not await book.remove("echo", None)
    assert crib.rows("SELECT * FROM tools") == []
    assert len(told(crib)) == 2


@pytest.mark.parametrize(
    ("definition", "sentence"),
    [
        (defined(url="https://refused.example"), "That address is not one for tools."),
        (ClientDefinition(name="on_screen", description="x", kind="client"), "This service has no tools of kind clie"),
        (defined(parameters={"x": "y" * 300_000}), "The definition of get_weather is larger than 262,144 bytes."),
        (
            defined(headers={"Authorization": "Bearer ghp_" + "a" * 36}),
            "The definition of get_weather contains what look",
        ),
        (
            defined(url="https://user:hunter22@a.example/"),
            "The definition of get_weather contains what looks like a sec",
        ),
    ],
)
async def test_what_cannot_be_made_is_refused_in_a_sentence(
    book: RuntimeTools, monkeypatch: pytest.MonkeyPatch, definition: Any, sentence: str
) -> None:
    monkeypatch.delitem(service.MAKERS, "client")
    with pytest.raises(InvalidDefinition, match=sentence[:40]) as refused:
        await book.register(definition, "ann", replace=False)

    assert str(refused.value).startswith(sentence)


async def test_what_looks_like_a_secret_in_the_words_is_redacted(crib: Crib, book: RuntimeTools) -> None:
    token = "ghp_" + "a" * 36

    tool, _ = await book.register(defined(description=f"As in {token}."), "ann", replace=False)

    assert tool.description == "As in [redacted]."
    assert token not in crib.rows("SELECT definition FROM tools")[0]["definition"]


async def test_the_number_of_tools_is_bounded_for_each_owner(
    book: RuntimeTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "MAX_OWNED", 2)
    for name in ("first", "second"):
        await book.register(defined(name), "ann", replace=False)

    with pytest.raises(InvalidDefinition, match="No more than 2 tools are stored for one owner"):
        await book.register(defined("third"), "ann", replace=False)
    await book.register(defined("second"), "ann", replace=True)
    await book.register(defined("third"), "bob", replace=False)


async def test_a_kept_tool_that_does_not_fit_any_more_is_reported_and_costs_only_itself(
    crib: Crib, book: RuntimeTools, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("fits", "no_json", "old_kind", "odd_url", "echo_soon"):
        await book.register(defined(name), None, replace=False)
    await crib.close()
    crib.change("UPDATE tools SET definition = '{' WHERE name = 'no_json'")
    crib.change("UPDATE tools SET definition = replace(definition, '\"http\"', '\"soap\"') WHERE name = 'old_kind'")
    crib.change("UPDATE tools SET definition = replace(definition, 'a.ex', 'refused.ex') WHERE name = 'odd_url'")
    crib.change(
        "UPDATE tools SET name = 'echo', definition = replace(definition, 'echo_soon', 'echo') WHERE name = 'echo_soon'"
    )

    await crib.open()

    assert await said(crib, "fits") == "GET https://a.example/x"
    assert await said(crib, "echo") == ""
    for name in ("no_json", "old_kind", "odd_url"):
        assert await said(crib, name) == "UnknownTool"
        assert f"the registered tool {name} of all principals cannot be used" in caplog.text
    assert (
        "the registered tool echo of all principals cannot be used: echo is the name of a tool already" in caplog.text
    )


async def imported(asked: OpenApiImport, principal: str) -> tuple[list[HttpDefinition], list[Skipped]]:
    """A toy of an importer: the document names its operations."""
    if asked.url is not None:
        raise ValueError(f"There is nothing at {asked.url}.")
    assert isinstance(asked.document, dict)
    return [defined(asked.prefix + name) for name in asked.document["names"]], [Skipped("upload", "No JSON.")]


async def test_operations_of_an_api_become_tools_in_one_commit(crib: Crib, book: RuntimeTools) -> None:
    book._importer = imported
    await book.register(defined("api_taken"), "ann", replace=False)
    asked = OpenApiImport(document={"names": ["one", "taken", "two", "two"]}, prefix="api_")

    tools, skipped = await book.import_api(asked, "ann", "ann", replace=False)
    again, skipped_again = await book.import_api(asked, "ann", "ann", replace=True)

    assert [tool.name for tool in tools] == ["api_one", "api_two"]
    assert skipped == [
        Skipped("upload", "No JSON."),
        Skipped("api_taken", "api_taken is the name of a tool already."),
        Skipped("api_two", "api_two is the name of a tool already."),
    ]
    assert [tool.name for tool in again] == ["api_one", "api_taken", "api_two"]
    assert skipped_again == [skipped[0], skipped[2]]
    assert told(crib)[1:] == [
        ("ann", {"added": ["api_one", "api_two"]}),
        ("ann", {"changed": ["api_one", "api_taken", "api_two"]}),
    ]
    with pytest.raises(InvalidDefinition, match="There is nothing at https://nowhere"):
        await book.import_api(OpenApiImport(url="https://nowhere"), "ann", "ann", replace=False)
