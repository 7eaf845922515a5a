"""Echoes: values are taken out of what comes in pieces, wherever the cuts are."""

from hypothesis import given
from hypothesis import strategies as st

from app.net.egress.response import Scrubber

VALUE = "abcabcabd"
MARK = "tsec_1"
PARTS = [b"a", b"b", b"c", b"d", b"abc", b"abcabc", VALUE.encode(), b"YWJj", b"YmNh", b"616263", b" "]


@given(st.lists(st.sampled_from(PARTS), max_size=30).map(b"".join), st.lists(st.integers(1, 20), max_size=20))
def test_pieces_are_scrubbed_like_the_whole(data: bytes, sizes: list[int]) -> None:
    scrubber, told, rest = Scrubber({MARK: VALUE}), b"", data
    for size in [*sizes, len(data) + 1]:
        piece, rest = rest[:size], rest[size:]
        told += scrubber.feed(piece)
    told += scrubber.finish()

    assert told == Scrubber({MARK: VALUE}).whole(data)
    assert VALUE.encode() not in told


def test_each_value_becomes_its_own_placeholder_also_where_one_begins_like_another() -> None:
    scrubber = Scrubber({"tsec_1": "secret", "tsec_2": "secret-longer", "tsec_3": "schlüssel"})

    told = scrubber.feed(b"secret-lon") + scrubber.feed(b"ger secret ") + scrubber.feed("schlüssel".encode())

    assert told + scrubber.finish() == b"tsec_2 tsec_1 tsec_3"


def test_what_cannot_become_a_value_is_not_held_back() -> None:
    scrubber = Scrubber({MARK: VALUE})

    assert scrubber.feed(b"hello") == b"hello"
    assert scrubber.feed(b"hello abca") == b"hello "
    assert scrubber.feed(b"!") == b"abca!"
