"""Hunks in a file: where they go, what they leave alone, and what is said when they do not fit."""

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import PatchMismatch
from app.text.edit.diff import lines_of
from app.text.patch.apply import apply_hunks
from app.text.patch.lenient import read
from app.text.patch.parse import Hunk, Update


def patched(text: str, body: str) -> str:
    """A file after the hunks of an update."""
    [update] = read(f"*** Begin Patch\n*** Update File: f\n{body}\n*** End Patch")
    assert isinstance(update, Update)
    return apply_hunks(text, update.hunks, "f").text


def refused(text: str, body: str) -> tuple[str, Any]:
    with pytest.raises(PatchMismatch) as caught:
        patched(text, body)
    return caught.value.message, caught.value.details


CODE = """\
class A:
    def f(self):
        return 1

class B:
    def f(self):
        return 1
"""


def test_a_hunk_changes_its_place_only(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, str]] = [
        ("a\nb\nc\n", "-b\n+B", "a\nB\nc\n"),
        ("a\nb\nc\n", "@@ a\n+x", "a\nx\nb\nc\n"),
        ("a\nb\nc\n", "@@ c\n+x", "a\nb\nc\nx\n"),
        ("a\nb\na\nb\n", "@@ b\n@@ a\n+x", "a\nb\na\nx\nb\n"),
        ("a\nb\n", "+x", "a\nb\nx\n"),
        ("a\nb\n", "@@ a\n+x\n*** End of File", "a\nb\nx\n"),
        ("", "+x", "x\n"),
        ("", " \n+x", "\nx\n"),
        ("a\n", "-a", ""),
        ("a\nb\nc\n", " a\n-b\n", "a\nc\n"),
        ("a\na\n", "-a\n+b\n*** End of File", "a\nb\n"),
        ("x\ny\nx\n", "@@ y\n-x\n+z", "x\ny\nz\n"),
        ("a\nb\n", " a\n b", "a\nb\n"),
        ("a \nb\n", " a\n-b\n+c", "a \nc\n"),
        ("\u201cq\u201d \u2013 1\nb\n", ' "q" - 1\n-b\n+c', "\u201cq\u201d \u2013 1\nc\n"),
        ("a\nb\n", " a\n-b\n+c\n ", "a\nc\n"),
        ("a\n\nb\n", " a\n\n-b\n+c", "a\n\nc\n"),
    ]
    for before, body, after in cases:
        with subtests.test(before=before, body=body, after=after):
            assert patched(before, body) == after


def test_headers_lead_to_the_place_one_after_the_other() -> None:
    after = patched(CODE, "@@ class B:\n@@     def f(self):\n-        return 1\n+        return 2")

    assert after == CODE.replace(
        "class B:\n    def f(self):\n        return 1", "class B:\n    def f(self):\n        return 2"
    )


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_those_of_the_file(end: str) -> None:
    assert patched(f"a{end}b{end}c{end}", "@@\n-b\n+x\n+y") == f"a{end}x{end}y{end}c{end}"


def test_where_lines_end_in_several_ways_each_keeps_its_end_and_new_ones_have_that_of_the_first() -> None:
    assert patched("a\r\nb\nc\rd\n", " a\n-b\n+x\n c\n+y") == "a\r\nx\r\nc\ry\r\nd\n"


def test_a_last_line_without_an_end_has_none_unless_it_is_touched(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, str]] = [
        ("a\nb", "-a\n+x", "x\nb"),
        ("a\nb", "-a\n+x\n b", "x\nb"),
        ("a\nb", "-b\n+x", "a\nx\n"),
        ("a\nb", "-b", "a\n"),
        ("a\nb", "@@ b\n+x", "a\nb\nx\n"),
        ("a\nb", "+x", "a\nb\nx\n"),
        ("a\r\nb", "+x", "a\r\nb\r\nx\r\n"),
        ("a\nb", "+x\n@@\n-b\n+y", "a\ny\nx\n"),
        ("a\nb", "-a\n+y\n@@\n+x", "y\nb\nx\n"),
        ("b", "-b\n+x", "x\n"),
    ]
    for before, body, after in cases:
        with subtests.test(before=before, body=body, after=after):
            assert patched(before, body) == after


@pytest.mark.parametrize(
    ("before", "body", "after"),
    [
        ("    a\n    b\n", " a\n-b\n+c\n+  d", "    a\n    c\n      d\n"),
        ("a\nb\n", "     a\n-    b\n+    c", "a\nc\n"),
        ("\ta\n\t\tb\n", " a\n-    b\n+    c\n+d", "\ta\n\t\tc\n\td\n"),
        ("  if x:\n    y\n", " if x:\n-  y\n+  z\n+\n+w", "  if x:\n    z\n\n  w\n"),
        ("    a\n", "-  a\n+b", "  b\n"),
        ("    a\n", "-\ta\n+ b", "    b\n"),
        ("  a\n  b\n", "-a\n+x\n b\n+y", "  x\n  b\n  y\n"),
    ],
)
def test_a_hunk_that_fits_by_its_text_only_comes_in_at_the_files_depth(before: str, body: str, after: str) -> None:
    assert patched(before, body) == after


