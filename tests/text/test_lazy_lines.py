import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.edit import diff
from app.text.edit.diff import LazyLines, lines_of

TEXTS = st.text("ab\n\r\u2028", max_size=60)


@given(TEXTS, st.integers(-70, 70), st.integers(-70, 70), st.sampled_from([1, 2, -1]))
def test_they_are_those_the_text_is_cut_into(text: str, start: int, stop: int, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff, "BLOCK", 7)

        assert list(LazyLines(text)) == lines_of(text)
        assert len(LazyLines(text)) == len(lines_of(text))
        assert LazyLines(text)[start:stop:step] == lines_of(text)[start:stop:step]


@given(TEXTS, st.integers(-70, 70))
def test_one_line_is_found_by_its_number(text: str, number: int) -> None:
    cut = lines_of(text)

    if -len(cut) <= number < len(cut):
        assert LazyLines(text)[number] == cut[number]
    else:
        with pytest.raises(IndexError):
            LazyLines(text)[number]


def test_only_a_line_feed_ends_a_line() -> None:
    assert lines_of("a\rb\x0bc\u2028d\ne\r\nf") == ["a\rb\x0bc\u2028d\n", "e\r\n", "f"]
