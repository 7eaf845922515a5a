"""Unified diffs: how they are read, and where their hunks belong."""

import pytest

from app.core.errors import InvalidArgs
from app.text.edit import line_buffer
from app.text.edit.line_buffer import LineBuffer, Match
from app.text.edit.udiff import Ambiguous, Hunk, find, parse

HEAD = "--- a/src/a.py\n+++ b/src/a.py\n"


def applied(text: str, hunk: str, every: bool = False) -> tuple[str, str, int] | Ambiguous | None:
    """What a hunk makes of a text: the rule, the text, and in how many places."""
    script = LineBuffer(text)
    found = find(script, [(line[:1] or " ", line[1:]) for line in hunk.split("\n")], every)
    if not isinstance(found, Match):
        return found
    script.apply(found.splices)
    return found.strategy, script.text, found.places


def test_a_fenced_diff_is_read_hunk_by_hunk_without_its_line_numbers() -> None:
    content = f"Here:\n\n```diff\n{HEAD}@@ -1,2 +1,2 @@ def f():\n one\n-two\n+TWO\n@@ ... @@\n-three\n```\nDone."

    assert parse(content) == [
        Hunk("src/a.py", ((" ", "one"), ("-", "two"), ("+", "TWO")), 7),
        Hunk("src/a.py", (("-", "three"),), 11),
    ]


def test_a_hunk_has_two_sides_and_shows_itself_as_it_is_sent() -> None:
    [hunk] = parse(f"```diff\n{HEAD}@@ @@\n a\n-b\n+c\n\n d\n```")

    assert (hunk.old, hunk.new, str(hunk)) == (["a", "b", "", "d"], ["a", "c", "", "d"], " a\n-b\n+c\n \n d")


@pytest.mark.parametrize(
    "content",
    [
        f"{HEAD}@@ @@\n-a\n+b\n",
        f"Some prose\n- not in it\n\n{HEAD}@@ -1 +1 @@\n-a\n+b\n\nMore prose\n- not in it\n",
        f"```\n{HEAD}-a\n+b\n```",
        f"diff --git a/src/a.py b/src/a.py\nindex 0123abc..def4567 100644\n{HEAD}@@ -1 +1 @@\n-a\n+b\n"
        "\\ No newline at end of file\n",
        f"````diff\n{HEAD}-a\n+b\n````",
        f"```udiff\n{HEAD}-a\n+b\n```",
        f"```diff\n{HEAD}-a\n+b",
        f"```diff\n{HEAD}-a\n+b\n```".replace("\n", "\r\n"),
    ],
)
def test_a_diff_may_be_fenced_otherwise_or_not_at_all(content: str) -> None:
    assert [(hunk.path, hunk.lines) for hunk in parse(content)] == [("src/a.py", (("-", "a"), ("+", "b")))]


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("a/x.py", "b/x.py", "x.py"),
        ("x.py", "x.py", "x.py"),
        ("b/x.py", "b/x.py", "b/x.py"),
        ("a b.py", "a b.py", "a b.py"),
        ("x.py\t2024-01-01 10:00:00", "x.py\t2024-01-02 10:00:00", "x.py"),
        ("/dev/null", "b/x.py", "x.py"),
        ("/dev/null", "x.py", "x.py"),
    ],
)
def test_a_file_is_named_without_what_git_puts_before_it(old: str, new: str, path: str) -> None:
    [hunk] = parse(f"```diff\n--- {old}\n+++ {new}\n@@ @@\n+x\n```")

    assert (hunk.path, hunk.creates) == (path, old == "/dev/null")


def test_a_file_that_becomes_nothing_is_removed_with_all_its_hunks() -> None:
    content = "```diff\n--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n@@ @@\n-two\n--- y.py\n+++ /dev/null\n```"

    assert parse(content) == [
        Hunk("x.py", (("-", "one"), ("-", "two")), 2, deletes=True),
        Hunk("y.py", (), 8, deletes=True),
    ]


def test_several_files_may_stand_in_one_fence_or_in_several() -> None:
    one = "--- a/x.py\n+++ b/x.py\n@@ @@\n-x\n"
    other = "diff --git a/y.py b/y.py\nold mode 100644\nnew mode 100755\n--- a/y.py\n+++ b/y.py\n@@ @@\n+y\n"

    assert [(h.path, str(h)) for h in parse(f"```diff\n{one}\n{other}```")] == [("x.py", "-x"), ("y.py", "+y")]
    assert [(h.path, str(h)) for h in parse(f"```diff\n{one}```\n\n```diff\n{other}```")] == [
        ("x.py", "-x"),
        ("y.py", "+y"),
    ]


