"""SEARCH/REPLACE blocks: how they are read, and where they belong."""

import pytest

from app.core.errors import InvalidArgs
from app.text.edit.fences import SHELLS, TAGS
from app.text.edit.line_buffer import LineBuffer
from app.text.edit.search_replace import Block, find, parse

EDIT = "<<<<<<< SEARCH\none\n=======\ntwo\n>>>>>>> REPLACE"


def paths(content: str, path: str | None = None) -> list[str]:
    return [block.path for block in parse(content, path)[0]]


def replaced(text: str, search: str, replace: str) -> tuple[str, str, int] | None:
    """What a block makes of a text: the rule, the text, and how many places there were."""
    script = LineBuffer(text)
    match = find(script, search.splitlines(), replace.splitlines())
    if match is None:
        return None
    script.apply(match.splices)
    return match.strategy, script.text, match.places


def test_a_block_is_a_path_what_is_looked_for_and_what_comes_instead() -> None:
    content = f"I will change this:\n\nsrc/a.py\n```python\n{EDIT}\n```\n\nDone."

    assert parse(content) == ([Block("src/a.py", ("one",), ("two",), 5)], [])


@pytest.mark.parametrize("signs", [5, 7, 9])
@pytest.mark.parametrize("tail", ["", ">", "  "])
def test_markers_have_five_to_nine_signs_and_may_be_indented(signs: int, tail: str) -> None:
    content = f"a\n  {'<' * signs} SEARCH{tail}\n one\n {'=' * signs} \ntwo\n  {'>' * signs} REPLACE  "

    assert parse(content)[0] == [Block("a", (" one",), ("two",), 2)]


@pytest.mark.parametrize(
    "head", ["<<<< SEARCH", "<<<<<<<<<< SEARCH", "<<<<<<< search", "<<<<<<<SEARCH", "<<<<<<< SEARCH x"]
)
def test_what_is_no_marker_begins_no_block(head: str) -> None:
    with pytest.raises(InvalidArgs, match="there is none"):
        parse(f"a\n{head}\none\n=======\ntwo\n>>>>>>> REPLACE")


def test_lines_of_windows_are_read_as_lines() -> None:
    assert parse(f"a.py\n{EDIT}".replace("\n", "\r\n"))[0] == [Block("a.py", ("one",), ("two",), 2)]


def test_either_side_may_be_empty() -> None:
    content = "a.py\n<<<<<<< SEARCH\n=======\nx\n>>>>>>> REPLACE\n<<<<<<< SEARCH\n\ny\n=======\n>>>>>>> REPLACE"

    made, removed = parse(content)[0]

    assert (made.search, made.replace, made.is_addition) == ((), ("x",), True)
    assert (removed.search, removed.replace, removed.is_addition) == (("", "y"), (), False)


def test_a_second_divider_ends_a_block_without_its_last_marker() -> None:
    content = "a.py\n<<<<<<< SEARCH\none\n=======\ntwo\n=======\nprose\n" + EDIT

    assert [block.replace for block in parse(content)[0]] == [("two",), ("two",)]


def test_a_second_divider_right_before_the_last_marker_belongs_to_it() -> None:
    content = "a.py\n<<<<<<< SEARCH\none\n=======\ntwo\n=======\n>>>>>>> REPLACE"

    assert parse(content)[0][0].replace == ("two",)


def test_where_several_lines_may_divide_the_one_with_as_many_signs_as_the_head_does() -> None:
    content = "a.rst\n<<<<<<< SEARCH\nTitle\n=====\n=======\nOther\n=====\n>>>>>>> REPLACE"

    assert parse(content)[0] == [Block("a.rst", ("Title", "====="), ("Other", "====="), 2)]


def test_where_it_is_not_clear_which_line_divides_nothing_is_guessed() -> None:
    content = "a.rst\n<<<<<<< SEARCH\nChanges\n=======\n=======\nNews\n=======\n>>>>>>> REPLACE"

    with pytest.raises(InvalidArgs, match="another number of signs") as caught:
        parse(content)

    assert caught.value.details == {"line": 5}


@pytest.mark.parametrize(
    ("content", "expected", "line"),
    [
        ("a.py\n<<<<<<< SEARCH\none\n>>>>>>> REPLACE", "Expected `=======`", 4),
        ("a.py\n<<<<<<< SEARCH\none", "Expected `=======`", 3),
        ("a.py\n<<<<<<< SEARCH\none\n=======\ntwo\n", "Expected `>>>>>>> REPLACE` or `=======`", 6),
        (f"a.py\n<<<<<<< SEARCH\none\n=======\ntwo\n{EDIT}", "Expected `>>>>>>> REPLACE` or `=======`", 6),
        (f"\n{EDIT}", "No file is named", 2),
        ("Just prose.", "Expected a block that begins with `<<<<<<< SEARCH`", 1),
    ],
)
def test_what_cannot_be_read_is_quoted_up_to_where_it_fails(content: str, expected: str, line: int) -> None:
    with pytest.raises(InvalidArgs) as caught:
        parse(content)

    read, _, said = caught.value.message.partition("^^^ ")
    assert said.startswith(expected)
    assert read.endswith("\n".join(content.split("\n")[:line]) + "\n")
    assert caught.value.details == {"line": line}


