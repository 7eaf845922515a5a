"""Ends: what is kept of an endless text, and exact counts of the rest."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.util.head_tail import HeadTailBuffer, encoded, whole_characters

ANY_TEXT = st.text(st.characters(exclude_categories=[]))


def fed(head: int, tail: int, *pieces: str) -> HeadTailBuffer:
    ends = HeadTailBuffer(head, tail)
    for piece in pieces:
        ends.feed(piece)
    return ends


def test_what_fits_is_whole() -> None:
    ends = fed(4, 6, "abc", "defg", "hij")

    assert (ends.rendered(), ends.size, ends.omitted) == ("abcdefghij", 10, 0)


def test_what_does_not_fit_is_left_out_in_the_middle_and_counted() -> None:
    ends = fed(4, 6, "abc", "defg", "hijk")

    assert (ends.head, ends.tail, ends.size, ends.omitted) == ("abcd", "fghijk", 11, 1)
    assert ends.rendered() == "abcd\n[1 bytes left out here; all of it is in the output of the call]\nfghijk"


def test_a_marker_of_ones_own() -> None:
    assert fed(1, 1, "abc").rendered("… {omitted} …") == "a\n… 1 …\nc"


def test_lines_stay_whole_where_that_costs_little() -> None:
    ends = fed(10, 10, "one\ntwo\nthree\nfour\nfive\nsix\n")

    assert (ends.head, ends.tail, ends.omitted) == ("one\ntwo\n", "five\nsix\n", 11)
    assert ends.rendered("…{omitted}…") == "one\ntwo\n…11…\nfive\nsix\n"


def test_a_line_that_is_longer_than_half_an_end_is_cut() -> None:
    ends = fed(10, 10, "1\n" + "x" * 40 + "\n2")

    assert (ends.head, ends.tail) == ("1\nxxxxxxxx", "xxxxxxxx\n2")


def test_a_secret_on_a_line_of_its_own_is_never_cut_in_two() -> None:
    """Otherwise a part of it would be shown that nobody recognizes."""
    for before in range(200):
        ends = fed(100, 100, "x" * before + "\nPASSWORD=hunter2hunter2\n" + "y\n" * 200)

        shown = ends.rendered()

        assert ("PASSWORD" in shown) == ("hunter2hunter2" in shown)
        assert ("hunter" in shown) == ("hunter2hunter2" in shown)


def test_without_room_for_an_end_there_is_none() -> None:
    assert fed(0, 0, "abc", "d").rendered("{omitted}") == "\n4\n"


def test_a_head_that_a_character_did_not_fit_into_stays_closed() -> None:
    ends = fed(2, 3, "aé", "b", "c", "d")

    assert (ends.head, ends.tail, ends.omitted) == ("a", "bcd", 2)


@pytest.mark.parametrize(
    ("pieces", "lines"), [((), 0), (("a",), 1), (("a\n",), 1), (("a\n", "b"), 2), (("\n\n",), 2), (("a", "b\n"), 1)]
)
def test_lines_are_counted_also_when_the_last_has_no_end(pieces: tuple[str, ...], lines: int) -> None:
    assert fed(1, 1, *pieces).lines == lines


@given(st.lists(ANY_TEXT), st.integers(0, 40), st.integers(0, 40))
def test_however_it_comes_both_ends_are_right_and_all_is_counted(pieces: list[str], head: int, tail: int) -> None:
    whole = b"".join(encoded(piece) for piece in pieces)

    ends = fed(head, tail, *pieces)

    first, last = ends.head.encode(), ends.tail.encode()
    assert ends.size == len(whole) == len(first) + ends.omitted + len(last)
    assert whole.startswith(first)
    assert whole.endswith(last)
    assert len(first) <= head
    assert len(last) <= tail
    if len(whole) <= head:
        assert ends.omitted == 0


def test_memory_stays_flat_while_much_flows() -> None:
    ends, piece = HeadTailBuffer(1000, 1000), "0123456789" * 6400
    ends.feed(piece)
    tracemalloc.start()

    for _ in range(1000):
        ends.feed(piece)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ends.size == 1001 * 64_000
    assert peak < 10 * len(piece)


@given(ANY_TEXT, st.integers(-2, 40))
def test_a_cut_never_splits_a_character_and_never_takes_too_much(text: str, limit: int) -> None:
    data = encoded(text)

    cut = whole_characters(data, limit)

    data[:cut].decode()
    assert 0 <= cut <= max(min(limit, len(data)), 0)
    if cut < len(data) and limit >= 0:
        assert limit - cut < 4


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_is_encoded_as_it_is(text: str) -> None:
    assert encoded(text) == text.encode()
