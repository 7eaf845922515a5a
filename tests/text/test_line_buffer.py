"""A script keeps what is a file's own, and tells what became of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.edit.diff import Span, lines_of
from app.text.edit.line_buffer import LineBuffer, Splice


@pytest.mark.parametrize(
    ("text", "lines", "changed"),
    [
        ("a\nb\nc\n", ["a", "b", "c"], "a\nX\nY\nc\n"),
        ("a\r\nb\r\nc\r\n", ["a", "b", "c"], "a\r\nX\r\nY\r\nc\r\n"),
        ("a\nb\nc", ["a", "b", "c"], "a\nX\nY\nc"),
        ("a\r\nb\nc\r\nd", ["a", "b", "c", "d"], "a\r\nX\r\nY\r\nc\r\nd"),
        ("a\nb\r\nc", ["a", "b", "c"], "a\nX\nY\nc"),
        ("a\nb\r\r\nc\r", ["a", "b\r", "c\r"], "a\nX\nY\nc\r"),
        ("a\nb", ["a", "b"], "a\nX\nY"),
    ],
)
def test_lines_that_come_end_as_the_first_does_and_the_rest_stays(text: str, lines: list[str], changed: str) -> None:
    script = LineBuffer(text)

    assert (script.lines, script.text) == (lines, text)
    script.apply([Splice(1, 2, ["X", "Y"])])
    assert script.text == changed


def test_an_end_of_its_own_is_kept_by_a_line_that_is_sent_again() -> None:
    script = LineBuffer("a\r\nb\nc\nd\r\n")

    script.apply([Splice(0, 4, ["new", "a", "b", "other", "d"])])

    assert script.text == "new\r\na\r\nb\nother\r\nd\r\n"


@pytest.mark.parametrize(
    ("text", "splice", "changed"),
    [
        ("", Splice(0, 0, ["a"]), "a\n"),
        ("a", Splice(1, 1, ["b"]), "a\nb"),
        ("a\nb", Splice(1, 2, []), "a"),
        ("a\n\nb", Splice(2, 3, []), "a\n"),
        ("a\r\nb", Splice(2, 2, ["c"]), "a\r\nb\r\nc"),
        ("a\n", Splice(0, 1, []), ""),
        ("a", Splice(0, 1, []), ""),
        ("\n", Splice(0, 1, ["x"]), "x\n"),
    ],
)
def test_an_open_last_line_stays_open(text: str, splice: Splice, changed: str) -> None:
    script = LineBuffer(text)

    script.apply([splice])

    assert script.text == changed


def test_an_open_line_with_nothing_in_it_is_none() -> None:
    script = LineBuffer("a\n\nb")

    script.apply([Splice(2, 3, [])])

    assert (script.lines, script.spans()) == (["a"], [Span(1, ["\n", "b"], [])])
    script.apply([Splice(1, 1, ["c"])])
    assert script.text == "a\nc\n"


def test_changes_are_numbered_as_before_the_first_of_them() -> None:
    script = LineBuffer("a\nb\nc\n")

    script.apply([Splice(3, 3, ["d"]), Splice(1, 1, ["1"]), Splice(1, 1, ["2"]), Splice(1, 2, ["B"]), Splice(0, 1, [])])

    assert script.text == "1\n2\nB\nc\nd\n"


def test_places_are_whole_lines_one_after_the_other() -> None:
    script = LineBuffer("a\nxa\na\na\na\nax\n")

    assert list(script.find(["a"])) == [0, 2, 3, 4]
    assert list(script.find(["a", "a"])) == [2, 3]
    assert list(script.find(["a", "a"], disjoint=True)) == [2]
    assert (script.count(["a"]), script.count(["a", "a"]), script.count(["nope"])) == (4, 1, 0)
    assert list(script.find([])) == list(script.find(["a", "xa", "a", "a", "a", "ax", ""])) == []


def test_bare_places_look_past_the_white_space_lines_begin_with() -> None:
    script = LineBuffer("  a\n\t\n b \n")

    assert list(script.find(["a", "", "b "], stripped=True)) == [0]
    assert list(script.find(["a", "", "b"], stripped=True)) == []


def test_what_is_searched_is_what_the_changes_made() -> None:
    script = LineBuffer("  a\n  b\n")
    assert list(script.find(["a"], stripped=True)) == [0]

    script.apply([Splice(0, 1, ["  new", "  a"])])

    assert list(script.find(["  a", "  b"])) == list(script.find(["a", "b"], stripped=True)) == [1]


def test_spans_are_in_the_lines_of_the_first_text_whatever_came_after() -> None:
    script = LineBuffer("a\nb\nc\nd\ne\n")

    script.apply([Splice(3, 4, ["D"])])
    script.apply([Splice(0, 1, [])])
    script.apply([Splice(2, 3, ["DD", "ee"])])

    assert script.text == "b\nc\nDD\nee\ne\n"
    assert script.spans() == [Span(0, ["a\n"], []), Span(3, ["d\n"], ["DD\n", "ee\n"])]


TEXTS = st.lists(st.sampled_from(["a", "b", "", " a", "c\r"]), max_size=8).flatmap(
    lambda lines: st.tuples(
        st.lists(st.sampled_from(["\n", "\r\n"]), min_size=len(lines), max_size=len(lines)), st.booleans()
    ).map(lambda ends: "".join(a + b for a, b in zip(lines, ends[0], strict=True)) + ("open" if ends[1] else ""))
)


@given(TEXTS, st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.lists(st.sampled_from("abX"), max_size=3))))
def test_spans_put_into_the_first_text_make_the_last(text: str, changes: list[tuple[int, int, list[str]]]) -> None:
    script = LineBuffer(text)
    assert script.text == text

    for start, size, lines in changes:
        start = min(start, len(script.lines))
        script.apply([Splice(start, min(start + size, len(script.lines)), lines)])

    before, after, here = lines_of(text), list[str](), 0
    for span in script.spans():
        assert before[span.start : span.start + len(span.old)] == span.old
        after += before[here : span.start] + list(span.new)
        here = span.start + len(span.old)
    assert "".join(after + before[here:]) == script.text
