import difflib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.edit.diff import Diff, Span, compare, lines_of, unified
from tests.text.work_counter import work_of

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "d\r\n", "e"]), max_size=14)


def applied(before: list[str], spans: list[Span]) -> list[str]:
    after = list(before)
    for span in reversed(spans):
        assert after[span.start : span.start + len(span.old)] == list(span.old)
        after[span.start : span.start + len(span.old)] = span.new
    return after


@given(LINES, LINES)
def test_what_is_compared_can_be_made_of_each_other(before: list[str], after: list[str]) -> None:
    assert applied(before, compare(before, after)) == after


def test_what_is_the_same_has_no_spans_and_no_diff() -> None:
    assert compare(["a\n"], ["a\n"]) == []
    assert unified(["a\n"], [Span(0, ["a\n"], ["a\n"])], "a/x", "b/x") == Diff("", 0, 0)


def test_a_diff_shows_three_lines_around_each_change_and_joins_what_is_near() -> None:
    before = [f"{number}\n" for number in range(1, 31)]
    spans = [Span(4, ["5\n"], ["five\n"]), Span(11, [], ["new\n"]), Span(25, ["26\n", "27\n"], [])]

    diff = unified(before, spans, "a/x", "b/x")

    assert diff == Diff(
        "--- a/x\n+++ b/x\n"
        "@@ -2,13 +2,14 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n 9\n 10\n 11\n+new\n 12\n 13\n 14\n"
        "@@ -23,8 +24,6 @@\n 23\n 24\n 25\n-26\n-27\n 28\n 29\n 30\n",
        additions=2,
        deletions=3,
    )


def test_a_missing_end_of_the_last_line_is_told() -> None:
    assert unified(["a"], [Span(0, ["a"], ["a\n"])], "a/x", "b/x").text == (
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"
    )


def test_few_changes_in_many_lines_stay_few() -> None:
    """Lines that are there once hold the rest in place, however far apart the changes are."""
    before = [f"line {number}\n" if number % 3 else "\n" for number in range(9000)]
    after = [*before[:10], "new\n", *before[10:4000], *before[4005:8000], "changed\n", *before[8001:]]

    spans = compare(before, after)

    assert applied(before, spans) == after
    assert sum(len(span.new) for span in spans) == 2
    assert sum(len(span.old) for span in spans) == 6


def test_lines_that_are_nowhere_alone_are_compared_one_by_one() -> None:
    before, after = ["x\n", "y\n"] * 20, ["y\n", "x\n"] * 20

    spans = compare(before, after)

    assert applied(before, spans) == after
    assert sum(len(span.old) for span in spans) == 1


def test_what_would_take_long_to_compare_counts_as_replaced() -> None:
    before, after = ["x\n", "y\n"] * 2000, ["y\n", "x\n"] * 2000

    short = work_of(lambda: compare(before[:500], after[:500]))
    long = work_of(lambda: compare(before, after))

    assert compare(before, after) == [Span(0, before, after)]
    assert long.calls < 8 * short.calls


def test_it_is_about_as_short_as_the_best_known() -> None:
    """Patience first may cost a line or two; it must not cost many."""
    chance = random.Random(5)
    before = [f"{chance.randrange(60)}\n" for _ in range(200)]
    after = [line for line in before if chance.random() > 0.1] + ["end\n"]

    ours = sum(len(span.old) + len(span.new) for span in compare(before, after))
    best = sum(line[0] in "+-" for line in difflib.ndiff(before, after))

    assert ours <= 1.2 * best


def test_only_as_much_as_may_be_shown_is_made() -> None:
    before = [f"old {number}\n" for number in range(1000)]
    after = [f"new {number}\n" for number in range(1000)]
    spans = compare(before, after)

    whole, cut = unified(before, spans, "a/x", "b/x"), unified(before, spans, "a/x", "b/x", limit=100)

    assert (cut.additions, cut.deletions, cut.is_cut) == (1000, 1000, True)
    assert len(cut.text) <= 100
    assert cut.text.endswith("\n")
    assert whole.text.startswith(cut.text)
    assert unified(before, spans, "a/x", "b/x", limit=len(whole.text)) == whole


@pytest.mark.parametrize("text", ["", "\n", "a", "a\n", "a\nb", "a\r\nb\r", "\n\n"])
def test_lines_are_the_text_again(text: str) -> None:
    assert "".join(lines_of(text)) == text
    assert all("\n" not in line[:-1] for line in lines_of(text))