def test_of_a_long_text_only_the_end_is_quoted() -> None:
    with pytest.raises(InvalidArgs) as caught:
        parse("prose\n" * 1000 + "prose" * 1000)

    assert len(caught.value.message) < 500


def test_a_file_is_named_on_the_lines_before_through_fences(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "src/a.py",
        "src/a.py\n```python",
        "```python\nsrc/a.py",
        "```\nsrc/a.py",
        " ```python\nsrc/a.py\n```\n```python",
        "src/a.py:\n````",
        "### src/a.py",
        "**src/a.py**",
        "`src/a.py`:",
        "**`src/a.py`**:",
        "# `src/a.py`",
        "Now change `src/a.py` too:",
        "```src/a.py",
        "src/a.py\n```lib/core",
        "```python src/a.py",
        "```python:src/a.py",
        *(f"src/a.py\n<{tag}>" for tag in TAGS),
        *(f"<{tag}>\nsrc/a.py" for tag in TAGS),
        "<source>src/a.py",
    ]
    for before in cases:
        with subtests.test(before=before):
            assert paths(f"Some prose.\n\n{before}\n{EDIT}\n") == ["src/a.py"]


@pytest.mark.parametrize("name", ["Makefile", "a file.txt", "./a", "/abs/a.py", "x.tar.gz", "LICENSE", ".env"])
def test_a_name_needs_no_extension_unless_it_has_blanks(name: str) -> None:
    assert paths(f"{name}\n{EDIT}") == [name]


def test_a_block_that_names_no_file_is_for_that_of_the_block_before(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "",
        "...",
        "And then this:",
        "```",
        "</source>\n<source>",
        "=======",
        "---",
        "x" * 251,
        "src/b.py\n\n",
        "a.py\nb c\n```",
    ]
    for before in cases:
        with subtests.test(before=before):
            assert paths(f"src/a.py\n{EDIT}\n{before}\n{EDIT}") == ["src/a.py", "src/a.py"]


def test_a_block_right_after_another_is_for_the_same_file() -> None:
    assert paths(f"a.py\n{EDIT}\n{EDIT}\nb.py\n{EDIT}\n{EDIT}") == ["a.py", "a.py", "b.py", "b.py"]


def test_the_file_the_caller_names_is_for_blocks_that_name_none() -> None:
    assert paths(f"{EDIT}\nb.py\n{EDIT}\n{EDIT}", "a.py") == ["a.py", "b.py", "b.py"]


def test_no_more_than_three_lines_are_looked_back() -> None:
    with pytest.raises(InvalidArgs, match="No file is named"):
        parse(f"a.py\n```\n```\n```\n{EDIT}")


def test_shell_commands_are_told_and_are_no_blocks(subtests: pytest.Subtests) -> None:
    cases: list[str] = sorted(SHELLS)
    for shell in cases:
        with subtests.test(shell=shell):
            content = (
                f"a.py\n```{shell}\n{EDIT}\n```\n```{shell}\nmake test\n\nls\n```\n```{shell}\nb.sh\n{EDIT}\n```\n"
            )

            blocks, commands = parse(content)

            assert ([block.path for block in blocks], commands) == (["a.py", "b.sh"], ["make test\n\nls"])


def test_a_block_shows_itself_as_it_is_sent() -> None:
    assert str(parse(f"a.py\n{EDIT}")[0][0]) == EDIT


@pytest.mark.parametrize(
    ("text", "search", "replace", "found"),
    [
        ("a\nb\nc\n", "b", "x\ny", ("exact", "a\nx\ny\nc\n", 1)),
        ("a\nb\na\nb\n", "a\nb", "x", ("exact", "x\na\nb\n", 2)),
        ("aa\na\n", "a", "x", ("exact", "aa\nx\n", 1)),
        ("a\n\n\nb\n", "a\n\n\nb", "", ("exact", "", 1)),
        ("a\nb", "b", "x\ny", ("exact", "a\nx\ny", 1)),
        ("a\r\nb\r\n", "a\nb", "a\nx\ny", ("exact", "a\r\nx\r\ny\r\n", 1)),
        ("a \nb\n", "a\nb", "x", None),
        ("a\nb\n", "b\na", "x", None),
    ],
)
def test_lines_are_found_exactly_and_the_first_place_is_taken(
    text: str, search: str, replace: str, found: tuple[str, str, int] | None
) -> None:
    assert replaced(text, search, replace) == found


