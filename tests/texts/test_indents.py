import pytest

from app.texts.indents import Shift


@pytest.mark.parametrize(
    ("pairs", "line", "put"),
    [
        ([("a", "    a")], "b", "    b"),
        ([("a", "    a")], "  b", "      b"),
        ([("    a", "a")], "    b", "b"),
        ([("    a", "a")], "      b", "  b"),
        ([("    a", "a")], "  b", "b"),
        ([("    a", "      a")], "  b", "    b"),
        ([("a", "\ta"), ("    b", "\t\tb")], "    c", "\t\tc"),
        ([("a", "\ta"), ("    b", "\t\tb")], "      c", "\t\t  c"),
        ([("\ta", "    a")], "  b", "  b"),
        ([("a", "a")], "\tb", "\tb"),
        ([("a", "  a")], "", ""),
        ([("a", "  a")], "   ", "   "),
        ([("", "x"), ("y", "")], " b", " b"),
    ],
)
def test_a_line_is_put_where_lines_like_it_stand(pairs: list[tuple[str, str]], line: str, put: str) -> None:
    assert Shift(pairs).put(line) == put


def test_before_any_line_the_first_counts_and_later_the_one_that_came_last() -> None:
    shift = Shift([("a", " a"), ("b", "  b")])

    assert shift.put("x") == " x"
    shift.tell("b", "  b")
    assert shift.put("x") == "  x"
