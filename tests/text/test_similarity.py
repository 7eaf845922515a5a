from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.edit.nearest_lines import WorkBudget, distance, max_similarity, similarity
from tests.text.plain_replacers import levenshtein

SHORT = st.text("abc", max_size=12)


@given(SHORT, SHORT)
def test_the_distance_is_that_of_levenshtein(a: str, b: str) -> None:
    assert distance(a, b, WorkBudget(10_000)) == levenshtein(a, b)


@settings(max_examples=20)
@given(st.text("ab", min_size=60, max_size=150), st.text("ab", min_size=60, max_size=150))
def test_lines_longer_than_a_machine_word_are_no_different(a: str, b: str) -> None:
    assert distance(a, b, WorkBudget(100_000)) == levenshtein(a, b)


@given(SHORT, SHORT)
def test_lengths_tell_how_alike_two_texts_can_be_at_most(a: str, b: str) -> None:
    alike = similarity(a, b, WorkBudget(10_000))

    assert alike is not None
    assert alike <= max_similarity(a, b)


def test_likeness_goes_from_nothing_to_all() -> None:
    purse = WorkBudget(1000)

    assert [similarity("abcd", other, purse) for other in ("abcd", "abcx", "wxyz", "")] == [1.0, 0.75, 0.0, 0.0]
    assert similarity("", "", purse) == 0.0


def test_what_cannot_be_paid_is_not_done() -> None:
    purse = WorkBudget(30)

    first, second = distance("abcdefgh", "hgfedcba", purse), distance("abcdefgh", "hgfedcba", purse)

    assert (first, second, purse.left) == (8, None, 14)


def test_what_is_equal_or_empty_costs_nothing() -> None:
    purse = WorkBudget(0)

    assert distance("x" * 10**6, "x" * 10**6, purse) == 0
    assert distance("x" * 10**6, "x" * 10**6 + "y", purse) == 1
