"""No output floods a model's context, and what was cut is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.results import Attachment, Keep, Result, Truncation, truncate


@pytest.mark.parametrize(
    ("keep", "output"),
    [
        (Keep.HEAD, "0123\n[output truncated, 6 characters omitted]"),
        (Keep.TAIL, "[output truncated, 6 characters omitted]\n6789"),
        (Keep.MIDDLE, "01\n[output truncated, 6 characters omitted]\n89"),
    ],
)
def test_an_output_that_is_too_long_is_cut_where_the_tool_says(keep: Keep, output: str) -> None:
    attachment = Attachment(mime="text/plain", url="data:,x")
    result = Result("0123456789", "title", {"own": 1}, (attachment,), {"s": 1})

    shown = truncate(result, Truncation(4, keep))

    sizes = {"truncated": True, "original_size": 10, "truncated_size": len(output)}
    assert shown == Result(output, "title", {"own": 1} | sizes, (attachment,), {"s": 1})


def test_an_odd_limit_gives_the_end_the_larger_half() -> None:
    shown = truncate(Result("0123456789"), Truncation(5, Keep.MIDDLE))

    assert shown.output == "01\n[output truncated, 5 characters omitted]\n789"


@pytest.mark.parametrize("text", ["", "é", "0123"])
def test_an_output_that_fits_is_left_as_it_is(text: str) -> None:
    result = Result(text)

    shown = truncate(result, Truncation(4))

    assert shown.output is result.output
    assert shown.metadata == {"truncated": False, "original_size": len(text), "truncated_size": len(text)}


@pytest.mark.parametrize("said", [True, False])
def test_a_tool_that_has_done_it_itself_is_left_alone(said: bool) -> None:
    result = Result("0123456789", metadata={"truncated": said, "original_size": 99})

    assert truncate(result, Truncation(4)) is result


@pytest.mark.parametrize("keep", list(Keep))
def test_a_limit_of_nothing_leaves_the_note(keep: Keep) -> None:
    shown = truncate(Result("abc"), Truncation(0, keep))

    assert shown.output.strip() == "[output truncated, 3 characters omitted]"


@given(st.text(max_size=300), st.integers(0, 200), st.sampled_from(list(Keep)))
def test_what_is_kept_and_what_is_omitted_make_the_whole(text: str, limit: int, keep: Keep) -> None:
    shown = truncate(Result(text), Truncation(limit, keep))

    note = f"[output truncated, {len(text) - limit} characters omitted]"
    if len(text) <= limit:
        assert shown.output == text
    else:
        assert note in shown.output
        assert len(shown.output) == limit + len(note) + (2 if keep is Keep.MIDDLE else 1)
    assert shown.metadata["truncated_size"] == len(shown.output)