@pytest.mark.parametrize(
    ("text", "search", "replace", "changed"),
    [
        ("    a\n    b\n    c\n", "a\nb", "x\n\n  y", "    x\n\n      y\n    c\n"),
        ("    a\n        b\n", "a\n    b", "a\n    x", "    a\n        x\n"),
        ("    a\n    b\n", " a\n b", " x\n     y", "    x\n        y\n"),
        ("a\n  b\n", "    a\n      b", "    a\n      x", "a\n  x\n"),
        ("\ta\n\t\tb\n", "a\n\tb", "a\n\tx\n\t\ty", "\ta\n\t\tx\n\t\t\ty\n"),
        ("  a\n \t \n  b\n", "a\n\nb", "a\n\nx", "  a\n \t \n  x\n"),
        ("  a\r\n  b\r\n", "a\nb", "x\nb", "  x\r\n  b\r\n"),
    ],
)
def test_one_indentation_more_or_less_is_no_matter_and_what_comes_gets_it_too(
    text: str, search: str, replace: str, changed: str
) -> None:
    assert replaced(text, search, replace) == ("indentation", changed, 1)


@pytest.mark.parametrize(
    ("text", "search"),
    [("  a\n    b\n", "a\nb"), ("  a\nb\n", "a\n  b"), ("\ta\n    b\n", "a\nb"), ("a\n", "  a\n"), ("  a \n", "a")],
)
def test_an_indentation_that_is_not_the_same_throughout_is_not_guessed(text: str, search: str) -> None:
    assert replaced(text, search, "x") is None


def test_one_blank_line_too_many_before_the_rest_is_left_out() -> None:
    assert replaced("  a\n  b\n", "\na\nb", "x\nb") == ("leading_blank_line", "  x\n  b\n", 1)
    assert replaced("a\nb\n", "\na\nb", "x") == ("leading_blank_line", "x\n", 1)
    assert replaced("a\n", "\na", "x") is None
    assert replaced("a\nb\n", "\n\na\nb", "x") is None


@pytest.mark.parametrize(
    ("search", "replace", "changed"),
    [
        ("a\n...\nd", "A\n...\nD", "A\nb\nc\nD\n"),
        ("a\n...", "A\n...", "A\nb\nc\nd\n"),
        ("a\n\n  ...\nc\n...\nd", "A\n\n  ...\nc\nC\n...\nd", "A\nb\nc\nC\nd\n"),
        ("...\nd", "...\nD", "a\nb\nc\nD\n"),
        ("a\n...", "a\n...\ne", "a\nb\nc\nd\ne\n"),
    ],
)
def test_dots_stand_for_what_is_left_out(search: str, replace: str, changed: str) -> None:
    assert replaced("a\nb\nc\nd\n", search, replace) == ("elision", changed, 1)


@pytest.mark.parametrize(
    ("text", "search", "replace"),
    [
        ("a\nb\nc\n", "a\n...\nc", "A\nC"),
        ("a\nb\nc\n", "a\n...\nc", "A\n  ...\nC"),
        ("a\nb\nc\n", "a\n\n...\nc", "A\n...\nC"),
        ("a\nb\nc\na\n", "a\n...\nc", "A\n...\nC"),
        ("a\nb\nc\n", "a\n...\nd", "A\n...\nD"),
        ("a\nb\nc\n", "a\nb\n...\nb\nc", "x\n...\ny"),
        ("a\nb\nc\n", "...", "..."),
    ],
)
def test_dots_must_pair_and_each_part_must_be_there_once(text: str, search: str, replace: str) -> None:
    assert replaced(text, search, replace) is None


def test_dots_that_are_in_the_file_are_lines_like_others() -> None:
    assert replaced("a\n...\nb\n", "a\n...", "x") == ("exact", "x\nb\n", 1)


def test_a_fence_around_what_is_looked_for_is_taken_off() -> None:
    assert replaced("a\nb\n", "```\na\n```", "```\nx\n```") == ("unwrapped", "x\nb\n", 1)
    assert replaced("a\nb\n", "```python\na\n```", "x") == ("unwrapped", "x\nb\n", 1)
    assert replaced("a\nb\n", "```\na\n", "x") is None
    assert replaced("a\nb\n", "```\n```", "x") is None


def test_a_text_that_repeats_itself_is_not_searched_again_and_again() -> None:
    """Fifty thousand places nearly fit, but for the last of fifty thousand lines: to compare all would never end."""
    script = LineBuffer("x\n" * 100_000)

    assert find(script, ["x"] * 50_000 + ["  x"], ["y"]) is None
    assert find(script, ["x"] * 50_000 + ["z"], ["y"]) is None