def test_a_diff_without_names_is_for_the_file_before_or_the_one_the_caller_names() -> None:
    named, unnamed = f"```diff\n{HEAD}@@ @@\n-x\n```\n", "```diff\n@@ @@\n-y\n```\n"

    assert [hunk.path for hunk in parse(named + unnamed)] == ["src/a.py", "src/a.py"]
    assert [hunk.path for hunk in parse(unnamed, "b.py")] == ["b.py"]
    with pytest.raises(InvalidArgs, match="Expected `--- path` and `\\+\\+\\+ path`"):
        parse(unnamed)


def test_hunks_that_change_nothing_or_come_again_are_left_out() -> None:
    content = f"```diff\n{HEAD}@@ @@\n-a\n+b\n@@ @@\n c\n@@ @@\n-d\n+d\n@@ @@\n-a\n+b\n \t\n```"

    assert [str(hunk) for hunk in parse(content)] == ["-a\n+b"]


def test_a_line_without_a_mark_is_context_in_a_fence() -> None:
    [hunk] = parse(f"```diff\n{HEAD}@@ @@\ndef f():\n-    a\n+    b\n```")

    assert hunk.old == ["def f():", "    a"]


def test_lines_of_white_space_are_blank_lines() -> None:
    [hunk] = parse(f"```diff\n{HEAD}@@ @@\n-a\n    \n+  \n+b\n```")

    assert (hunk.old, hunk.new) == (["a", ""], ["", "", "b"])


@pytest.mark.parametrize("content", ["Just prose.", f"```diff\n{HEAD}@@ @@\n same\n```", "```diff\n```", "-a\n+b"])
def test_a_text_without_changes_is_refused_in_so_many_words(content: str) -> None:
    with pytest.raises(InvalidArgs, match="cannot be read as a unified diff") as caught:
        parse(content, "a.py")

    assert "^^^ Expected a diff with lines that begin with `-` or `+`" in caught.value.message


def test_a_hunk_is_found_whole_by_looser_and_looser_rules(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, tuple[str, str, int]]] = [
        ("a\nb\nc\n", " a\n-b\n+x", ("exact", "a\nx\nc\n", 1)),
        ("a\nb\nc\n", " a\n+x\n b\n+y", ("exact", "a\nx\nb\ny\nc\n", 1)),
        ("a\r\nb", "-b\n+x\n+y", ("exact", "a\r\nx\r\ny", 1)),
        ("a\nb\n", " \n a\n-b\n+x\n ", ("blank_lines", "a\nx\n", 1)),
        ("a\nb\n", "-\n-a\n+x", ("blank_lines", "x\nb\n", 1)),
        ("a\nb\n", " \n+\n+n\n a\n ", ("blank_lines", "\nn\na\nb\n", 1)),
        ("  a\n    b\n", " a\n-  b\n+  x\n+    y", ("indentation", "  a\n    x\n      y\n", 1)),
        ("a\n  b\n", "     a\n-      b\n+      x", ("indentation", "a\n  x\n", 1)),
        ("  a\n \t\n  b\n", "   a\n \n-  b\n+  x", ("indentation", "  a\n \t\n  x\n", 1)),
        ("  a\n  b\n", " \n a\n-b\n+x", ("blank_lines+indentation", "  a\n  x\n", 1)),
    ]
    for text, hunk, result in cases:
        with subtests.test(text=text, hunk=hunk, result=result):
            assert applied(text, hunk) == result


def test_a_new_line_that_lost_its_mark_is_added() -> None:
    text = "import os\n\nfirst = compute(1)\nsecond = compute(2)\n"
    hunk = " import os\n \n import sys\n first = compute(1)\n-second = compute(2)\n+second = compute(3)"

    assert applied(text, hunk) == (
        "new_lines",
        "import os\n\nimport sys\nfirst = compute(1)\nsecond = compute(3)\n",
        1,
    )


def test_too_many_lines_that_are_not_in_the_file_are_not_taken_for_new_ones() -> None:
    text = "first = compute(1)\nsecond = compute(2)\nthird = compute(3)\n"
    hunk = " first = compute(1)\n one\n second = compute(2)\n two\n-third = compute(3)\n+third = compute(4)"

    assert applied(text, hunk) == ("context", text.replace("3", "4"), 1)


