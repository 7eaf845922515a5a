import pytest

from app.text.edit.reindent import reindent


def text(*lines: str) -> str:
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("new", "old", "found", "expected"),
    [
        pytest.param("x", "a", "a", "x", id="nothing to move"),
        pytest.param("x", "a", "    a", "    x", id="one line"),
        pytest.param("    x", "    a", "  a", "  x", id="out"),
        pytest.param(
            text("if c:", "    n()", "", "    m()"),
            text("if c:", "    r()"),
            text("        if c:", "            r()"),
            text("        if c:", "            n()", "", "            m()"),
            id="all as far as the first",
        ),
        pytest.param(
            text("with x:", "    a()", "    b()"),
            text("a()", "b()"),
            text("    a()", "    b()"),
            text("    with x:", "        a()", "        b()"),
            id="wrapped in something new",
        ),
        pytest.param(
            text("a()", "b()"),
            text("    a()", "    b()"),
            text("        a()", "        b()"),
            text("    a()", "    b()"),
            id="further out than any old line",
        ),
        pytest.param(
            text("a()", "b()"),
            text("        a()", "        b()"),
            text("    a()", "    b()"),
            text("a()", "b()"),
            id="not further out than the margin",
        ),
        pytest.param(
            text("if c:", "            n = 2", "                m = 3"),
            text("if c:", "            n = 1"),
            text("        if c:", "            n = 1"),
            text("        if c:", "            n = 2", "                m = 3"),
            id="only the first line without its indent",
        ),
        pytest.param(
            text("if x {", "    a()", "    if y {", "        b()"),
            text("if x {", "    a()"),
            text("\tif x {", "\t\ta()"),
            text("\tif x {", "\t\ta()", "\t\tif y {", "\t\t\tb()"),
            id="spaces for tabs",
        ),
        pytest.param(
            text("    a()", "        b()", "c()"),
            "    a()",
            "\ta()",
            text("\ta()", "\t\tb()", "c()"),
            id="spaces for tabs, told by one line",
        ),
        pytest.param(
            text("\ta()", "\t\tb()"), "\ta()", "    a()", text("    a()", "        b()"), id="tabs for spaces"
        ),
        pytest.param(
            text("if x:", "  a()", "  if y:", "    b()"),
            text("if x:", "  a()"),
            text("if x:", "    a()"),
            text("if x:", "    a()", "    if y:", "        b()"),
            id="two spaces for four",
        ),
        pytest.param(
            text("def f():", "    return 2", ""),
            text("def f():", "a = 1", "return a", ""),
            text("def f():", "    a = 1", "    return a"),
            text("def f():", "    return 2", ""),
            id="old lines without any indent, new ones with theirs",
        ),
        pytest.param(
            text("def f():", "a = 2", "return a"),
            text("def f():", "a = 1", "return a"),
            text("    def f():", "        a = 1", "        return a"),
            text("    def f():", "        a = 2", "        return a"),
            id="neither with any",
        ),
        pytest.param(
            text("begin", "  x", "end"),
            text("begin", "  a", "end"),
            text("    begin", "      a", "      b", "    end"),
            text("    begin", "      x", "    end"),
            id="more lines found than given",
        ),
    ],
)
def test_new_lines_stand_where_the_file_has_the_old_ones(new: str, old: str, found: str, expected: str) -> None:
    assert reindent(new, old, found) == expected


def test_blank_lines_are_left_alone() -> None:
    assert reindent("x\n\n  \ny", "a", "    a") == "    x\n\n  \n    y"


def test_nothing_new_needs_no_indent() -> None:
    assert reindent("", "a\nb", "  a\n  b") == ""
