"""JSON as editors take it: what is more than JSON goes, what is in strings stays."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.jsonc import NotJson, loads

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_plain_json_is_what_it_was(value: Any) -> None:
    assert loads(json.dumps(value)) == loads(json.dumps(value, indent=2, ensure_ascii=False)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "https://b//c", /* "d": 1, */ "e": ",]"} // f', {"a": "https://b//c", "e": ",]"}),
        ('["/* a */", "\\"// b", "c\\\\",\n]', ["/* a */", '"// b', "c\\"]),
        ("\ufeff[1, /* ] */ 2, // 3\r\n]", [1, 2]),
        ('{"a": [1,2,],}', {"a": [1, 2]}),
    ],
)
def test_comments_and_last_commas_go_and_strings_stay(text: str, value: Any) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("// one\n/* two\nthree */ [1 2]", "line 3, column 13"),
        ("[1,,]", "line 1, column 4"),
        ("[,]", "line 1, column 2"),
        ('{"a": 1 /* b', "line 1, column 9"),
        ("", "line 1, column 1"),
    ],
)
def test_the_place_of_a_mistake_is_where_it_was_written(text: str, place: str) -> None:
    with pytest.raises(NotJson, match=place):
        loads(text)
