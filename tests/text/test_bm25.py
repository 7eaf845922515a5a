"""Ranking: what every order must hold, and what a reader would expect of some queries."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.bm25 import rank, words


def tool(name: str, description: str = "", title: str = "", **parameters: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in parameters}}
    return {"name": name, "title": title, "description": description, "parameters": schema}


TOOLS = [
    tool("read_file", "Read a text file with line numbers.", "Read file", file_path=1, offset=1, limit=1),
    tool("write_file", "Create a file or replace what is in it.", "Write file", file_path=1, content=1),
    tool("list_dir", "List the entries of a directory as a tree.", "List dir", dir_path=1, depth=1),
    tool("grep_files", "Search file contents by regular expression.", "Grep files", pattern=1, path=1),
    tool("apply_patch", "Edit several files at once by a patch.", "Apply patch", input=1),
    tool("exec_command", "Run a shell command in a terminal.", "Exec command", cmd=1, workdir=1),
    tool("web_search", "Search the web for pages about a topic.", "Web search", query=1),
    tool("fetchUrl", "Fetch a page by its address.", "Fetch URL", url=1),
    tool("mcp__github__createIssue", "Open an issue in a repository.", "Create issue", repo=1, body=1),
    tool("mcp__github__list_pull_requests", "List pull requests of a repository.", "List pull requests", repo=1),
    tool("send_mail", "Send a message to somebody.", "Send mail", recipientAddress=1, body=1),
    tool("update_plan", "Write down the plan, step by step.", "Update plan", plan=1),
]


def test_the_tools_a_reader_would_name_come_first(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[str]]] = [
        ("read file", ["read_file"]),
        ("readFile", ["read_file"]),
        ("READ-FILES", ["read_file"]),
        ("search", ["web_search", "grep_files"]),
        ("search file contents", ["grep_files"]),
        ("regular expressions", ["grep_files"]),
        ("directories", ["list_dir"]),
        ("url", ["fetchUrl"]),
        ("create issue", ["mcp__github__createIssue"]),
        ("github pull request", ["mcp__github__list_pull_requests", "mcp__github__createIssue"]),
        ("repositories", ["mcp__github__createIssue", "mcp__github__list_pull_requests"]),
        ("recipient address", ["send_mail", "fetchUrl"]),
        ("workdir", ["exec_command"]),
        ("patches", ["apply_patch"]),
        ("how can I run a shell command?", ["exec_command"]),
    ]
    for query, best in cases:
        with subtests.test(query=query, best=best):
            assert [found["name"] for found in rank(query, TOOLS)][: len(best)] == best


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("readFile", ["read", "file"]),
        ("read_file-name.txt", ["read", "file", "name", "txt"]),
        ("HTTPServer", ["http", "server"]),
        ("parseJSON2", ["parse", "json2"]),
        ("queries boxes classes searches files", ["query", "box", "class", "search", "file"]),
        ("class status is this bus gas", ["class", "status", "is", "this", "bus", "gas"]),
        ("Größe naïve 文件", ["größe", "naïve", "文件"]),
        (" _ -- ", []),
    ],
)
def test_words_are_plain(text: str, plain: list[str]) -> None:
    assert list(words(text)) == plain


def test_a_name_counts_more_than_a_description_and_a_rare_word_more_than_a_common_one() -> None:
    by_name, by_text = tool("weather", "Tells something."), tool("tells", "The weather of something.")
    common, rare = tool("aaa", "file file"), tool("bbb", "file zebra")
    others = [tool(f"ccc{number}", "file") for number in range(5)]

    assert rank("weather", [by_text, by_name])[0] is by_name
    assert rank("zebra file", [common, rare, *others])[0] is rare


def test_parameters_are_found_inside_other_parameters() -> None:
    inner = {"type": "object", "properties": {"postcode": {"type": "string"}}}
    nested = tool("ship") | {"parameters": {"properties": {"to": {"anyOf": [inner, {"type": "null"}]}}}}
    referring = tool("bill") | {"parameters": {"$defs": {"Place": inner}, "properties": {"to": {"$ref": "x"}}}}

    assert [found["name"] for found in rank("postcode", [nested, referring])] == ["bill", "ship"]


def test_nothing_is_found_where_nothing_is() -> None:
    assert rank("read", []) == []
    assert rank("", TOOLS) == []
    assert rank("???", TOOLS) == []
    assert rank("read", [tool("")]) == []


LETTERS = st.text("abc_ ", max_size=12)
SHELVES = st.lists(st.builds(tool, LETTERS, LETTERS, LETTERS), max_size=8, unique_by=lambda one: one["name"])


@given(LETTERS, SHELVES)
def test_exactly_those_are_found_that_share_a_word(query: str, shelf: list[dict[str, Any]]) -> None:
    def its_words(one: dict[str, Any]) -> set[str]:
        return {word for field in ("name", "title", "description") for word in words(one[field])}

    found = [one["name"] for one in rank(query, shelf)]

    assert sorted(found) == sorted(one["name"] for one in shelf if its_words(one) & set(words(query)))


@given(LETTERS, SHELVES, st.randoms())
def test_the_order_does_not_depend_on_the_order_before(query: str, shelf: list[dict[str, Any]], chance: Any) -> None:
    shuffled = chance.sample(shelf, len(shelf))

    assert rank(query, shuffled) == rank(query, shelf)


@given(LETTERS, SHELVES)
def test_equals_stand_in_the_order_of_their_names(text: str, shelf: list[dict[str, Any]]) -> None:
    twins = [tool(name, text) for name in ("zz", "mm", "dd")]

    found = [one["name"] for one in rank(text, [*twins, *shelf])]

    assert [name for name in found if name in ("zz", "mm", "dd")] == (["dd", "mm", "zz"] if list(words(text)) else [])


@given(SHELVES, st.sampled_from(["a", "b", "c"]))
def test_one_more_word_of_the_query_in_a_name_never_makes_it_worse(shelf: list[dict[str, Any]], word: str) -> None:
    for one in shelf:
        better = one | {"name": f"{one['name']} {word}"}
        before = [found["name"] for found in rank(word, shelf)]
        after = [found["name"] for found in rank(word, [better if each is one else each for each in shelf])]

        assert better["name"] in after
        if one["name"] in before:
            beaten = set(before[before.index(one["name"]) + 1 :])
            assert beaten <= set(after[after.index(better["name"]) + 1 :])
