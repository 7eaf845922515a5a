"""Whole files: how they are read."""

import pytest

from app.core.errors import InvalidArgs
from app.text.edit.fences import TAGS
from app.text.edit.whole_file import Whole, parse


def test_a_file_is_a_path_and_its_text_in_a_fence() -> None:
    content = "Here they are:\n\nsrc/a.py\n```python\none\n\n  two\n```\n\nb.txt\n```\n```\n"

    assert parse(content) == ([Whole("src/a.py", ("one", "", "  two"), 4), Whole("b.txt", (), 11)], [])


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("```", "```"), ("````markdown", "````"), *((f"<{tag}>", f"</{tag}>") for tag in TAGS)],
)
def test_each_fence_that_models_are_taught_is_known(opening: str, closing: str) -> None:
    assert parse(f"a.md\n{opening}\ntext\n{closing}\n")[0] == [Whole("a.md", ("text",), 2)]


@pytest.mark.parametrize(
    "before",
    ["a.py", "a.py:", "**a.py**", "`a.py`", "### a.py", "#### `a.py`:", "Here is `a.py`:", "Here is `a.py`, new:\n"],
)
def test_a_name_may_be_marked_up(before: str) -> None:
    assert parse(f"Prose.\n\n{before}\n```\nx\n```")[0] == [Whole("a.py", ("x",), 4 + before.count("\n"))]


@pytest.mark.parametrize("fence", ["```a.py", "```python a.py", "```python:a.py", "<source>a.py"])
def test_a_name_may_stand_beside_the_fence(fence: str) -> None:
    closing = "</source>" if fence.startswith("<") else "```"

    assert parse(f"\n{fence}\nx\n{closing}")[0] == [Whole("a.py", ("x",), 2)]


def test_a_fence_without_a_name_is_for_the_file_last_mentioned_since_the_one_before() -> None:
    content = "I change `a.py`, and `b.py`, as `f()` asks:\n\n```\nb\n```\nAnd `c.py`.\nSo:\n\n```\nc\n```\n"

    assert parse(content)[0] == [Whole("b.py", ("b",), 3), Whole("c.py", ("c",), 9)]


def test_a_fence_without_any_name_is_for_the_file_the_caller_names() -> None:
    assert parse("The new text:\n\n```\nx\n```\n", "a.py")[0] == [Whole("a.py", ("x",), 3)]


@pytest.mark.parametrize("before", ["", "Run it like this:\n", "x" * 251 + "\n", "`f()`:\n\n", "`a.py`\n```\nx\n```\n"])
def test_a_fence_that_nobody_names_is_refused(before: str) -> None:
    with pytest.raises(InvalidArgs, match="No file is named before this fence") as caught:
        parse(f"{before}```\ny\n```")

    assert caught.value.details == {"line": before.count("\n") + 1}


def test_of_several_texts_for_one_file_the_surest_counts_and_then_the_first() -> None:
    content = "Of `a.py`:\n\n```\n1\n```\n\n```\n2\n```\n\na.py\n```\n3\n```\na.py\n```\n4\n```\n"

    assert parse(content, "a.py")[0] == [Whole("a.py", ("3",), 12)]


def test_a_shell_listing_that_names_no_file_is_told_and_is_no_file() -> None:
    content = "run.sh\n```bash\nls\n```\nTry `run.sh`:\n\n```bash\n./run.sh\n```\n\n```sh\nls\n```"

    assert parse(content, "a.py") == ([Whole("run.sh", ("ls",), 2)], ["./run.sh", "ls"])


def test_fences_inside_a_file_belong_to_it_if_they_open_with_a_language() -> None:
    lines = ("# Title", "```python", "x", "```", "```sh", "y", "```", "End.")
    text = "\n".join(lines)

    assert parse(f"README.md\n```\n{text}\n```\nb.py\n```\nz\n```")[0] == [
        Whole("README.md", lines, 2),
        Whole("b.py", ("z",), 13),
    ]
    assert parse(f"README.md\n````\n{text}\n````")[0] == [Whole("README.md", lines, 2)]
    assert parse("a.html\n<pre>\n<pre>\nx\n</pre>\n</pre>")[0] == [Whole("a.html", ("<pre>", "x", "</pre>"), 2)]
    assert parse(f"README.md\n<source>\n{text}\n```\n</source>")[0] == [Whole("README.md", (*lines, "```"), 2)]


@pytest.mark.parametrize("content", ["a\n```\nx\n", "a\n```\n```python\nx\n```\n", "a\n````\n```\n", "a\n<pre>\n```"])
def test_a_fence_that_is_not_closed_is_refused_since_the_text_may_be_cut(content: str) -> None:
    with pytest.raises(InvalidArgs, match="to close this fence") as caught:
        parse(content)

    assert caught.value.details == {"line": 2}


def test_a_text_without_a_file_is_refused() -> None:
    with pytest.raises(InvalidArgs, match="Expected a path and a fence with the file's text"):
        parse("Just prose.")


def test_lines_of_windows_are_read_as_lines() -> None:
    assert parse("a.py\r\n```\r\nx\r\n```\r\n")[0] == [Whole("a.py", ("x",), 2)]