def test_a_hunk_that_fits_as_it_is_may_change_the_depth() -> None:
    assert patched("    a\n", "-    a\n+  a\n+b") == "  a\nb\n"


def test_what_was_not_found_is_told_with_the_nearest_lines() -> None:
    text = "".join(f"line {number}\n" for number in range(100)) + "def total(items):\n    return sum(items)\n"

    message, details = refused(text, "-line 3\n+x\n@@\n def total(item):\n-    return sum(items)\n+    return 0")

    assert message == (
        "f: hunk 2 of 2 does not match; these lines are not there after line 4:\n"
        "def total(item):\n    return sum(items)\n"
        "The nearest lines of the file are these:\nL101: def total(items):\nL102:     return sum(items)"
    )
    assert details == {
        "path": "f",
        "hunk": 2,
        "looked_for": "def total(item):\n    return sum(items)",
        "nearest": {"line": 101, "text": "def total(items):\n    return sum(items)"},
    }


@pytest.mark.parametrize(
    ("text", "body", "why"),
    [
        ("a\nb\n", "-zzz\n+y", "Nothing in the file is similar"),
        ("", "-zzz\n+y", "Nothing in the file is similar"),
        ("a\nnew = 1\nc\n", " a\n-old = 1\n+new = 1\n c", "are there already, at line 1; it seems to be applied"),
        ("a\nb\nc\n", "-c\n+C\n@@\n-a\n+A", "That is at line 1, but the hunk or header before it reaches to line 3"),
        ("a\nb\nc\n", "@@ b\n b\n-c\n+C", "the line of a header is not repeated in its hunk"),
        ("a\nb\nc\n", "-a\n+A\n*** End of File", "That is at line 1, but other lines follow"),
        (
            "a\nb\nc\n",
            "-b\n+B\n@@ a\n-c\n+C",
            "the line of its `@@` header was not found after line 2:\na\nThat is at line 1",
        ),
    ],
)
def test_it_is_told_why_a_hunk_does_not_fit(text: str, body: str, why: str) -> None:
    assert why in refused(text, body)[0]


def test_what_is_told_is_bounded() -> None:
    text = "".join(f"{'x' * 5000}{number}\n" for number in range(1000))
    body = "\n".join(f"-{'x' * 5000}{number}" for number in [*range(500), "z"])

    message, details = refused(text, body)

    assert len(message) < 10_000
    assert len(str(details)) < 10_000


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from("abcde"), max_size=20),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.lists(st.lists(st.sampled_from([" a", " b", "-c", "-d", "+e", "+x", " "]), min_size=1, max_size=4), max_size=3),
)
def test_what_is_told_of_a_change_is_what_changed(
    lines: list[str], end: str, has_end: bool, hunks: list[list[str]]
) -> None:
    text = end.join(lines) + (end if has_end and lines else "")

    try:
        fitted = apply_hunks(text, [Hunk(1, (), tuple(changed)) for changed in hunks], "f")
    except PatchMismatch:
        return

    assert fitted.spans is not None
    after = lines_of(text)
    for span in reversed(fitted.spans):
        assert after[span.start : span.start + len(span.old)] == span.old
        after[span.start : span.start + len(span.old)] = span.new
    assert "".join(after) == fitted.text


def test_a_file_with_bare_carriage_returns_is_not_told_by_lines() -> None:
    fitted = apply_hunks("a\rb\n", [Hunk(1, (), ("-b", "+c"))], "f")

    assert (fitted.text, fitted.spans) == ("a\rc\r", None)


def test_a_hunk_for_every_line_is_put_together_in_one_go() -> None:
    count = 20_000
    hunks = [Hunk(1, (), (f"-{number}", f"+{number}!")) for number in range(count)]

    fitted = apply_hunks("".join(f"{number}\n" for number in range(count)), hunks, "f")

    assert fitted.text == "".join(f"{number}!\n" for number in range(count))
    assert [(span.start, len(span.old), len(span.new)) for span in fitted.spans or []] == [(0, count, count)]


def steps(count: int, body: str) -> int:
    """How many calls of functions a hunk takes in a file of so many lines."""
    taken = 0

    def count_call(frame: object, event: str, arg: object) -> None:
        nonlocal taken
        taken += event in ("call", "c_call")

    text = "".join(f"    value_{number} = compute({number % 97})\n" for number in range(count))
    sys.setprofile(count_call)
    try:
        patched(text, body)
    except PatchMismatch:
        pass
    finally:
        sys.setprofile(None)
    return taken


@pytest.mark.parametrize(
    "body",
    [
        "-    value_9000 = compute(76)\n+x",
        "-value_9000 = compute(76)\n+x",
        "-value_9000 = compute(\u2013)\n+x",
        "     value_9000 = compute(76)\n-    nothing_like_this = 1\n+x",
        "\n".join(f"-    value_{number} = compute({number % 97})" for number in range(9000, 9049)) + "\n-    not there",
    ],
)
def test_no_line_of_the_file_is_a_step_of_its_own(body: str) -> None:
    assert steps(40_000, body) < 2 * steps(10_000, body) < 40_000