def test_a_line_of_context_that_is_mistaken_is_not_added_to_the_file() -> None:
    text = "# the first\nfirst = compute(1)\nsecond = compute(2)\nthird = compute(3)\n"
    hunk = " # teh first\n first = compute(1)\n-second = compute(2)\n+second = compute(4)\n third = compute(3)"

    assert applied(text, hunk) == ("context", text.replace("2", "4"), 1)


@pytest.mark.parametrize(
    ("text", "hunk", "changed"),
    [
        ("a\nb\nc\nd\ne\n", " wrong\n b\n-c\n+x\n d\n wrong", "a\nb\nx\nd\ne\n"),
        ("a\nb\nc\nd\ne\n", " wrong\n-b\n+x\n gap\n-d\n+y\n wrong", "a\nx\nc\ny\ne\n"),
        ("a\nb\nc\n", " wrong\n a\n+x\n wrong", "a\nx\nb\nc\n"),
        ("a\nb\nc\n", " wrong\n+x\n b\n wrong", "a\nx\nb\nc\n"),
        ("a\n\nb\nc\n", " wrong\n a\n \n+x\n wrong", "a\n\nx\nb\nc\n"),
        ("k\nx\nm\nk\nx\nn\n", " q\n-x\n+y\n n", "k\nx\nm\nk\ny\nn\n"),
        ("    a\n    b\n    c\n", " wrong\n a\n-b\n+x\n   c", "    a\n    x\n    c\n"),
        ("    a\n    b\n    c\n", " wrong\n a\n+  x\n   c", "    a\n      x\n    b\n    c\n"),
    ],
)
def test_each_change_is_made_for_itself_where_most_of_its_context_fits(text: str, hunk: str, changed: str) -> None:
    assert applied(text, hunk) == ("context", changed, 1)


@pytest.mark.parametrize(
    ("text", "hunk"),
    [
        ("a\nb\n", "-x\n+y"),
        ("a\nb\n", " a\n-x\n+y\n b"),
        ("a\nb\n", " x\n+y\n z"),
        ("a\nb\nc\n", " wrong\n-c\n+x\n gap\n-a\n+y"),
        ("a\nb\nc\n", " wrong\n-a\n-b\n+x\n gap\n-b\n+y"),
        ("a \n", "-a\n+x"),
    ],
)
def test_a_hunk_that_does_not_fit_is_not_forced(text: str, hunk: str) -> None:
    assert applied(text, hunk) is None


@pytest.mark.parametrize(
    ("text", "hunk", "lines", "everywhere"),
    [
        ("a\nb\na\n", "-a\n+x", (1, 3), ("exact", "x\nb\nx\n", 2)),
        ("a\na\na\na\na\n", " a\n-a", (1, 2), ("exact", "a\na\na\n", 2)),
        ("  a\nb\n    a\n", "-a\n+x", (1, 3), ("indentation", "  x\nb\n    x\n", 2)),
        ("k\na\nm\nk\na\nn\n", " wrong\n k\n-a\n+x\n wrong", (2, 5), ("context", "k\nx\nm\nk\nx\nn\n", 2)),
    ],
)
def test_a_place_must_be_the_only_one_unless_every_one_is_wanted(
    text: str, hunk: str, lines: tuple[int, ...], everywhere: tuple[str, str, int]
) -> None:
    assert applied(text, hunk) == Ambiguous(lines)
    assert applied(text, hunk, every=True) == everywhere


def test_a_place_is_not_taken_for_the_only_one_when_not_all_were_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_buffer, "MAX_COMPARED_LINES", 10)
    near, fitting = "a\nb\n", "    a\n      b\n"

    assert applied(fitting + near * 3, " a\n-  b\n+  x") == ("indentation", "    a\n      x\n" + near * 3, 1)
    assert applied(fitting + near * 9, " a\n-  b\n+  x") == Ambiguous(())


def test_a_text_that_repeats_itself_is_not_searched_again_and_again() -> None:
    """Each of so many places has tens of thousands of lines around it that fit, but for one."""
    script = LineBuffer("x\n" * 60_000)
    context = [(" ", "x")] * 20_000

    assert find(script, [*context, ("-", "y"), ("+", "z"), *context]) is None
    assert find(script, [*context, (" ", "q"), ("-", "x"), ("+", "z"), *context]) == Ambiguous(())
    assert find(script, [*context, (" ", "q"), ("+", "z"), *context]) == Ambiguous(())
