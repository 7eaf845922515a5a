"""What the tools that run command lines share."""

import pytest

from app.texts.shells import script_of, title_of


@pytest.mark.parametrize(
    ("line", "title"), [("x" * 100, "x" * 79 + "…"), ("x" * 80, "x" * 80), ("a\nb", "a…"), (" a ", "a"), ("", "")]
)
def test_a_title_is_the_beginning_of_the_line(line: str, title: str) -> None:
    assert title_of(line) == title


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        (["bash", "-lc", "ls"], "ls"),
        (["/bin/sh", "-c", "ls"], "ls"),
        (["bash", "ls"], None),
        (["python", "-c", "ls"], None),
        (["bash", "-c", "ls", "x"], None),
    ],
)
def test_a_script_is_found_behind_a_shell(argv: list[str], script: str | None) -> None:
    assert script_of(argv) == script
