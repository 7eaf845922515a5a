"""Cuts by tokens: a token is four bytes, and the middle goes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.terminal_output import cut_tokens, token_count


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (1, 1), (4, 1), (5, 2), (108_894, 27_224)])
def test_a_token_is_four_bytes_rounded_up(size: int, expected: int) -> None:
    assert token_count(size) == expected


def test_short_enough_is_left_alone() -> None:
    assert cut_tokens("abcdefgh", 2) == "abcdefgh"


def test_the_middle_goes_and_says_how_much_it_was() -> None:
    text = "".join(f"{number}\n" for number in range(1, 20_001))

    shown = cut_tokens(text, 10_000)

    assert "…17224 tokens truncated…" in shown
    assert shown.startswith("1\n2\n")
    assert shown.endswith("19999\n20000\n")
    assert len(shown.encode()) <= 40_000 + 40


@pytest.mark.parametrize("limit", [0, -5])
def test_without_room_only_the_mark_is_left(limit: int) -> None:
    assert cut_tokens("abcdefgh", limit) == "…2 tokens truncated…"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.integers(0, 20))
def test_no_character_is_split(text: str, limit: int) -> None:
    shown = cut_tokens(text, limit)

    head, _, tail = re.sub(r"…\d+ tokens truncated…", "\0", shown).partition("\0") if shown != text else (text, "", "")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len((head + tail).encode()) <= 4 * limit
