import pytest

from app.text.edit.reindent import reindent


def text(*lines: str) -> str:
    return "\n".join(lines)


def test_new_lines_stand_where_the_file_has_the_old_ones(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, str, str]] = [
        ("x", "a", "a", "x"),  # nothing to move
        ("x", "a", "    a", "    x"),  # one line
        ("    x", "    a", "  a", "  x"),  # out
        (
            text("if c:", "    n()", "", "    m()"),
            text("if c:", "    r()"),
            text("        if c:", "            r()"),
            text("        if c:", "            n()", "", "            m()"),
        ),  # all as far as the first
        (
            text("with x:", "    a()", "    b()"),
            text("a()", "b()"),
            text("    a()", "    b()"),
            text("    with x:", "        a()", "        b()"),
        ),  # wrapped in something new
        (
            text("a()", "b()"),
            text("    a()", "    b()"),
            text("        a()", "        b()"),
            text("    a()", "    b()"),
        ),  # further out than any old line
        (
            text("a()", "b()"),
            text("        a()", "        b()"),
            text("    a()", "    b()"),
            text("a()", "b()"),
        ),  # not further out than the margin
        (
            text("if c:", "            n = 2", "                m = 3"),
            text("if c:", "            n = 1"),
            text("        if c:", "            n = 1"),
            text("        if c:", "            n = 2", "                m = 3"),
        ),  # only the first line without its indent
        (
            text("if x {", "    a()", "    if y {", "        b()"),
            text("if x {", "    a()"),
            text("\tif x {", "\t\ta()"),
            text("\tif x {", "\t\ta()", "\t\tif y {", "\t\t\tb()"),
        ),  # spaces for tabs
        (
            text("    a()", "        b()", "c()"),
            "    a()",
            "\ta()",
            text("\ta()", "\t\tb()", "c()"),
        ),  # spaces for tabs, told by one line
        (text("\ta()", "\t\tb()"), "\ta()", "    a()", text("    a()", "        b()")),  # tabs for spaces
        (
            text("if x:", "  a()", "  if y:", "    b()"),
            text("if x:", "  a()"),
            text("if x:", "    a()"),
            text("if x:", "    a()", "    if y:", "        b()"),
        ),  # two spaces for four
        (
            text("def f():", "    return 2", ""),
            text("def f():", "a = 1", "return a", ""),
            text("def f():", "    a = 1", "    return a"),
            text("def f():", "    return 2", ""),
        ),  # old lines without any indent, new ones with theirs
        (
            text("def f():", "a = 2", "return a"),
            text("def f():", "a = 1", "return a"),
            text("    def f():", "        a = 1", "        return a"),
            text("    def f():", "        a = 2", "        return a"),
        ),  # neither with any
        (
            text("begin", "  x", "end"),
            text("begin", "  a", "end"),
            text("    begin", "      a", "      b", "    end"),
            text("    begin", "      x", "    end"),
        ),  # more lines found than given
    ]
    for new, old, found, expected in cases:
        with subtests.test(new=new, old=old, found=found, expected=expected):
            assert reindent(new, old, found) == expected


def test_blank_lines_are_left_alone() -> None:
    assert reindent("x\n\n  \ny", "a", "    a") == "    x\n\n  \n    y"


def test_nothing_new_needs_no_indent() -> None:
    assert reindent("", "a\nb", "  a\n  b") == ""
