"""Patterns of strangers cannot hold up the service."""

import re

import pytest

from app.custom.json_schema import MAX_LENGTH, MAX_NESTED_LENGTH, max_matched_length


def test_a_loop_in_a_loop_is_matched_with_short_texts_only(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        r"^(a+)+$",
        r"^(a*)*$",
        r"^(a|a)*$",
        r"^(a|aa)+$",
        r"(.*)*x",
        r"^([a-z]+)*$",
        r"^(?:\d{1,3}\.){3}\d{1,3}$",
        r"^((ab)?c*){2,}$",
        r"^(a?){30}a{30}$",
        r"([)](x+x+))+y",
    ]
    for pattern in cases:
        with subtests.test(pattern=pattern):
            assert max_matched_length(pattern) == MAX_NESTED_LENGTH


@pytest.mark.parametrize(
    "pattern", [r"^[a-z]+$", r"^\d{4}-\d{2}$", r"^(GET|POST)$", r"^[+*?]*$", r"^a\+\*\?b{2}$", "^"]
)
def test_a_simple_pattern_is_matched_with_any_text(pattern: str) -> None:
    assert max_matched_length(pattern) >= MAX_LENGTH - 1


def test_the_more_loops_the_shorter_the_text() -> None:
    reaches = [max_matched_length("^" + "a*" * count + "$") for count in range(1, 9)]

    assert reaches == sorted(reaches, reverse=True)
    assert max_matched_length("a+") < max_matched_length("^a+")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a|a)*$", r"a*a*a*a*b", r"^(a?){30}a{30}$", "a*" * 12 + "b", "a*b"])
def test_no_pattern_hangs_within_its_reach(pattern: str) -> None:
    assert re.search(pattern, "a" * min(max_matched_length(pattern), 20_000) + "!") is None
